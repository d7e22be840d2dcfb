"""Translates documents: fills in the missing translations and changes nothing else."""

import dataclasses
import os
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from keras_tfm.common.arguments import UserError, check
from keras_tfm.documents.accelerators import Accelerators
from keras_tfm.documents.document import Document, Unit
from keras_tfm.documents.formats import read_document
from keras_tfm.documents.languages import closest_language, language_of_name, same_language
from keras_tfm.documents.sources import make_source

CREDITS = {"translator-credits", "translator_credits"}  # where GNOME's translators write their names


class Problem(NamedTuple):
    """A unit whose translation could not be used, and the reason."""

    unit: Unit
    reason: str


@dataclasses.dataclass
class DocumentTranslation:
    """What `translate_document` returns.

    Attributes:
        document: the document.
        translations: {unit: texts}, what is written.
        content: the bytes of the file with them.
        translated: number of units that were translated.
        kept: number of units that were left alone, since they had a translation.
        problems: list of `Problem`, (unit, reason). Such a unit has the source text for its translation if the format
            marks it as a draft, and is left alone otherwise.

    >>> from keras_tfm.documents import FORMATS
    >>> document = FORMATS[".json"](b'{"a": "Copied %d files"}')
    >>> problem = Problem(document.units[0], "lacks %d")
    >>> print(*DocumentTranslation(document, {}, document.raw, 0, 0, [problem]).report(), sep="\\n")
    translated 0 of 1 texts, 1 needs attention:
      line 1: 'Copied %d files': the translation lacks %d
    """

    document: Document
    translations: dict[Unit, tuple[str, ...]]
    content: bytes
    translated: int
    kept: int
    problems: list[Problem]

    def write(self, path: str | os.PathLike[str]) -> None:
        """Writes the file, completely or not at all."""
        from keras_tfm.common import files  # imports NumPy

        with files.atomic_write(path) as new:
            new.write_bytes(self.content)

    def report(self, max_problems: int | None = None) -> list[str]:
        """Lines that say how many texts were translated, and which need attention: all, or the first of them."""
        count = len(self.problems)
        lines = [f"translated {self.translated:,} of {len(self.document.units):,} texts"]
        lines[0] += f", {self.kept:,} had a translation" if self.kept else ""
        names = len(self.document.units) - self.translated - self.kept - count
        lines[0] += f", {names:,} for translators' names" if names else ""
        lines[0] += f", {count:,} need{'s' * (count == 1)} attention:" if count else ""
        for unit, reason in self.problems[:max_problems]:
            line = self.document.line(unit)
            place = f"line {line}" if line else unit.context or "text"
            lines.append(f"  {place}: {' '.join(unit.source.split())[:60]!r}: the translation {reason}")
        left = count - len(lines) + 1
        return [*lines, f"  … and {left:,} more"] if left > 0 else lines


def translate_document(
    translator: Any,
    document: Document,
    everything: bool = False,
    target_language: str | None = None,
    glossary: Mapping[str, str] | None = None,
    source_language: str = "en",
    verbose: int = 0,
) -> DocumentTranslation:
    """Translates the texts of a document that have no translation yet.

    All sentences go through the translator in one call. Placeholders, tags and addresses stay, and so do accelerators
    such as that of "_File".

    Args:
        translator: a `Translator` or what `keras_tfm.load` returns; anything with its method `translate_protected`.
        document: what `read_document` returns, read with the language of the translations.
        everything: whether texts that have a translation are translated, too.
        target_language: for a multilingual translator, the code of one of its languages.
        glossary: a dict, source term → target term.
        source_language: of the texts, by which they are split into sentences.
        verbose: 1 shows progress.

    Returns:
        A `DocumentTranslation`; nothing is written.

    >>> from keras_tfm import Translator
    >>> from keras_tfm.documents import FORMATS
    >>> document = FORMATS[".json"](b'{"founded": "May 3, 1998", "id": "7"}')
    >>> translate_document(Translator.from_preset("dates"), document).content
    b'{"founded": "1998-05-03", "id": "7"}'
    """
    document.check_writable()
    units = [unit for unit in (document.units if everything else document.untranslated) if unit.source not in CREDITS]
    texts = [text for unit in document.units for text in unit.sources]
    accelerators = Accelerators(texts) if document.accelerators else None
    settings = accelerators, source_language, document.language or target_language or ""
    sources = {unit: [make_source(text, unit.markup, *settings) for text in unit.sources] for unit in units}
    segments = dict.fromkeys(segment for each in sources.values() for source in each for segment in source.segments())
    options = {"target_language": target_language, "glossary": glossary, "verbose": verbose}
    translations = _translations(translator, segments, **{name: value for name, value in options.items() if value})
    return _assemble(document, {unit: [source.translation(translations) for source in sources[unit]] for unit in units})


