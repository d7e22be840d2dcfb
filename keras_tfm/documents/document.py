"""What all formats share: units of text at known places of a file, and writing that changes nothing else."""

import codecs
import dataclasses
import pathlib
import re

from keras_tfm.common.arguments import UserError, check

LARGEST = 2**28  # bytes of a document
BOMS = {codecs.BOM_UTF8: "utf-8", codecs.BOM_UTF16_LE: "utf-16-le", codecs.BOM_UTF16_BE: "utf-16-be"}
ASCII = bytes(range(32, 127))
# What a file of text cannot hold: half a character of UTF-16, and control characters other than white space.
UNWRITABLE = re.compile("[\ud800-\udfff\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")


@dataclasses.dataclass(eq=False)
class Unit:
    """One text of a document, with its translation if the format has one.

    Attributes:
        sources: the texts to translate: one, or one for each plural form of the target language.
        targets: their translations, "" where there is none.
        plural: the plural of the source, or "".
        context: what distinguishes equal texts: a key, a path, PO's msgctxt.
        comments: notes to translators.
        fuzzy: whether the translation needs a review.
        language: of the translation, or "" if unknown.
        markup: pattern of what else a translation must keep, for `find_protected`, or None.
        span: start and end, in the document's text, of what a translation replaces.
        place: what else the format needs to write the unit.

    >>> unit = Unit(("Open",), ("Öffnen",), context="menu")
    >>> unit.source, unit.target, unit.translated
    ('Open', 'Öffnen', True)
    """

    sources: tuple[str, ...]
    targets: tuple[str, ...] = ("",)
    plural: str = ""
    context: str = ""
    comments: str = ""
    fuzzy: bool = False
    language: str = ""
    markup: re.Pattern | None = None
    span: tuple[int, int] = (0, 0)
    place: object = None

    @property
    def source(self):
        return self.sources[0]

    @property
    def target(self):
        return self.targets[0]

    @property
    def translated(self):
        """Whether every form has a translation, reviewed or not."""
        return all(self.targets)


