"""Sentence pairs: read from files, and encoded once into memory-mapped token files."""

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
DTYPES = ("uint16", "uint32")  # of the ids on disk
FILES = "source.tokens", "source.ends", "target.tokens", "target.ends"


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

    def __init__(self, source, target=None):
        self.paths = [pathlib.Path(path) for path in (source, target) if path is not None]
        self.length, self.fingerprint = _count_and_hash(self)
        if not self.length:
            raise ValueError(f"{self.paths[0]}: must have at least one line. Received: an empty file")

    def __len__(self):
        return self.length

    def __iter__(self):
        for number, lines in enumerate(itertools.zip_longest(*map(read_lines, self.paths)), 1):
            if None in lines:
                shorter, longer = self.paths if lines[0] is None else self.paths[::-1]
                raise ValueError(f"{shorter}: must have as many lines as {longer}. Received: no line {number}")
            pair = lines if len(lines) == 2 else tuple(lines[0].split("\t"))
            if len(pair) != 2:
                rule = "must be `text, tab, text`, since there is no `target`"
                raise ValueError(f"{self.paths[0]}, line {number}: {rule}. Received: {lines[0][:80]!r}")
            yield pair


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
            raise ValueError(f"`pairs` must be pairs of strings, (source, target). Received: {pair!r} among them")
        source, target = pair
        count += 1
        digest.update(f"{len(source)} {len(target)} {source}{target}".encode("utf-8", "surrogatepass"))
    return count, digest.hexdigest()


class Sequences:
    """Sequences of ids on disk, memory-mapped: `name.tokens` holds all ids, `name.ends` the end of each sequence."""

    def __init__(self, folder, name, dtype):
        # as plain arrays, which are the same memory, but whose parts take less time to make
        self.tokens = np.asarray(np.memmap(folder / f"{name}.tokens", dtype, mode="r"))
        self.ends = np.asarray(np.memmap(folder / f"{name}.ends", "int64", mode="r"))

    def __len__(self):
        return len(self.ends)

    def in_order(self):
        """Whether the sequences follow each other, and fill the tokens."""
        parts = (self.ends[first : first + 2**20 + 1] for first in range(0, len(self), 2**20))  # takes little memory
        increase = all((np.diff(part) >= 0).all() for part in parts)
        return increase and self.ends[0] >= 0 and self.ends[-1] == len(self.tokens)

    def starts(self, indices):
        return np.where(indices > 0, self.ends[indices - 1], 0)

    def lengths(self, indices):
        return self.ends[indices] - self.starts(indices)

    def __getitem__(self, index):
        index = range(len(self))[index]
        return self.tokens[self.starts(np.array(index)) : self.ends[index]]

    def padded(self, indices, width, end=0):
        """Rows of ids (len(indices), width): each sequence, then `end`, then zeros."""
        starts, columns = self.starts(indices)[:, None], np.arange(width)
        lengths = self.ends[indices][:, None] - starts
        ids = np.where(columns == lengths, np.int32(end), np.int32(0))
        np.copyto(ids, self.tokens.take(starts + columns, mode="clip"), where=columns < lengths)
        return ids


class TokenPairs:
    """Encoded pairs in a folder that `encode_pairs` wrote; `sources` and `targets` are `Sequences`."""

    def __init__(self, folder):
        folder = pathlib.Path(folder)
        if not (folder / "meta.json").exists():
            raise ValueError(f"`folder` must be one that `encode_pairs` wrote. Received: folder={str(folder)!r}")
        remedy = f"delete {folder} to encode the texts again"
        self.meta = files.read_json(folder / "meta.json", ("count", "dtype", "fingerprint", "files"), remedy)
        with files.reading(folder / "meta.json", remedy):
            one_of("dtype", self.meta["dtype"], DTYPES)  # of objects, NumPy would follow pointers from the file
            for name in FILES:
                files.check(folder / name, self.meta["files"][name], remedy)
            self.sources, self.targets = (Sequences(folder, side, self.meta["dtype"]) for side in ("source", "target"))
            if not all(len(side) == self.meta["count"] and side.in_order() for side in (self.sources, self.targets)):
                raise ValueError("the ends of its sequences are not those of so many pairs of texts")

    def __len__(self):
        return len(self.sources)


def sample_sources(run, count=20):
    """Some sources that a run validates or trains on, as strings; [] if the folder has no texts, or damaged ones."""
    run = pathlib.Path(run)
    for name in ("valid", "train-0"):
        with contextlib.suppress(ValueError, OSError):
            pairs = TokenPairs(run / "data" / name)
            names = [path for path in (run / "source_tokenizer", run / "tokenizer") if path.exists()]
            places = np.linspace(0, len(pairs) - 1, min(count, len(pairs)), dtype=int)
            return text.load_tokenizer(names[0]).decode([pairs.sources[place] for place in places])
    return []


