"""Pairs of texts, read from files or from memory."""

import gzip
import hashlib
import itertools
import os
import pathlib
import re
import sys
import zlib
from collections.abc import Iterator, Sequence

from keras_tfm.common.arguments import UserError, check
from keras_tfm.documents import FORMATS, aligned_pairs, language_of_name, read_document, translated_pairs

LINES = (".txt", ".tsv", ".md", ".markdown", ".html", ".htm", ".xhtml")  # documents that are read as lines of text


class ParallelFiles:
    """Pairs of texts from one or more files: lines of text or TSV, plain or .gz, or documents of `keras_tfm.documents`.

    Args:
        sources: a file or a list of them. PO, MO, TMX and XLIFF files hold pairs, and so do others with `text, tab,
            text` or `text, tab, text, tab, language` on each line. Drafts, such as fuzzy entries of PO files, are left
            out.
        targets: for files that hold one side only, as many files with the other: as many lines of text, or JSON,
            Fluent or properties with the same keys.
        languages: of the translations, one for all files or one for each; by default the one that a file declares, or
            that in its name, as in app.de.po.
        with_languages: whether pairs are (source, target, language); by default if there are several languages, or if
            `languages` are given.

    Attributes:
        languages: sorted list of the languages of the pairs; empty if these have none.

    The constructor reads the files, so errors in them are reported right away, with file and line.

    >>> import tempfile, pathlib
    >>> file = pathlib.Path(tempfile.mkdtemp()) / "de.po"
    >>> _ = file.write_text('msgid "yes"\\nmsgstr "ja"\\n')
    >>> list(ParallelFiles(file)), list(ParallelFiles(file, languages="de"))
    ([('yes', 'ja')], [('yes', 'ja', 'de')])
    """

    def __init__(
        self,
        sources: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        targets: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None = None,
        languages: str | Sequence[str] | None = None,
        with_languages: bool | None = None,
    ):
        paths, others, codes = _as_list(sources), _as_list(targets), _as_list(languages)
        rule = f"one file for each of the {len(paths)} of `sources`"
        check("targets", list(map(str, others)), len(others) in (0, len(paths)), rule)
        rule = f"one language, or one for each of the {len(paths)} of `sources`"
        check("languages", codes, len(codes) in (0, 1, len(paths)), rule)
        given = codes * len(paths) if len(codes) == 1 else codes or [None] * len(paths)
        self.parts = [_read(*part) for part in zip(paths, others or [None] * len(paths), given, strict=True)]
        by_part = [{language for *_, language in part} for part in self.parts]
        known = set().union(*by_part)
        self.with_languages = bool(codes) or len(known - {""}) > 1 if with_languages is None else with_languages
        for path, part_languages in zip(paths, by_part, strict=True):
            self._check_languages(path, part_languages)
        self.languages: list[str] = sorted(known) if self.with_languages else []
        self.length, self.fingerprint = _count_and_hash(self)

    def _check_languages(self, path, languages):
        """Raises an error if a file has no pairs, or pairs whose language must be known and is not."""
        if not languages:
            received = "none" if os.path.getsize(path) else "an empty file"
            raise UserError(f"{path}: must have at least one text with a translation. Received: {received}")
        wrong = [code for code in languages if not re.fullmatch(r"[\w@.-]+", code)]
        if wrong and self.with_languages:
            rule = "must say its language, as app.de.po does, or `languages` must"
            raise UserError(f"{path}: {rule}. Received: {wrong[0] or 'none'}")

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[tuple[str, ...]]:
        for part in self.parts:
            for pair in part:
                yield pair if self.with_languages else pair[:2]


class _Columns:
    """Triples (source, target, language) from the two or three columns of a file."""

    def __init__(self, path, language, named):
        self.path, self.language, self.named = path, language, named

    def __iter__(self):
        size = None
        for number, line in enumerate(read_lines(self.path), 1):
            columns = line.split("\t")
            size = size or len(columns)
            if len(columns) != size or size not in (2, 3) or size == 3 and self.language:
                rule = "must be `text, tab, text`, since there is no file of targets"
                rule += "" if self.language else ", or on all lines `text, tab, text, tab, language`"
                raise UserError(f"{self.path}, line {number}: {rule}. Received: {line[:80]!r}")
            yield (*columns, self.language or self.named)[:3]