def translate_file(
    translator: Any,
    path: str | os.PathLike[str],
    out: str | os.PathLike[str],
    everything: bool = False,
    target_language: str | None = None,
    glossary: Mapping[str, str] | None = None,
    source_language: str = "en",
    format: str | None = None,
    overwrite: bool = False,
    verbose: int = 0,
) -> DocumentTranslation:
    """Translates a file into another one of the same format, which is written completely or not at all.

    Args:
        translator, everything, glossary, source_language, verbose: as for `translate_document`.
        path: the file, whose suffix is one of `FORMATS`.
        out: the file to write.
        target_language: by default the one that the file declares, or the one in the name of `out`, as in app.de.po.
        format: suffix of the format, such as ".po", for a file that has another suffix.
        overwrite: whether `out` may exist.

    Returns:
        A `DocumentTranslation`, which counts what was translated and lists what needs attention.

    >>> import pathlib, tempfile
    >>> from keras_tfm import Translator
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> _ = (folder / "app.po").write_text('msgid "May 3, 1998"\\nmsgstr ""\\n')
    >>> result = translate_file(Translator.from_preset("dates"), folder / "app.po", folder / "new.po")
    >>> result.translated, result.problems, (folder / "new.po").read_text()
    (1, [], '#, fuzzy\\nmsgid "May 3, 1998"\\nmsgstr "1998-05-03"\\n')
    """
    check("out", str(out), overwrite or not os.path.exists(out), "a new file, unless `overwrite` is given")
    document = read_document(path, format=format)
    code, document = resolve_target_language(document, translator, target_language, out, source_language)
    result = translate_document(translator, document, everything, code, glossary, source_language, verbose)
    result.write(out)
    return result


def resolve_target_language(
    document: Document,
    translator: Any,
    target_language: str | None = None,
    out: str | os.PathLike[str] | None = None,
    source_language: str = "en",
) -> tuple[str | None, Document]:
    """Finds out which language a document is translated into.

    Args:
        document: what `read_document` returns.
        translator: its `languages` are those to choose from.
        target_language: by default the one that the document declares, or that in the name of `out` or of the document,
            or the translator's own.
        out: path of the file to write, or None.
        source_language: if a PO file without translations declares this one, it means its texts.

    Returns:
        The code for the translator, or None if it has one language only, and the document in that language.

    >>> from keras_tfm import Translator
    >>> from keras_tfm.documents import FORMATS
    >>> document = FORMATS[".po"](b'msgid "a"\\nmsgstr ""\\n')
    >>> code, document = resolve_target_language(document, Translator.from_preset("dates"), out="app.pl.po")
    >>> code, document.language
    (None, 'pl')
    """
    if not document.raw.strip():
        raise document.error("a document must have texts", "an empty file")
    languages = list(translator.languages)
    paths = [path for path in (out, document.path if document.bilingual else None) if path]
    named = next(filter(None, (language_of_name(path, languages) for path in paths)), "")
    declared = "" if (target_language or named) and _declares_source(document, source_language) else document.language
    if target_language and declared and not same_language(target_language, declared):
        rule = f"`target_language` must be {declared}, which {document.path} declares"
        raise UserError(f"{rule}. Received: target_language={target_language!r}")
    code = target_language or declared or named or translator.target_language or ""
    if languages and not closest_language(code, languages):
        where = "" if code else ", unless the document or the name of `out` says it, as in app.de.po"
        raise UserError(
            f"`target_language` must be one of {languages}{where}. Received: target_language={code or None!r}"
        )
    if code and not declared:
        document = type(document)(document.raw, document.path, code)
    others = {unit.language for unit in document.units if not same_language(unit.language, document.language)} - {""}
    if others or document.needs_language and not document.language:
        received = ", ".join(sorted(others)) or "none"
        raise document.error("a document to translate must have one target language", received)
    return closest_language(code, languages) if languages else None, document


def _declares_source(document, source_language):
    """Whether the language that a document declares is that of its texts, as in a copy of an English template."""
    untranslated = document.renames_language and not any(any(unit.targets) for unit in document.units)
    return untranslated and same_language(document.language, source_language)


def _translations(translator, segments, **options):
    """{(sentence, markup): (translation, problem)}"""
    if not segments:
        return {}
    sentences, markups = zip(*segments, strict=True)
    return dict(zip(segments, translator.translate_protected(list(sentences), list(markups), **options), strict=True))


def _assemble(document, results):
    """The `DocumentTranslation`, given [(text, problem), …] for each unit."""
    reasons, chosen = {}, {}
    for unit, forms in results.items():
        texts = tuple(text for text, _ in forms)
        reason = next((problem for _, problem in forms if problem), "") or _problem(document, unit, texts)
        if reason:
            reasons[unit] = reason
        elif document.bilingual or texts != unit.sources:
            chosen[unit] = texts
    refused = _refused(document, chosen)
    drafts = {unit: unit.sources for unit in [*reasons, *refused] if document.marks_drafts and not unit.translated}
    chosen = {unit: texts for unit, texts in chosen.items() if unit not in refused} | drafts
    reasons |= refused
    problems = [Problem(unit, reasons[unit]) for unit in results if unit in reasons]
    translated = len(results) - len(problems)
    kept = sum(unit.translated and unit not in results for unit in document.units)
    return DocumentTranslation(document, chosen, document.render(chosen), translated, kept, problems)


def _problem(document, unit, texts):
    """Why the document cannot hold the translation of a unit, or ""."""
    if any(source.strip() and not text.strip() for source, text in zip(unit.sources, texts, strict=True)):
        return "is blank"
    return _reason(document, document.problem(unit, texts))


def _refused(document, translations):
    """{unit: reason} of the translations that would change the structure of the file or that its encoding lacks."""
    try:
        document.render(translations)
    except UserError as error:
        if len(translations) == 1:
            return dict.fromkeys(translations, _reason(document, str(error)))
        items, half = list(translations.items()), len(translations) // 2
        return _refused(document, dict(items[:half])) | _refused(document, dict(items[half:]))
    return {}


def _reason(document, message):
    """A message of the document in the words of a report: "must have the tags of its source"."""
    rule = message.removeprefix(f"{document.path}: ").partition(". Received: ")[0]
    return re.sub("^(?:a translation|translations) ", "", rule)
