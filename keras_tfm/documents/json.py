"""JSON: string values at any depth, also the messages of browser extensions and .arb files."""

import json
import re

from keras_tfm.documents.document import QUOTED, Document, Unit

TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\],:]')


class JSON(Document):
    """A JSON file. Where an object has a "message", only that is translated; keys that begin with @ are not."""

    accelerators = True

    def parse(self):
        try:
            json.loads(self.text.removeprefix("\ufeff"), parse_int=str)  # Python's integers have a limit
        except json.JSONDecodeError as error:
            raise self.error("a JSON file must be well-formed", error) from error
        except RecursionError as error:
            raise self.error("a JSON file must not be nested so deeply", "too many levels") from error
        values = list(self._values())
        self.locale = next((match.span() for path, match in values if path == ("@@locale",)), None)
        messages = {path[:-1] for path, _ in values if path[-1:] == ("message",)}
        for path, match in values:
            inside = next((path[:size] for size in range(len(path)) if path[:size] in messages), None)
            private = any(key.startswith("@") for key in path)
            source = json.loads(match[0])
            if source.strip() and not private and (inside is None or path == (*inside, "message")):
                options = {"language": self.language, "markup": QUOTED, "span": match.span()}
                yield Unit((source,), context=".".join(path), **options)

    def _values(self):
        """Yields (path, match) of each string that is a value."""
        path, kinds, is_key = [], [], False  # the keys or numbers of the containers that are open
        for match in TOKEN.finditer(self.text):
            match match[0]:
                case "{" | "[" as kind:
                    kinds.append(kind)
                    path.append("0")
                    is_key = kind == "{"
                case "}" | "]":
                    kinds.pop()
                    path.pop()
                case "," if kinds[-1] == "[":
                    path[-1] = str(int(path[-1]) + 1)
                case "," | ":" as sign:
                    is_key = sign == ","
                case key if is_key and kinds and kinds[-1] == "{":
                    path[-1] = json.loads(key)
                case _:
                    yield tuple(path), match

    def shared_edits(self, chosen):
        """The language, which Flutter's files name."""
        if self.locale and self.language:
            yield *self.locale, json.dumps(self.language.replace("-", "_"))

    def edits(self, unit, texts):
        yield *unit.span, json.dumps(texts[0], ensure_ascii=self.text.isascii() and "\\u" in self.text)
