"""Pairs of texts, encoded once into memory-mapped token files."""

import contextlib
import itertools
import os
import pathlib
import sys
from collections.abc import Iterable

import numpy as np

from keras_tfm import text
from keras_tfm.common import files
from keras_tfm.common.arguments import UserError, one_of, positive, rate
from keras_tfm.common.progress import Progress
from keras_tfm.data.corpus import fingerprint

CHUNK = 10_000  # pairs that are encoded together
DTYPES = ("uint16", "uint32")  # of the ids on disk
FILES = "source.tokens", "source.ends", "target.tokens", "target.ends"


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

    def __init__(self, folder: str | os.PathLike[str]):
        folder = pathlib.Path(folder)
        if not (folder / "meta.json").exists():
            raise UserError(f"`folder` must be one that `encode_pairs` wrote. Received: folder={str(folder)!r}")
        remedy = f"delete {folder} to encode the texts again"
        self.meta = files.read_json(folder / "meta.json", ("count", "dtype", "fingerprint", "files"), remedy)
        with files.reading(folder / "meta.json", remedy):
            one_of("dtype", self.meta["dtype"], DTYPES)  # of objects, NumPy would follow pointers from the file
            for name in FILES:
                files.check(folder / name, self.meta["files"][name], remedy)
            self.sources, self.targets = (Sequences(folder, side, self.meta["dtype"]) for side in ("source", "target"))
            if not all(len(side) == self.meta["count"] and side.in_order() for side in (self.sources, self.targets)):
                raise UserError("the ends of its sequences are not those of so many pairs of texts")

    def __len__(self) -> int:
        return len(self.sources)


def encode_pairs(
    pairs: Iterable[tuple[str, str]],
    folder: str | os.PathLike[str],
    source_tokenizer: text.Tokenizer,
    target_tokenizer: text.Tokenizer | None = None,
    max_length: int = 256,
    sampling: float = 0.0,
    seed: int = 0,
    verbose: int = 1,
) -> TokenPairs:
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
    made_from = texts and repr([texts, *map(text.saving.fingerprint, tokenizers), *options])
    if made_from and meta.exists() and (encoded := TokenPairs(folder)).meta["fingerprint"] == made_from:
        return encoded
    dtype = DTYPES[max(tokenizer.vocab_size for tokenizer in tokenizers) > 2**16]
    counts = _write(pairs, folder, tokenizers, options, dtype, verbose)
    total = sum(counts.values())
    reasons = {"empty": "with an empty side", "too_long": f"with more than {max_length} tokens on a side"}
    why = ", ".join(f"{counts[name]:,} {reason}" for name, reason in reasons.items() if counts[name])
    if verbose and why:
        print(f"{folder.name}: left out {total - counts['count']:,} of {total:,} pairs: {why}", file=sys.stderr)
    checksums = {name: files.checksum(folder / name) for name in FILES}
    files.write_json(meta, {**counts, "dtype": dtype, "fingerprint": made_from, "files": checksums})
    return TokenPairs(folder)


def _write(pairs, folder, tokenizers, options, dtype, verbose):
    """Writes the token files; returns how many pairs were kept and left out."""
    counts = {"count": 0, "empty": 0, "too_long": 0}
    total = len(pairs) if hasattr(pairs, "__len__") else None
    with contextlib.ExitStack() as stack, Progress(total, "encoding", "pair", verbose) as bar:
        paths = [stack.enter_context(files.atomic_write(folder / name)) for name in FILES]
        source, source_ends, target, target_ends = (stack.enter_context(open(path, "xb")) for path in paths)
        iterator, lasts = iter(pairs), [0, 0]
        while chunk := list(itertools.islice(iterator, CHUNK)):
            for side, rows in enumerate(_encode(chunk, tokenizers, *options, counts)):
                ends = lasts[side] + np.cumsum([len(row) for row in rows], dtype="int64")
                lasts[side] = ends[-1]
                (source, target)[side].write(np.concatenate(rows).astype(dtype).tobytes())
                (source_ends, target_ends)[side].write(ends.tobytes())
            bar.add(len(chunk))
        if not counts["count"]:
            rule = f"`pairs` must hold texts of 1 to {options[0]} tokens"
            raise UserError(f"{rule}. Received: {sum(counts.values())} pairs, none of which fits")
        (folder / "meta.json").unlink(missing_ok=True)  # the folder is incomplete until there is a new one
    return counts


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