class Document:
    """A file of texts. A subclass finds the units (`parse`) and says what a translation replaces (`edits`).

    Not for use by several threads while it is read; afterwards nothing changes.

    Args:
        raw: content of the file.
        path: its path, for errors.
        language: of the translations, such as "de"; by default the one that the file declares.

    Attributes:
        units: list of `Unit`.

    >>> from keras_tfm.documents import FORMATS
    >>> document = FORMATS[".txt"](b"One\\r\\n\\r\\n  Two\\r\\n", language="de")
    >>> [unit.source for unit in document.untranslated]
    ['One', 'Two']
    >>> document.render({document.units[1]: "Zwei"})
    b'One\\r\\n\\r\\n  Zwei\\r\\n'
    """

    declaration = None  # pattern of bytes that declare the encoding
    unencodable = "strict"  # what `str.encode` does with characters that the encoding lacks

    def __init__(self, raw, path="document", language=""):
        check("language", language, re.fullmatch(r"[\w@.-]*", language), 'a code such as "de" or "pt-BR"')
        self.raw, self.path, self.language = raw, pathlib.Path(path), language
        self.text = self.decode()
        self.newline = "\r\n" if "\r\n" in self.text else "\n"
        self.units = list(self.parse())
        self._own = set(self.units)

    @property
    def untranslated(self):
        """Units without a translation; for formats that hold one language, all of them."""
        return [unit for unit in self.units if not unit.translated]

    def parse(self):
        """Yields the units in their order in the file."""
        raise NotImplementedError

    def edits(self, unit, texts):
        """Yields (start, end, replacement) for the translations of a unit."""
        raise NotImplementedError

    def shared_edits(self, chosen):
        """Yields the edits of the file's header."""
        return ()

    def write(self, translations, path):
        """Writes the file with `translations`, {unit: text, or one text for each of its `sources`}, completely or not
        at all. All other bytes stay as they are. White space around a translation becomes that of its source; units
        whose translation is blank are left alone."""
        from keras_tfm.common import files  # imports NumPy

        content = self.render(translations)
        with files.atomic_write(path) as new:
            new.write_bytes(content)

    def render(self, translations):
        """The bytes that `write` writes."""
        chosen = {unit: texts for unit in translations if (texts := self._checked(unit, translations[unit]))}
        if not chosen:
            return self.raw
        content = self.splice(chosen)
        self._verify(content, chosen)
        return content

    def problem(self, unit, texts):
        """Why `write` would refuse the translation of a unit, such as a tag that it lacks; "" if it would not."""
        try:
            if checked := self._checked(unit, texts):
                list(self.edits(unit, checked))
        except UserError as error:
            return str(error)
        return ""

    def splice(self, chosen):
        edits = {edit for unit, texts in chosen.items() for edit in self.edits(unit, texts)}
        parts, position = [], 0
        for start, end, replacement in sorted(edits.union(self.shared_edits(chosen))):
            parts += [self.text[position:start], replacement]
            position = end
        try:
            return "".join([*parts, self.text[position:]]).encode(self.encoding, self.unencodable)
        except UnicodeEncodeError as error:
            received = repr(error.object[error.start : error.end][:40])
            raise self.error(f"translations must be text that {self.encoding} has", received) from error

    def _checked(self, unit, texts):
        """The translations of a unit without what no file can hold, or None if one of them is blank."""
        texts = (texts,) if isinstance(texts, str) else tuple(texts)
        if unit not in self._own or len(texts) != len(unit.sources):
            rule = f"translations must be one text for each of the {len(unit.sources)} `sources` of a unit"
            raise self.error(rule, f"{len(texts)} for {unit.source[:40]!r}")
        texts = [re.sub("\r\n?", "\n", UNWRITABLE.sub("", text)).strip() for text in texts]
        fine = all(re.search(r"\w", text) or not re.search(r"\w", unit.source) for text in texts) and all(texts)
        pairs = zip(unit.sources, texts, strict=True)
        return tuple(_outer_space(source, text) for source, text in pairs) if fine else None

    def _verify(self, content, chosen):
        """Raises an error unless what would be written has the same units."""
        rule = "translations must not change the structure of the file"
        try:
            again = type(self)(content, self.path, self.language).units
        except UserError as error:
            raise self.error(rule, str(error).removeprefix(f"{self.path}: ")) from error
        if len(again) != len(self.units):
            raise self.error(rule, f"{len(again)} texts instead of {len(self.units)}")
        for old, new in zip(self.units, again, strict=True):
            if old not in chosen and (old.sources, old.targets) != (new.sources, new.targets):
                raise self.error(rule, f"{new.source[:40]!r} instead of {old.source[:40]!r}")

    def decode(self):
        """The text of the file, from which the same bytes can be made again."""
        self.encoding = next((name for bom, name in BOMS.items() if self.raw.startswith(bom)), None)
        declared = self.declaration and self.declaration.search(self.raw[: 2**16])
        try:
            if not self.encoding:
                self.encoding = self.default_encoding(declared[1].decode("ascii") if declared else "utf-8")
                if ASCII.decode(self.encoding, "replace") != ASCII.decode():
                    raise self.error("the encoding must be one that extends ASCII", self.encoding)
            text = self.raw.decode(self.encoding)
            if text.encode(self.encoding) == self.raw:
                return text
        except LookupError as error:
            raise self.error("the encoding must be one that Python knows", self.encoding) from error
        except UnicodeError as error:
            start = getattr(error, "start", len(self.raw))
            received = f"byte 0x{self.raw[start]:02x} at {start}" if start < len(self.raw) else error
            raise self.error(f"the text must be {self.encoding}", received) from error
        raise self.error("the encoding must write a text in one way only", self.encoding)

    def default_encoding(self, declared):
        return declared

    def error(self, rule, received, position=None):
        """The error for this file, in the form rule, received, line."""
        line = "" if position is None else f", line {self.text.count(chr(10), 0, position) + 1}"
        return UserError(f"{self.path}: {rule}. Received: {received}{line}")


def stripped(text, start, end):
    """The span of a part of a text, without the white space around it."""
    part = text[start:end]
    return start + len(part) - len(part.lstrip()), end - len(part) + len(part.rstrip())


def escape_around(text, kept, escape):
    """Applies `escape` to everything in a text but the strings of `kept`.

    >>> escape_around("<b>a < b</b>", ["<b>", "</b>"], lambda text: text.replace("<", "&lt;"))
    '<b>a &lt; b</b>'
    """
    if not kept:
        return escape(text)
    parts = re.split("(" + "|".join(re.escape(part) for part in sorted(set(kept), key=len, reverse=True)) + ")", text)
    return "".join(part if number % 2 else escape(part) for number, part in enumerate(parts))


def _outer_space(source, text):
    """A text with the white space around another."""
    start, end = stripped(source, 0, len(source))
    return source[:start] + text + source[end:] if source.strip() else text
