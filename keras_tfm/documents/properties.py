"""Java's .properties, read by javaproperties. There is no mark for what needs a review."""

import re

from keras_tfm.common import extras
from keras_tfm.documents.document import Document, Unit

# Key and separator of an entry, either of which may be continued on the next line.
BEFORE_VALUE = re.compile(
    r"""(?:[ \t\f]|\\(?:\r\n|[\r\n]))*
        (?:[^\\=:\s]|\\(?:\r\n[ \t\f]*|[\r\n][ \t\f]*|[^\r\n]))*
        (?:[ \t\f]|\\(?:\r\n|[\r\n]))*[=:]?
        (?:[ \t\f]|\\(?:\r\n|[\r\n]))*""",
    re.VERBOSE,
)
ESCAPES = str.maketrans({"\\": "\\\\", "\n": "\\n", "\t": "\\t", "\r": "\\r", "\f": "\\f"})


class Properties(Document):
    """A .properties file in UTF-8, or, if it is not, in Latin-1 as before Java 9."""

    def default_encoding(self, declared):
        try:
            self.raw.decode("utf-8")
        except UnicodeDecodeError:
            return "latin-1"
        return "utf-8"

    def parse(self):
        parser, position = extras.load("javaproperties"), self.text.startswith("\ufeff")
        comment = []
        try:
            for entry in parser.parse(self.text[position:]):
                if isinstance(entry, parser.KeyValue) and entry.value.strip():
                    start = BEFORE_VALUE.match(self.text, position).end()
                    end = position + len(entry.source.rstrip("\r\n"))
                    notes, span = "\n".join(comment), (start, end)
                    yield Unit((entry.value,), context=entry.key, comments=notes, language=self.language, span=span)
                comment = [*comment, entry.value.strip()] if isinstance(entry, parser.Comment) else []
                position += len(entry.source)
        except parser.InvalidUEscapeError as error:
            raise self.error("escapes must be of the form \\u00e4", error.escape, position) from error

    def edits(self, unit, texts):
        text = re.sub(r"\A ", r"\\ ", texts[0].translate(ESCAPES))
        # ASCII is read in the same way before and after Java 9.
        encoding = "ascii" if self.text.isascii() else self.encoding
        for character in {character for character in text if not character.isascii()}:
            if not character.encode(encoding, "ignore"):
                units = character.encode("utf-16-be").hex()
                text = text.replace(character, re.sub("....", r"\\u\g<0>", units))
        yield *unit.span, text
