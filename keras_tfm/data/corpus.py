"""Pairs of texts, read from files or from memory."""

import gzip
import hashlib
import itertools
import os
import pathlib
import sys
import zlib
from collections.abc import Iterator

from keras_tfm.common.arguments import UserError


class ParallelFiles:
    """Pairs of lines from two files, or of the two columns of one TSV file; UTF-8, plain or .gz.

    Args:
        source: a file with one text per line, or with `text, tab, text` if there is no `target`.
        target: a file with the same number of lines.

    The constructor reads the files once, so errors in them are reported right away, with file and line.

    >>> import tempfile, pathlib
    >>> file = pathlib.Path(tempfile.mkdtemp()) / "pairs.tsv"
    >>> _ = file.write_text("one\\teins\\ntwo\\tzwei\\n")
    >>> list(ParallelFiles(file))
    [('one', 'eins'), ('two', 'zwei')]
    """

    def __init__(self, source: str | os.PathLike[str], target: str | os.PathLike[str] | None = None):
        self.paths = [pathlib.Path(path) for path in (source, target) if path is not None]
        self.length, self.fingerprint = _count_and_hash(self)
        if not self.length:
            raise UserError(f"{self.paths[0]}: must have at least one line. Received: an empty file")

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[tuple[str, str]]:
        for number, lines in enumerate(itertools.zip_longest(*map(read_lines, self.paths)), 1):
            if None in lines:
                shorter, longer = self.paths if lines[0] is None else self.paths[::-1]
                raise UserError(f"{shorter}: must have as many lines as {longer}. Received: no line {number}")
            pair = lines if len(lines) == 2 else tuple(lines[0].split("\t"))
            if len(pair) != 2:
                rule = "must be `text, tab, text`, since it is the only file"
                raise UserError(f"{self.paths[0]}, line {number}: {rule}. Received: {lines[0][:80]!r}")
            yield pair


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
    """A hash of the texts of all pairs, whatever they are read from; None for an iterator, which can be read only once.

    >>> fingerprint([("one", "eins")]) == fingerprint((("one", "eins"),)) != fingerprint([("one", "zwei")])
    True
    """
    if iter(pairs) is pairs:
        return None
    return pairs.fingerprint if isinstance(pairs, ParallelFiles) else _count_and_hash(pairs)[1]


def _count_and_hash(pairs):
    digest, count = hashlib.sha256(), 0
    for pair in pairs:
        if not (isinstance(pair, (tuple, list)) and len(pair) == 2 and all(isinstance(side, str) for side in pair)):
            raise UserError(f"`pairs` must be pairs of strings, (source, target). Received: {pair!r} among them")
        source, target = pair
        count += 1
        digest.update(f"{len(source)} {len(target)} {source}{target}".encode("utf-8", "surrogatepass"))
    return count, digest.hexdigest()
