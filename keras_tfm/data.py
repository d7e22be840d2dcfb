"""Sentence pairs: read, and encoded once into memory-mapped token files."""

import contextlib
import gzip
import hashlib
import itertools
import pathlib
import sys
import zlib

import numpy as np

from keras_tfm import files, text
from keras_tfm.arguments import one_of, positive, rate
from keras_tfm.progress import Progress

CHUNK = 10_000  # pairs that are encoded together
DTYPES = ("uint16", "uint32")  # of ids on disk
FILES = "source.tokens", "source.ends", "target.tokens", "target.ends"


class ParallelFiles:
    """Pairs of lines of two files, or of the two columns of one TSV file; plain or .gz, UTF-8.

    Args:
        source: a file with a text on each line, or with text, tab, text if there is no `target`.
        target: a file with as many lines.

    The files are read through once, so that what is wrong with them is said now, with file and line.

    >>> import tempfile, pathlib
    >>> file = pathlib.Path(tempfile.mkdtemp()) / "pairs.tsv"
    >>> _ = file.write_text("one\\teins\\ntwo\\tzwei\\n")
    >>> list(ParallelFiles(file))
    [('one', 'eins'), ('two', 'zwei')]
    """

    def __init__(self, source, target=None):
        self.paths = [pathlib.Path(path) for path in (source, target) if path is not None]
        self.length = sum(1 for _ in self)
        if not self.length:
            raise ValueError(f"{self.paths[0]}: the file must have lines. Received: an empty file")

    @property
    def fingerprint(self):
        """A string that changes when the content of the files does; where they lie does not matter."""
        return repr([files.checksum(path) for path in self.paths])

    def __len__(self):
        return self.length

    def __iter__(self):
        if len(self.paths) == 1:
            return self._columns()
        return self._lines()

    def _lines(self):
        ended = object()
        lines = itertools.zip_longest(*map(read_lines, self.paths), fillvalue=ended)
        for number, pair in enumerate(lines, 1):
            if ended in pair:
                shorter = self.paths[pair.index(ended)]
                longer = self.paths[1 - pair.index(ended)]
                raise ValueError(f"{shorter}: ends before line {number}, which {longer} has; both need as many lines")
            yield pair

    def _columns(self):
        for number, line in enumerate(read_lines(self.paths[0]), 1):
            columns = line.split("\t")
            if len(columns) != 2:
                rule = "must be text, tab, text, where there is no `target`"
                raise ValueError(f"{self.paths[0]}, line {number}: {rule}. Received: {line[:80]!r}")
            yield tuple(columns)


def read_lines(path, errors="strict"):
    """Lines of a UTF-8 file, plain or .gz, without their ends; `errors` as for `decode_lines`."""
    path = pathlib.Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"{path}: there is no such file")
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
                    raise ValueError(f"{name}, line {number}: must be UTF-8. Received: {line[:40]!r}") from error
                print(f"{name}, line {number}: not UTF-8; invalid bytes are read as \ufffd", file=sys.stderr)
                yield line.decode("utf-8", "replace")
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ValueError(f"{name}, after line {number}: must be a whole .gz file. Received: {error}") from error


class Sequences:
    """Sequences of ids on disk, memory-mapped: `name.tokens` holds all of them, `name.ends` where each ends."""

    def __init__(self, folder, name, dtype):
        self.tokens = np.memmap(folder / f"{name}.tokens", dtype, mode="r")
        self.ends = np.memmap(folder / f"{name}.ends", "int64", mode="r")

    def __len__(self):
        return len(self.ends)

    def starts(self, indices):
        return np.where(indices > 0, self.ends[indices - 1], 0)

    def lengths(self, indices):
        return self.ends[indices] - self.starts(indices)

    def __getitem__(self, index):
        index = range(len(self))[index]
        return self.tokens[self.starts(np.array(index)) : self.ends[index]]

    def padded(self, indices, width):
        """Rows of ids (len(indices), width), zeros behind the end of each."""
        starts, lengths = self.starts(indices)[:, None], self.lengths(indices)[:, None]
        columns = np.arange(width)
        ids = self.tokens[np.minimum(starts + columns, max(len(self.tokens) - 1, 0))]
        return np.where(columns < lengths, ids, 0).astype("int32")


class TokenPairs:
    """Encoded pairs in a folder that `encode_pairs` wrote: `sources` and `targets` are `Sequences`."""

    def __init__(self, folder):
        folder = pathlib.Path(folder)
        if not (folder / "meta.json").exists():
            raise ValueError(f"`folder` must be one that `encode_pairs` wrote. Received: folder={str(folder)!r}")
        again = f"delete {folder}, and the texts are encoded again"
        self.meta = files.read_json(folder / "meta.json", ("count", "dtype", "fingerprint", "files"), again)
        for name, checksum in self.meta["files"].items():
            files.check(folder / name, checksum, again)
        one_of("dtype", self.meta["dtype"], DTYPES)
        self.sources = Sequences(folder, "source", self.meta["dtype"])
        self.targets = Sequences(folder, "target", self.meta["dtype"])

    def __len__(self):
        return len(self.sources)


