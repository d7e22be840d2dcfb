"""Batches of encoded pairs for `fit`: bucketed into a few shapes, or packed.

Every batch is a function of seed, epoch and index, so any batch of any epoch can be made again.
"""

import functools
import itertools
import math
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from keras_tfm.common.arguments import check, positive
from keras_tfm.data.token_files import TokenPairs
from keras_tfm.runtimes import devices
from keras_tfm.runtimes.feeding import Feed
from keras_tfm.text import END, START
from keras_tfm.text.arrays import model_inputs, shifted

BLOCK = 2**20  # pairs that are shuffled together; memory use grows with this, not with the corpus
MAX_LENGTH_PAIRS = 2**27  # combinations of source and target lengths that can be counted; 11,000 tokens on each side
OPEN_ROWS = 64  # rows that a pair can still be packed into


def choose_shapes(counts, num_shapes):
    """Shapes (source, target) that hold all pairs with little padding.

    Begins with shapes that share the tokens evenly, then moves each side of each shape as long as that saves padding.

    Args:
        counts: number of pairs by length, (longest source + 1, longest target + 1).
        num_shapes: maximum number of shapes.

    >>> counts = np.zeros((9, 9), int)
    >>> counts[2, 3], counts[8, 8] = 10, 1
    >>> choose_shapes(counts, 2)
    [(2, 3), (8, 8)]
    """
    longest = np.argwhere(counts).max(0)
    step = -(-longest.max() // 128)  # the longer the texts, the coarser the grid: this keeps the search short
    lengths, cells = np.unique(-(-np.argwhere(counts) // step), axis=0, return_inverse=True)  # (cells, 2)
    weights = np.bincount(cells.ravel(), counts[counts > 0])  # (cells,)
    longer = np.sort(lengths.max(1))
    share = np.cumsum((weights * lengths.max(1) ** 2)[np.argsort(lengths.max(1))])
    middles = {longer[np.searchsorted(share, share[-1] * n / num_shapes)] for n in range(1, num_shapes)}
    shapes = np.array([*([n, n] for n in sorted(middles - {longer[-1]})), lengths.max(0)])
    best, before = _padded_tokens(shapes, lengths, weights), None
    while best != before:
        before = best
        for number, side, move in itertools.product(range(len(shapes)), (0, 1), (-4, -2, -1, 1, 2, 4)):
            shapes[number, side] += move
            tokens = _padded_tokens(shapes, lengths, weights)
            if tokens < best:
                best = tokens
            else:
                shapes[number, side] -= move
    shapes = np.minimum(shapes * step, longest).tolist()
    return sorted({tuple(shape) for shape in shapes}, key=lambda shape: (sum(shape), shape))


def _padded_tokens(shapes, lengths, weights):
    """Number of tokens, counting padding, if each pair takes the smallest shape that holds it."""
    fits = (lengths[:, None] <= shapes).all(-1)  # (cells, shapes)
    return (weights * np.where(fits, shapes.sum(1), 10**9).min(1)).sum()


class _Epochs(Feed):
    """Batches of one epoch after the other. Subclasses define their content, block by block:

    _plan(sample, epoch, block): a list with the content of each batch; of the same length in every epoch.
    _fill(pairs, plan): inputs and labels for one item of that list.
    """

    def __init__(self, pairs, shuffle, seed, copies):
        self.samples = pairs if isinstance(pairs, (list, tuple)) else [pairs]
        check("pairs", pairs, self.samples, "`TokenPairs` or a list of them")
        self.shuffle, self.seed, self.copies = shuffle, seed, positive("copies", copies)
        self.epoch = -1  # the epoch that `fit` is in

    @functools.cached_property
    def block_steps(self):
        """Number of batches in each block of each sample."""
        return [
            [len(self._plan(sample, 0, block)) for block in range(-(-len(pairs) // BLOCK))]
            for sample, pairs in enumerate(self.samples)
        ]

    def __len__(self) -> int:
        return min(map(sum, self.block_steps))

    num_batches = property(__len__)  # for `Feed`

    def __getitem__(self, index: int) -> Any:
        return self.batch(0, index)

    def on_epoch_begin(self):
        self.epoch += 1

    def one_pass(self):
        epoch = max(self.epoch, 0)
        for index in range(len(self)):
            yield self.batch(epoch, index)

    def mean_tokens(self) -> float:
        """Mean number of labels in a batch, counting end tokens but not padding."""
        pairs = self.samples[0]
        return (len(pairs.targets.tokens) + len(pairs)) * self.copies / sum(self.block_steps[0])

    def repeat(self, first: int = 0) -> Feed:
        """An endless sequence: the batches of all epochs one after the other, starting with number `first`."""
        return _Endless(self, first)

    def batch(self, epoch: int, index: int) -> Any:
        """Batch `index` of an epoch."""
        if not 0 <= index < len(self):
            raise IndexError(f"`index` must be at least 0 and less than {len(self)}. Received: {index=}")
        sample = epoch % len(self.samples)
        steps = self.block_steps[sample]
        for block in self._rng(epoch).permutation(len(steps)) if self.shuffle else range(len(steps)):
            if index < steps[block]:
                full = self._fill(self.samples[sample], self._plan(sample, epoch, int(block))[index])
                return keras.tree.map_structure(self._shard, full)
            index -= steps[block]

    def _shard(self, rows):
        """This process' rows of a batch, after `copies`: rows i and i + batch/2 of the full batch are the same."""
        process, processes, parts = devices.batch_shard()
        extra = -len(rows) % (parts // math.gcd(parts, self.copies))  # padding, which divides evenly and weighs nothing
        rows = np.concatenate([_with_rows(rows, extra)] * self.copies)
        size = len(rows) // processes
        return rows[process * size : (process + 1) * size]

    def _members(self, sample, block, rng):
        """Indices of the pairs in a block, shuffled if `shuffle` is on."""
        order = np.arange(block * BLOCK, min((block + 1) * BLOCK, len(self.samples[sample])))
        if self.shuffle:
            rng.shuffle(order)
        return order

    def _rng(self, *numbers):
        return np.random.default_rng([self.seed, *numbers])


class _Endless(Feed):
    """The batches of `repeat`."""

    num_batches = None  # this tells Keras that there is no end

    def __init__(self, batches, first):
        self.batches, self.first = batches, first

    def one_pass(self):
        for number in itertools.count(self.first):
            yield self.batches.batch(*divmod(number, len(self.batches)))


class BucketedBatches(_Epochs):
    """Batches of pairs of similar length, in a few shapes, so that XLA compiles only a few programs.

    Each item is `{"source": (rows, S), "target": (rows, T)}, labels (rows, T)`. Sources end with the end token, targets
    begin with the start token, and labels are the targets shifted by one step. Unused rows of a batch are padding.

    Args:
        pairs: `TokenPairs`, or a list of them (random segmentations of the same texts), which take turns by epoch.
            All epochs have as many batches as the shortest one; longer ones lose a few at the end.
        batch_tokens: maximum tokens per side, counting padding but not `copies`.
        num_shapes: maximum number of shapes (S, T).
        shuffle: whether to use a new order in each epoch; False makes validation losses comparable.
        seed: seed of the order.
        copies: how often each row occurs in its batch; 2 for R-Drop.

    Under a `keras.distribution` with several processes, each gets its rows of the same whole batch, in order. If the
    devices do not divide the rows evenly, padding is added.

    Pass them to `fit` or `evaluate`, or as `validation_data`. Every pass over them is a new epoch. To start at a given
    batch, use `fit(batches.repeat(first), steps_per_epoch=…)`. `batches[index]` is a batch of epoch 0. The arguments
    `shuffle` and `class_weight` of `fit` have no effect.

    >>> import tempfile
    >>> from keras_tfm.data import encode_pairs
    >>> from keras_tfm.text import ByteTokenizer
    >>> pairs = encode_pairs([("ab", "c"), ("d", "e")] * 8, tempfile.mkdtemp(), ByteTokenizer(), verbose=0)
    >>> batches = BucketedBatches(pairs, batch_tokens=24, num_shapes=1)
    >>> inputs, labels = batches[0]
    >>> len(batches), inputs["source"].shape, inputs["target"].shape, labels.shape
    (2, (8, 3), (8, 2), (8, 2))
    """

    def __init__(
        self,
        pairs: TokenPairs | Sequence[TokenPairs],
        batch_tokens: int = 4096,
        num_shapes: int = 14,
        shuffle: bool = True,
        seed: int = 0,
        copies: int = 1,
    ):
        super().__init__(pairs, shuffle, seed, copies)
        positive("batch_tokens", batch_tokens)
        counts = _length_counts(self.samples)
        self.shapes = choose_shapes(counts, positive("num_shapes", num_shapes))
        longest = max(map(max, self.shapes))
        check("batch_tokens", batch_tokens, batch_tokens >= longest, f"at least {longest}, the longest text")
        self.rows = [_even(batch_tokens // max(shape)) for shape in self.shapes]
        source, target = np.indices(counts.shape)
        fits = [(source <= shape[0]) & (target <= shape[1]) for shape in self.shapes]
        self.smallest = np.argmax(fits, axis=0)  # number of the smallest shape that holds a pair, by its lengths

    @functools.lru_cache(maxsize=4)  # noqa: B019, a few small entries
    def _plan(self, sample, epoch, block):
        """Shape and pairs of each batch in a block: [(number of the shape, indices of pairs)]."""
        pairs, rng = self.samples[sample], self._rng(epoch, block)
        order = self._members(sample, block, rng)
        shape = self.smallest[pairs.sources.lengths(order) + 1, pairs.targets.lengths(order) + 1]
        waiting = [order[shape == number] for number in range(len(self.shapes))]
        batches = []
        for number, rows in enumerate(self.rows):
            members, later = waiting[number], range(number + 1, len(self.shapes))
            # the next shape that is at least as long on both sides
            larger = next((n for n in later if np.greater_equal(self.shapes[n], self.shapes[number]).all()), None)
            full = len(members) // rows * rows if larger else len(members)
            batches += [(number, members[first : first + rows]) for first in range(0, full, rows)]
            if larger:  # the rest goes into batches of a larger shape
                waiting[larger] = np.concatenate([waiting[larger], members[full:]])
        if self.shuffle:
            rng.shuffle(batches)
        return batches

    def _fill(self, pairs, plan):
        number, members = plan
        missing = self.rows[number] - len(members)
        source, labels = (
            _with_rows(sequences.padded(members, width, END), missing)
            for sequences, width in zip((pairs.sources, pairs.targets), self.shapes[number], strict=True)
        )
        return model_inputs(source, labels), labels


class PackedBatches(_Epochs):
    """Batches of one shape with several pairs in each row, so with hardly any padding; for models with `packed=True`.

    Each item is inputs and labels, all (rows, length). The inputs are `source` and `target` as in `BucketedBatches`,
    and for each side `…_segments`, which number the pairs of a row from 1 (0 is padding), and `…_positions`, which
    start at 0 in each pair. The same pairs share a row in all epochs; the rows are shuffled.

    Args:
        length: tokens per row, on each side.
        pairs, batch_tokens, shuffle, seed, copies: as in `BucketedBatches`.

    >>> import tempfile
    >>> from keras_tfm.data import encode_pairs
    >>> from keras_tfm.text import ByteTokenizer
    >>> pairs = encode_pairs([("ab", "c"), ("d", "ef")], tempfile.mkdtemp(), ByteTokenizer(), verbose=0)
    >>> inputs, labels = PackedBatches(pairs, batch_tokens=6, length=6, shuffle=False)[0]
    >>> for name in ("source", "source_segments", "source_positions", "target"):
    ...     print(inputs[name])
    [[101 102   2 104   2   0]]
    [[1 1 1 2 2 0]]
    [[0 1 2 0 1 0]]
    [[  1 103   1 105 106   0]]
    >>> labels
    array([[103,   2, 105, 106,   2,   0]], dtype=int32)
    """

    def __init__(
        self,
        pairs: TokenPairs | Sequence[TokenPairs],
        batch_tokens: int = 4096,
        length: int = 128,
        shuffle: bool = True,
        seed: int = 0,
        copies: int = 1,
    ):
        super().__init__(pairs, shuffle, seed, copies)
        longest = max(_length_counts(self.samples).shape) - 1
        check("length", length, positive("length", length) >= longest, f"at least {longest}, the longest text")
        enough = positive("batch_tokens", batch_tokens) >= length
        check("batch_tokens", batch_tokens, enough, f"at least `length`, {length}")
        self.shapes, self.rows = [(length, length)], [_even(batch_tokens // length)]

    @functools.lru_cache(maxsize=4)  # noqa: B019, a few small entries
    def _plan(self, sample, epoch, block):
        """Rows of each batch in a block: [[indices of pairs]]."""
        packed, (rows,) = self._packed(sample, block), self.rows
        order = np.arange(len(packed))
        if self.shuffle:
            self._rng(epoch, block).shuffle(order)
        return [[packed[row] for row in order[first : first + rows]] for first in range(0, len(order), rows)]

    @functools.lru_cache(maxsize=4)  # noqa: B019, a few small entries
    def _packed(self, sample, block):
        """Indices of the pairs in each row of a block. Each pair goes into the first open row with enough capacity."""
        pairs, members = self.samples[sample], self._members(sample, block, self._rng(block))
        needs = np.stack([sequences.lengths(members) + 1 for sequences in (pairs.sources, pairs.targets)], axis=1)
        rows, capacity = [], np.zeros((OPEN_ROWS, 2), int)  # of the last rows, which are open, on both sides
        for member, need in zip(members.tolist(), needs, strict=True):
            fits = (capacity >= need).all(1)
            place = int(fits.argmax())
            if not fits[place]:  # open a new row and close the oldest
                rows.append([])
                capacity = np.concatenate([capacity[1:], [self.shapes[0]]])
                place = OPEN_ROWS - 1
            rows[place - OPEN_ROWS].append(member)
            capacity[place] -= need
        return rows

    def _fill(self, pairs, plan):
        source, source_segments, source_positions = self._pack(pairs.sources, plan)
        labels, target_segments, target_positions = self._pack(pairs.targets, plan)
        target = np.where((target_positions == 0) & (labels > 0), START, shifted(labels)).astype("int32")
        inputs = {"source": source, "source_segments": source_segments, "source_positions": source_positions}
        inputs |= {"target": target, "target_segments": target_segments, "target_positions": target_positions}
        return inputs, labels

    def _pack(self, sequences, plan):
        """Ids, segments and positions of one side, (rows, length) each."""
        members = np.concatenate(plan)
        row = np.repeat(np.arange(len(plan)), [len(packed) for packed in plan])  # row of each pair
        first = np.searchsorted(row, row)  # number of the first pair in that row
        lengths = sequences.lengths(members) + 1
        starts = np.cumsum(lengths) - lengths
        pair = np.repeat(np.arange(len(members)), lengths)  # pair of each token
        token = np.arange(len(pair))
        places = row[pair], token - starts[first][pair]
        ids, segments, positions = np.zeros((3, *self.rows, self.shapes[0][0]), "int32")
        segments[places] = pair - first[pair] + 1
        positions[places] = position = token - starts[pair]
        ids[places] = sequences.padded(members, lengths.max(), END)[pair, position]
        return ids, segments, positions


def _with_rows(rows, extra):
    """Rows of ids, and as many extra rows of padding."""
    return np.pad(rows, ((0, extra), (0, 0))) if extra else rows


def _length_counts(samples):
    """Number of pairs by length, counting the end token: (longest source + 1, longest target + 1)."""
    counts = np.zeros((1, 1), int)
    for pairs in samples:
        for first in range(0, len(pairs), BLOCK):
            members = np.arange(first, min(first + BLOCK, len(pairs)))
            source, target = pairs.sources.lengths(members) + 1, pairs.targets.lengths(members) + 1
            size = max(counts.shape[0], source.max() + 1), max(counts.shape[1], target.max() + 1)
            rule = f"pairs whose longest texts have fewer than {MAX_LENGTH_PAIRS:,} combinations of lengths"
            check("pairs", size, math.prod(map(int, size)) < MAX_LENGTH_PAIRS, rule)
            counts = np.pad(counts, [(0, new - old) for new, old in zip(size, counts.shape, strict=True)])
            np.add.at(counts, (source, target), 1)
    return counts


def _even(rows):
    """Rounded down to a multiple of 8, for which accelerators are fastest, unless there are fewer."""
    return rows if rows < 8 else rows // 8 * 8
