"""What all formats share: reading units of text with their places in a file, and writing that changes only these."""

import codecs
import dataclasses
import os
import pathlib
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import TypeAlias

from keras_tfm.common.arguments import UserError, check

MAX_DOCUMENT_BYTES = 2**28  # bytes of a document
BOMS = {codecs.BOM_UTF8: "utf-8", codecs.BOM_UTF16_LE: "utf-16-le", codecs.BOM_UTF16_BE: "utf-16-be"}
ASCII = bytes(range(32, 127))
QUOTED = re.compile(r"(?<!')'(?:\{[^{}']*\}|[{}])'(?!')")  # braces that are text, in ICU and Java messages
# What no translation may add: lone surrogates, and control characters other than white space.
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
        span: start and end, in the document's text, of the unit or of what a translation replaces.
        place: what else the format needs in order to write the unit.

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
    def source(self) -> str:
        return self.sources[0]

    @property
    def target(self) -> str:
        return self.targets[0]

    @property
    def translated(self) -> bool:
        """Whether every form has a translation, reviewed or not."""
        return all(self.targets)


Translations: TypeAlias = Mapping[Unit, str | Iterable[str]]


class Document:
    """A file of texts. A subclass yields its units (`parse`) and what each translation replaces (`edits`).

    A document does not change once it has been read, so threads may share it.

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

    bilingual = False  # whether the file holds texts and their translations
    renames_language = False  # whether what is written declares the language that the document was read with
    needs_language = False  # whether translations in several languages may be in one file
    marks_drafts = False  # whether the format can mark translations that need a review
    accelerators = False  # whether texts may have accelerators, as in "_File"
    declaration: re.Pattern | None = None  # pattern of bytes that declare the encoding
    unencodable = "strict"  # what `str.encode` does with characters that the encoding lacks

    def __init__(self, raw: bytes, path: str | os.PathLike[str] = "document", language: str = ""):
        check("language", language, re.fullmatch(r"[\w@.-]*", language), 'a code such as "de" or "pt-BR"')
        self.raw, self.path, self.language = raw, pathlib.Path(path), language
        self.text = self.decode()
        self.newline = "\r\n" if "\r\n" in self.text else "\n"
        self.units = list(self.parse())
        self._own = set(self.units)

    @property
    def untranslated(self) -> list[Unit]:
        """Units without a translation; for formats that hold one language, all of them."""
        return [unit for unit in self.units if not unit.translated]

    def line(self, unit: Unit) -> int | None:
        """The line of the file in which a unit is, from 1; None in a file without lines."""
        return self.text.count("\n", 0, unit.span[0]) + 1 if unit.span[1] else None

    def parse(self) -> Iterable[Unit]:
        """Yields the units in their order in the file."""
        raise NotImplementedError

    def edits(self, unit: Unit, texts: tuple[str, ...]) -> Iterator[tuple[int, int, str]]:
        """Yields (start, end, replacement) for the translations of a unit."""
        raise NotImplementedError

    def shared_edits(self, chosen: Mapping[Unit, tuple[str, ...]]) -> Iterable[tuple[int, int, str]]:
        """Yields the edits of the file's header."""
        return ()

    def write(self, translations: Translations, path: str | os.PathLike[str]) -> None:
        """Writes the file with `translations`, {unit: text, or one text for each of its `sources`}, completely or not
        at all. All other bytes stay as they are. White space around a translation becomes that of its source; units
        whose translation is blank are left alone."""
        from keras_tfm.common import files  # imports NumPy

        content = self.render(translations)
        with files.atomic_write(path) as new:
            new.write_bytes(content)

    def render(self, translations: Translations) -> bytes:
        """The bytes that `write` writes."""
        chosen = {unit: texts for unit in translations if (texts := self._checked(unit, translations[unit]))}
        if not chosen:
            return self.raw
        content = self.splice(chosen)
        self._verify(content, chosen)
        return content

    def check_writable(self) -> None:
        """Raises an error if translations cannot be written into a file of this kind."""

    def problem(self, unit: Unit, texts: str | Iterable[str]) -> str:
        """Why `write` would refuse the translation of a unit, such as a missing tag; "" if it would not."""
        try:
            if checked := self._checked(unit, texts):
                self.encode("".join(replacement for *_, replacement in self.edits(unit, checked)))
        except UserError as error:
            return str(error)
        return ""

    def splice(self, chosen: Mapping[Unit, tuple[str, ...]]) -> bytes:
        edits = {edit for unit, texts in chosen.items() for edit in self.edits(unit, texts)}
        parts, position = [], 0
        for start, end, replacement in sorted(edits.union(self.shared_edits(chosen))):
            parts += [self.text[position:start], replacement]
            position = end
        return self.encode("".join([*parts, self.text[position:]]))

    def encode(self, text: str) -> bytes:
        """The bytes of a text in the file's encoding."""
        try:
            return text.encode(self.encoding, self.unencodable)
        except UnicodeEncodeError as error:
            received = repr(error.object[error.start : error.end][:40])
            raise self.error(f"translations must be text that {self.encoding} has", received) from error

    def _checked(self, unit, texts):
        """The translations of a unit as they are written; None if one of them is blank."""
        texts = (texts,) if isinstance(texts, str) else tuple(texts)
        if unit not in self._own or len(texts) != len(unit.sources):
            rule = f"translations must be one text for each of the {len(unit.sources)} `sources` of a unit"
            raise self.error(rule, f"{len(texts)} for {unit.source[:40]!r}")
        texts = [_cleaned(source, text) for source, text in zip(unit.sources, texts, strict=True)]
        fine = all(re.search(r"\w", text) or not re.search(r"\w", unit.source) for text in texts) and all(texts)
        pairs = zip(unit.sources, texts, strict=True)
        return tuple(_outer_space(source, text) for source, text in pairs) if fine else None

    def _verify(self, content, chosen):
        """Raises an error unless the new content has the same units."""
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

    def decode(self) -> str:
        """The text of the file, from which the same bytes can be made again."""
        self.encoding = next((name for bom, name in BOMS.items() if self.raw.startswith(bom)), None)
        declared = self.declaration and self.declaration.search(self.raw[: 2**16])
        try:
            if not self.encoding:
                self.encoding = self.default_encoding(declared[1].decode("ascii") if declared else "utf-8")
                if ASCII.decode(self.encoding, "replace") != ASCII.decode():
                    raise self.error("the encoding must be one that extends ASCII", self.encoding)
            text = self.raw.decode(self.encoding)
            if "\0" in text:
                raise self.error(
                    "the file must be text", f"a NUL byte in line {text[: text.index(chr(0))].count(chr(10)) + 1}"
                )
            if text.encode(self.encoding) == self.raw:
                return text
        except LookupError as error:
            raise self.error("the encoding must be one that Python knows", self.encoding) from error
        except UnicodeError as error:
            start = getattr(error, "start", len(self.raw))
            line = self.raw.count(b"\n", 0, start) + 1
            received = f"byte 0x{self.raw[start]:02x} in line {line}" if start < len(self.raw) else error
            raise self.error(f"the text must be {self.encoding}", received) from error
        raise self.error("the encoding must write a text in one way only", self.encoding)

    def default_encoding(self, declared: str) -> str:
        return declared

    def error(self, rule: str, received: object, position: int | None = None) -> UserError:
        """The error for this file, in the form rule, received, line."""
        line = "" if position is None else f", line {self.text.count(chr(10), 0, position) + 1}"
        return UserError(f"{self.path}: {rule}. Received: {received}{line}")


def stripped_span(text, start, end):
    """The span of a part of a text, without the white space around it."""
    part = text[start:end]
    return start + len(part) - len(part.lstrip()), end - len(part) + len(part.rstrip())


def escape_except(text, kept, escape):
    """Applies `escape` to a text, except to the strings of `kept` in it.

    >>> escape_except("<b>a < b</b>", ["<b>", "</b>"], lambda text: text.replace("<", "&lt;"))
    '<b>a &lt; b</b>'
    """
    if not kept:
        return escape(text)
    parts = re.split("(" + "|".join(re.escape(part) for part in sorted(set(kept), key=len, reverse=True)) + ")", text)
    return "".join(part if number % 2 else escape(part) for number, part in enumerate(parts))


def _cleaned(source, text):
    """A text with the line ends of another, and only control characters that the other has."""
    text = UNWRITABLE.sub(lambda match: match[0] if match[0] in source else "", text)
    return re.sub("\r\n?|\n", "\r\n" if "\r\n" in source else "\n", text).strip()


def _outer_space(source, text):
    """A text with the white space around another."""
    start, end = stripped_span(source, 0, len(source))
    return source[:start] + text + source[end:] if source.strip() else text