def encode_pairs(
    pairs, folder, source_tokenizer, target_tokenizer=None, max_length=256, sampling=0.0, seed=0, verbose=1
):
    """Encodes pairs of texts once, into token files that are memory-mapped from then on.

    Args:
        pairs: `ParallelFiles`, or any iterable of (source, target) strings.
        folder: where the token files go. If they are there already, from the same texts of `ParallelFiles`,
            tokenizers and options, they stay.
        source_tokenizer, target_tokenizer: of `keras_tfm.text`; one for both by default.
        max_length: pairs with a text of more tokens, or with an empty text, are left out.
        sampling, seed: for other segmentations than the best, see `SentencePieceTokenizer.encode`.
        verbose: 0 for silence, 1 for a progress bar.

    Returns:
        `TokenPairs`, as long as the pairs that were kept; its `meta` counts those left out, "empty" and "too_long".

    >>> import tempfile
    >>> from keras_tfm.text import ByteTokenizer
    >>> pairs = encode_pairs([("ab", "c"), ("", "d")], tempfile.mkdtemp(), ByteTokenizer(), verbose=0)
    >>> len(pairs), pairs.sources[0].tolist(), pairs.targets[0].tolist(), pairs.meta["empty"]
    (1, [101, 102], [103], 1)
    """
    folder, tokenizers = pathlib.Path(folder), (source_tokenizer, target_tokenizer or source_tokenizer)
    positive("max_length", max_length)
    fingerprint = _fingerprint(pairs, tokenizers, max_length, rate("sampling", sampling), seed)
    meta = folder / "meta.json"
    if fingerprint and meta.exists():
        encoded = TokenPairs(folder)
        if encoded.meta["fingerprint"] == fingerprint:
            return encoded
    dtype = DTYPES[0] if max(tokenizer.vocab_size for tokenizer in tokenizers) <= 2**16 else DTYPES[1]
    total = len(pairs) if hasattr(pairs, "__len__") else None
    counts = {"count": 0, "empty": 0, "too_long": 0}
    with _writers(folder, dtype) as writers, Progress(total, "encoding", "pair", verbose) as bar:
        chunks = iter(pairs)
        while chunk := list(itertools.islice(chunks, CHUNK)):
            seen = sum(counts.values())
            sides = [
                tokenizer.encode(texts, sampling, _seed(seed, seen, side)) if sampling else tokenizer.encode(texts)
                for side, (tokenizer, texts) in enumerate(zip(tokenizers, zip(*chunk, strict=True), strict=True))
            ]
            rows = [pair for pair in zip(*sides, strict=True) if all(pair)]
            counts["empty"] += len(chunk) - len(rows)
            kept = [pair for pair in rows if max(map(len, pair)) <= max_length]
            counts["too_long"] += len(rows) - len(kept)
            counts["count"] += len(kept)
            if kept:
                for writer, ids in zip(writers, zip(*kept, strict=True), strict=True):
                    writer.write(ids)
            bar.add(len(chunk))
        if not counts["count"]:
            seen = sum(counts.values())
            raise ValueError(f"`pairs` must hold texts of 1 to {max_length} tokens. Received: {seen} pairs, all others")
        meta.unlink(missing_ok=True)  # from here on, only with a new one is the folder whole
    if verbose and (counts["empty"] or counts["too_long"]):
        print(f"{folder.name}: {left_out(counts, max_length)}", file=sys.stderr)
    checksums = {name: files.checksum(folder / name) for name in FILES}
    files.write_json(meta, {**counts, "dtype": dtype, "fingerprint": fingerprint, "files": checksums})
    return TokenPairs(folder)


def left_out(counts, max_length):
    """How many pairs were left out, and why, in words.

    >>> left_out({"count": 97, "empty": 1, "too_long": 2}, 256)
    'left out 3 of 100 pairs: 1 with an empty side, 2 with more than 256 tokens on a side'
    """
    reasons = {"empty": "with an empty side", "too_long": f"with more than {max_length} tokens on a side"}
    out = sum(counts[name] for name in reasons)
    said = ", ".join(f"{counts[name]:,} {reason}" for name, reason in reasons.items() if counts[name])
    return f"left out {out:,} of {out + counts['count']:,} pairs: {said}"


@contextlib.contextmanager
def _writers(folder, dtype):
    """A writer for each side, whose files appear when all is written."""
    with contextlib.ExitStack() as stack:
        paths = [stack.enter_context(files.whole(folder / name)) for name in FILES]
        tokens, ends, *others = (stack.enter_context(open(path, "xb")) for path in paths)
        yield _Writer(tokens, ends, dtype), _Writer(*others, dtype)


class _Writer:
    """Appends sequences of ids to the two files of `Sequences`."""

    def __init__(self, tokens, ends, dtype):
        self.tokens, self.ends, self.dtype, self.last = tokens, ends, dtype, 0

    def write(self, rows):
        ends = self.last + np.cumsum([len(row) for row in rows], dtype="int64")
        self.last = ends[-1]
        self.tokens.write(np.concatenate(rows).astype(self.dtype).tobytes())
        self.ends.write(ends.tobytes())


def _fingerprint(pairs, tokenizers, *options):
    """A string that changes with what would be encoded, or None where that cannot be known before."""
    if not hasattr(pairs, "fingerprint"):
        return None
    parts = pairs.fingerprint, [text.fingerprint(tokenizer) for tokenizer in tokenizers], options
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def _seed(*parts):
    return int(np.random.SeedSequence(parts).generate_state(1)[0])