def encode_pairs(
    pairs, folder, source_tokenizer, target_tokenizer=None, max_length=256, sampling=0.0, seed=0, verbose=1
):
    """Encodes pairs of texts once, into token files that are memory-mapped from then on.

    Args:
        pairs: any iterable of (source, target) strings, such as a list or `ParallelFiles`.
        folder: where to write the token files. If it already holds those of the same texts, tokenizers and options,
            they are used as they are; texts from an iterator that can be read only once are always encoded.
        source_tokenizer, target_tokenizer: tokenizers of `keras_tfm.text`; one for both sides by default.
        max_length: pairs with more tokens than this on a side are left out, and so are pairs with an empty side.
        sampling, seed: for random segmentations, see `SentencePieceTokenizer.encode`.
        verbose: 1 for a progress bar, 0 for none.

    Returns:
        `TokenPairs` of the pairs that were kept; its `meta` counts those left out as "empty" and "too_long".

    >>> import tempfile
    >>> from keras_tfm.text import ByteTokenizer
    >>> pairs = encode_pairs([("ab", "c"), ("", "d")], tempfile.mkdtemp(), ByteTokenizer(), verbose=0)
    >>> len(pairs), pairs.sources[0].tolist(), pairs.targets[0].tolist(), pairs.meta["empty"]
    (1, [101, 102], [103], 1)
    """
    folder, tokenizers = pathlib.Path(folder), (source_tokenizer, target_tokenizer or source_tokenizer)
    options = positive("max_length", max_length), rate("sampling", sampling), seed
    texts, meta = fingerprint(pairs), folder / "meta.json"
    made_from = texts and repr([texts, *map(text.fingerprint, tokenizers), *options])
    if made_from and meta.exists() and (encoded := TokenPairs(folder)).meta["fingerprint"] == made_from:
        return encoded
    dtype = DTYPES[max(tokenizer.vocab_size for tokenizer in tokenizers) > 2**16]
    counts = {"count": 0, "empty": 0, "too_long": 0}
    total = len(pairs) if hasattr(pairs, "__len__") else None
    with contextlib.ExitStack() as stack, Progress(total, "encoding", "pair", verbose) as bar:
        paths = [stack.enter_context(files.whole(folder / name)) for name in FILES]
        source, source_ends, target, target_ends = (stack.enter_context(open(path, "xb")) for path in paths)
        iterator, lasts = iter(pairs), [0, 0]
        while chunk := list(itertools.islice(iterator, CHUNK)):
            for side, rows in enumerate(_encode(chunk, tokenizers, *options, counts)):
                ends = lasts[side] + np.cumsum([len(row) for row in rows], dtype="int64")
                lasts[side] = ends[-1]
                (source, target)[side].write(np.concatenate(rows).astype(dtype).tobytes())
                (source_ends, target_ends)[side].write(ends.tobytes())
            bar.add(len(chunk))
        total = sum(counts.values())
        if not counts["count"]:
            rule = f"`pairs` must hold texts of 1 to {max_length} tokens"
            raise ValueError(f"{rule}. Received: {total} pairs, none of which fits")
        meta.unlink(missing_ok=True)  # the folder is incomplete until there is a new one
    reasons = {"empty": "with an empty side", "too_long": f"with more than {max_length} tokens on a side"}
    why = ", ".join(f"{counts[name]:,} {reason}" for name, reason in reasons.items() if counts[name])
    if verbose and why:
        print(f"{folder.name}: left out {total - counts['count']:,} of {total:,} pairs: {why}", file=sys.stderr)
    checksums = {name: files.checksum(folder / name) for name in FILES}
    files.write_json(meta, {**counts, "dtype": dtype, "fingerprint": made_from, "files": checksums})
    return TokenPairs(folder)


def _encode(chunk, tokenizers, max_length, sampling, seed, counts):
    """The ids of both sides of the pairs to keep; adds to `counts` how many are kept and left out."""
    seen, sides = sum(counts.values()), []
    for side, (tokenizer, texts) in enumerate(zip(tokenizers, zip(*chunk, strict=True), strict=True)):
        sample = (sampling, int(np.random.SeedSequence((seed, seen, side)).generate_state(1)[0])) if sampling else ()
        sides.append(tokenizer.encode(texts, *sample))
    rows = [pair for pair in zip(*sides, strict=True) if all(pair)]
    kept = [pair for pair in rows if max(map(len, pair)) <= max_length]
    counts["empty"] += len(chunk) - len(rows)
    counts["too_long"] += len(rows) - len(kept)
    counts["count"] += len(kept)
    return zip(*kept, strict=True)
