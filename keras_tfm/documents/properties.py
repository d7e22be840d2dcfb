"""Java's .properties, read by javaproperties. The format cannot mark translations that need a review."""

import re

from keras_tfm.common import extras
from keras_tfm.documents.document import QUOTED, Document, Unit, escape_except

# Key and separator of an entry, either of which may be continued on the next line.
BEFORE_VALUE = re.compile(
    r"""(?:[ \t\f]|\\(?:\r\n|[\r\n]))*
        (?:[^\\=:\s]|\\(?:\r\n[ \t\f]*|[\r\n][ \t\f]*|[^\r\n]))*
        (?:[ \t\f]|\\(?:\r\n|[\r\n]))*[=:]?
        (?:[ \t\f]|\\(?:\r\n|[\r\n]))*""",
    re.VERBOSE,
)
MESSAGE = re.compile(r"\{\d")  # in a text for Java's MessageFormat, apostrophes are written twice
LONE = re.compile(r"(?<!')'(?!')")
ESCAPES = str.maketrans({"\\": "\\\\", "\n": "\\n", "\t": "\\t", "\r": "\\r", "\f": "\\f"})


class Properties(Document):
    """A .properties file in UTF-8, or, if it is not, in Latin-1 as before Java 9."""

    accelerators = True

    def default_encoding(self, declared):
        try:
            self.raw.decode("utf-8")
        except UnicodeDecodeError:
            return "latin-1"
        return "utf-8"

    def parse(self):
        parser, position = extras.load("javaproperties"), self.text.startswith("\ufeff")
        messages = [QUOTED.sub("", line) for line in self.text.splitlines() if MESSAGE.search(line)]
        self.doubled = sum("''" in line for line in messages) >= sum(bool(LONE.search(line)) for line in messages)
        comment = []
        try:
            for entry in parser.parse(self.text[position:]):
                if isinstance(entry, parser.KeyValue) and entry.value.strip():
                    start = BEFORE_VALUE.match(self.text, position).end()
                    span = start, position + len(entry.source.rstrip("\r\n"))
                    yield self._unit(entry, "\n".join(comment), span)
                comment = [*comment, entry.value.strip()] if isinstance(entry, parser.Comment) else []
                position += len(entry.source)
        except parser.InvalidUEscapeError as error:
            raise self.error("escapes must be of the form \\u00e4", error.escape, position) from error

    def _unit(self, entry, comments, span):
        text, quoted = entry.value, QUOTED.findall(entry.value)
        doubled = bool(self.doubled and MESSAGE.search(text) and not LONE.search(QUOTED.sub("", text)))
        text = escape_except(text, quoted, lambda part: part.replace("''", "'")) if doubled else text
        markup = re.compile("|".join(map(re.escape, quoted))) if quoted else None
        options = {"markup": markup, "span": span, "place": (doubled, quoted)}
        return Unit((text,), context=entry.key, comments=comments, language=self.language, **options)

    def edits(self, unit, texts):
        doubled, quoted = unit.place
        text = escape_except(texts[0], quoted, lambda part: part.replace("'", "''")) if doubled else texts[0]
        text = re.sub(r"\A ", r"\\ ", text.translate(ESCAPES))
        # ASCII is read in the same way before and after Java 9.
        encoding = "ascii" if self.text.isascii() else self.encoding
        for character in {character for character in text if not character.isascii() or character < " "}:
            if character < " " or not character.encode(encoding, "ignore"):
                units = character.encode("utf-16-be", "surrogatepass").hex()
                text = text.replace(character, re.sub("....", r"\\u\g<0>", units))
        yield *unit.span, text