class _Lines:
    """Triples (source, target, language) from the lines of two files."""

    def __init__(self, source, target, language):
        self.paths, self.language = (source, pathlib.Path(target)), language

    def __iter__(self):
        for number, pair in enumerate(itertools.zip_longest(*map(read_lines, self.paths)), 1):
            if None in pair:
                shorter, longer = self.paths if pair[0] is None else self.paths[::-1]
                raise UserError(f"{shorter}: must have as many lines as {longer}. Received: no line {number}")
            yield *pair, self.language


def read_lines(path: str | os.PathLike[str], errors: str = "strict") -> Iterator[str]:
    """Lines of a UTF-8 file, plain or .gz, without their ends; `errors` as for `decode_lines`."""
    path = pathlib.Path(path)
    if not path.is_file():
        what = "is a folder, not a text file" if path.is_dir() else "there is no such file"
        raise FileNotFoundError(f"{path}: {what}")
    with (gzip.open if path.suffix == ".gz" else open)(path, "rb") as file:
        yield from decode_lines(file, path, errors)


def decode_lines(file, name, errors="strict"):
    """Lines of a binary file that holds UTF-8; with errors="replace", invalid bytes become U+FFFD and are reported."""
    number = 0
    try:
        for number, line in enumerate(file, 1):
            if errors == "replace" and b"\0" in line:  # no text
                raise UserError(f"{name}, line {number}: must be text. Received: a NUL byte")
            line = line.rstrip(b"\r\n").removeprefix(b"\xef\xbb\xbf" if number == 1 else b"")
            try:
                yield line.decode("utf-8")
            except UnicodeDecodeError as error:
                if errors == "strict":
                    raise UserError(f"{name}, line {number}: must be UTF-8. Received: {line[:40]!r}") from error
                print(f"{name}, line {number}: not UTF-8; invalid bytes are read as \ufffd", file=sys.stderr)
                yield line.decode("utf-8", "replace")
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise UserError(f"{name}, after line {number}: must be a complete .gz file. Received: {error}") from error


def fingerprint(pairs):
    """A hash of all pairs, whatever they are read from; None for an iterator, which can be read only once.

    >>> fingerprint([("one", "eins")]) == fingerprint((("one", "eins"),)) != fingerprint([("one", "zwei")])
    True
    """
    if iter(pairs) is pairs:
        return None
    return getattr(pairs, "fingerprint", None) or _count_and_hash(pairs)[1]


def _count_and_hash(pairs):
    digest, count = hashlib.sha256(), 0
    for pair in pairs:
        if not (isinstance(pair, (tuple, list)) and len(pair) in (2, 3) and all(isinstance(x, str) for x in pair)):
            rule = "`pairs` must be pairs of strings, (source, target), or (source, target, language)"
            raise UserError(f"{rule}. Received: {pair!r} among them")
        count += 1
        digest.update(f"{' '.join(str(len(part)) for part in pair)} {''.join(pair)}".encode("utf-8", "surrogatepass"))
    return count, digest.hexdigest()


def _as_list(value) -> list:
    if value is None:
        return []
    return [value] if isinstance(value, (str, os.PathLike)) else list(value)


def _read(source, target, language):
    """The triples (source, target, language) of a file, or of two; a language that is not known is ""."""
    source = pathlib.Path(source)
    named = language_of_name(source if target is None else target).replace("_", "-")
    if source.suffix.lower() not in FORMATS or source.suffix.lower() in LINES:
        return _Columns(source, language, named) if target is None else _Lines(source, target, language or named)
    if target is None:
        pairs = translated_pairs(read_document(source, language or ""))
    else:
        pairs = aligned_pairs(read_document(source), read_document(target))
    return [(*pair, language or declared.replace("_", "-") or named) for *pair, declared in pairs]
