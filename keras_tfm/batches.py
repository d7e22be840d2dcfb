"""Batches of encoded pairs for `fit`, of few shapes or packed.

Everything here is a function of seed, epoch and index: any batch of any epoch can be had again.
"""

import functools
import itertools
import math

import keras
import numpy as np

from keras_tfm.arguments import positive
from keras_tfm.backend.feeding import Feed
from keras_tfm.text import END, START

BLOCK = 2**20  # pairs that are shuffled together; memory grows with this, not with the corpus
OPEN_ROWS = 64  # rows that a pair may still be packed into


def choose_shapes(counts, num_shapes):
    """Shapes (source, target) that cover all pairs with little padding.

    Evenly filled to begin with; then each side of each shape moves as long as that saves padding.

    Args:
        counts: of pairs by length, (longest source + 1, longest target + 1).
        num_shapes: how many shapes at the most.

    >>> counts = np.zeros((9, 9), int)
    >>> counts[2, 3], counts[8, 8] = 10, 1
    >>> choose_shapes(counts, 2)
    [(2, 3), (8, 8)]
    """
    longest = np.argwhere(counts).max(0)
    step = -(-longest.max() // 128)  # the longer the texts, the more coarsely: time stays short
    cells = -(-np.argwhere(counts) // step)
    coarse = np.zeros(cells.max(0) + 1, int)
    np.add.at(coarse, tuple(cells.T), counts[counts > 0])
    lengths, weights = np.argwhere(coarse), coarse[coarse > 0]  # (cells, 2), (cells,)
    longer = lengths.max(1)
    order = np.argsort(longer)
    share = np.cumsum((weights * longer**2)[order])
    share = share / share[-1]
    middles = [longer[order][np.searchsorted(share, n / num_shapes)] for n in range(1, num_shapes)]
    shapes = np.array([*([n, n] for n in sorted(set(middles) - {longer.max()})), lengths.max(0)])

    def padded():
        """All tokens, padding included, if each pair takes the smallest shape that holds it."""
        fits = (lengths[:, None] <= shapes).all(-1)  # (cells, shapes)
        return (weights * np.where(fits, shapes.sum(1), 10**9).min(1)).sum()

    best, before = padded(), None
    while best != before:
        before = best
        for number, side, move in itertools.product(range(len(shapes)), (0, 1), (-4, -2, -1, 1, 2, 4)):
            shapes[number, side] += move
            tokens = padded()
            if tokens < best:
                best = tokens
            else:
                shapes[number, side] -= move
    shapes = np.minimum(shapes * step, longest).tolist()
    return sorted({tuple(shape) for shape in shapes}, key=lambda shape: (sum(shape), shape))


class _Epochs(Feed):
    """Batches of epoch after epoch; which pairs are in them and how they look is for subclasses to say, block by block:

    _plan(sample, epoch, block): a list with what each batch of a block holds; as long in every epoch.
    _fill(pairs, plan): inputs and labels, of one entry of that list.
    """

    def __init__(self, pairs, shuffle, seed, copies, worker, num_workers):
        self.samples = pairs if isinstance(pairs, (list, tuple)) else [pairs]
        if not self.samples:
            raise ValueError(f"`pairs` must be `TokenPairs` or a list of them. Received: {pairs=}")
        self.shuffle, self.seed, self.copies = shuffle, seed, positive("copies", copies)
        self.worker, self.num_workers = worker, positive("num_workers", num_workers)
        if worker not in range(num_workers):
            raise ValueError(f"`worker` must be one of 0 … num_workers - 1. Received: {worker=}, {num_workers=}")
        self.epoch = -1  # that `fit` is in

    @functools.cached_property
    def block_steps(self):
        """How many batches each block of each sample gives."""
        return [
            [len(self._plan(sample, 0, block)) for block in range(-(-len(pairs) // BLOCK))]
            for sample, pairs in enumerate(self.samples)
        ]

    def __len__(self):
        return min(map(sum, self.block_steps))

    def __getitem__(self, index):
        return self.batch(0, index)

    @property
    def num_batches(self):
        return len(self)

    def on_epoch_begin(self):
        self.epoch += 1

    def one_pass(self):
        epoch = max(self.epoch, 0)
        for index in range(len(self)):
            yield self.batch(epoch, index)

    def mean_tokens(self):
        """Labels of a batch, the end tokens among them, on the average."""
        pairs = self.samples[0]
        return (len(pairs.targets.tokens) + len(pairs)) * self.copies / sum(self.block_steps[0])

    def repeat(self, first=0):
        """The batches of all epochs, one after the other and without end, from number `first` on."""
        return _Endless(self, first)

    def batch(self, epoch, index):
        """Batch `index` of an epoch."""
        if not 0 <= index < len(self):
            raise IndexError(f"`index` must be at least 0 and less than {len(self)}. Received: {index=}")
        sample = epoch % len(self.samples)
        steps = self.block_steps[sample]
        for block in self._rng(epoch).permutation(len(steps)) if self.shuffle else range(len(steps)):
            if index < steps[block]:
                whole = self._fill(self.samples[sample], self._plan(sample, epoch, int(block))[index])
                return keras.tree.map_structure(self._share, whole)
            index -= steps[block]

    def _share(self, rows):
        """This worker's rows of a batch; cut after copying, so that row i and row i + batch/2 of all are the same."""
        extra = -len(rows) % (self.num_workers // math.gcd(self.num_workers, self.copies))  # until it divides evenly
        rows = np.concatenate([np.pad(rows, ((0, extra), (0, 0)))] * self.copies)
        size = len(rows) // self.num_workers
        return rows[self.worker * size : (self.worker + 1) * size]

    def _members(self, sample, block, rng):
        """Indices of the pairs of a block, in a random order if there is to be one."""
        order = np.arange(block * BLOCK, min((block + 1) * BLOCK, len(self.samples[sample])))
        if self.shuffle:
            rng.shuffle(order)
        return order

    def _rng(self, *numbers):
        return np.random.default_rng([self.seed, *numbers])


class _Endless(Feed):
    """Batches, epoch after epoch."""

    num_batches = None  # Keras' word for: without end

    def __init__(self, batches, first):
        self.batches, self.first = batches, first

    def one_pass(self):
        for number in itertools.count(self.first):
            yield self.batches.batch(*divmod(number, len(self.batches)))


class BucketedBatches(_Epochs):
    """Batches of pairs of like length, in few shapes: what XLA compiles is a handful of programs.

    Each item is `{"source": (rows, S), "target": (rows, T)}, labels (rows, T)`: sources end with the end token, targets
    begin with the start token, labels are the targets one step ahead. Rows left over in the last batch are padding.

    Args:
        pairs: `TokenPairs`, or a list of them (several samples of the same texts), taken in turn by epoch; all epochs
            have as many batches as the shortest, at the cost of a few at the end of others.
        batch_tokens: maximum tokens per side, counting padding but not `copies`.
        num_shapes: maximum number of shapes (S, T).
        shuffle: whether each epoch has an order of its own; for validation, False gives comparable numbers.
        seed: other seeds give other orders.
        copies: how many times each row occurs in its batch; 2 for R-Drop.
        worker, num_workers: for training in several processes, each of which gets an equal share of the rows of every
            batch, in order. Padding rows are added if the rows do not divide evenly.

    Pass them to `fit` or `evaluate`, also as `validation_data`. Every pass over them is a new epoch; to start or resume
    at a given batch, use `fit(batches.repeat(first), steps_per_epoch=…)`. `batches[index]` is a batch of epoch 0. The
    arguments `shuffle` and `class_weight` of `fit` have no effect.

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
        pairs,
        batch_tokens=4096,
        num_shapes=14,
        shuffle=True,
        seed=0,
        copies=1,
        worker=0,
        num_workers=1,
    ):
        super().__init__(pairs, shuffle, seed, copies, worker, num_workers)
        positive("batch_tokens", batch_tokens)
        counts = _length_counts(self.samples)
        self.shapes = choose_shapes(counts, positive("num_shapes", num_shapes))
        longest = max(map(max, self.shapes))
        if longest > batch_tokens:
            raise ValueError(f"`batch_tokens` must hold the longest text, of {longest}. Received: {batch_tokens=}")
        self.rows = [_even(batch_tokens // max(shape)) for shape in self.shapes]
        self.fitting = _fitting(self.shapes, counts.shape)

    @functools.lru_cache(maxsize=4)  # noqa: B019, few and small
    def _plan(self, sample, epoch, block):
        """Shape and members of each batch of a block: [(shape number, indices of pairs)]."""
        pairs, rng = self.samples[sample], self._rng(epoch, block)
        order = self._members(sample, block, rng)
        shape = self.fitting[pairs.sources.lengths(order) + 1, pairs.targets.lengths(order) + 1]
        waiting = [order[shape == number] for number in range(len(self.shapes))]
        batches = []
        for number, rows in enumerate(self.rows):
            members = waiting[number]
            larger = self._larger(number)
            full = len(members) // rows * rows if larger else len(members)
            batches += [(number, members[first : first + rows]) for first in range(0, full, rows)]
            if larger:  # those left over wait for a batch of a larger shape
                waiting[larger] = np.concatenate([waiting[larger], members[full:]])
        if self.shuffle:
            rng.shuffle(batches)
        return batches

    def _larger(self, number):
        """Number of the next shape that also holds what shape `number` holds, or None."""
        later = range(number + 1, len(self.shapes))
        return next((n for n in later if np.greater_equal(self.shapes[n], self.shapes[number]).all()), None)

    def _fill(self, pairs, plan):
        number, members = plan
        missing = self.rows[number] - len(members)
        source, labels = (
            np.pad(_with_end(sequences, members, width), ((0, missing), (0, 0)))
            for sequences, width in zip((pairs.sources, pairs.targets), self.shapes[number], strict=True)
        )
        return model_inputs(source, labels), labels


class PackedBatches(_Epochs):
    """Batches of one shape, with several pairs in each row: hardly any padding, for models with `packed=True`.

    Each item is inputs and labels, all (rows, length). The inputs are `source` and `target` as in `BucketedBatches`,
    and for both `…_segments`, which count the pairs of a row from 1 on and are 0 on padding, and `…_positions`, which
    begin with 0 in each pair. Which pairs share a row is the same in all epochs; rows are shuffled.

    Args:
        length: tokens of a row, on each side.
        pairs, batch_tokens, shuffle, seed, copies, worker, num_workers: as in `BucketedBatches`.

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

    def __init__(self, pairs, batch_tokens=4096, length=128, shuffle=True, seed=0, copies=1, worker=0, num_workers=1):
        super().__init__(pairs, shuffle, seed, copies, worker, num_workers)
        longest = max(_length_counts(self.samples).shape) - 1
        if positive("length", length) < longest:
            raise ValueError(f"`length` must hold the longest text, of {longest} tokens. Received: {length=}")
        if positive("batch_tokens", batch_tokens) < length:
            raise ValueError(f"`batch_tokens` must hold a row of {length} tokens. Received: {batch_tokens=}")
        self.shapes, self.rows = [(length, length)], [_even(batch_tokens // length)]

    @functools.lru_cache(maxsize=4)  # noqa: B019, few and small
    def _plan(self, sample, epoch, block):
        """Rows of each batch of a block: [[indices of pairs]]."""
        packed, (rows,) = self._packed(sample, block), self.rows
        order = np.arange(len(packed))
        if self.shuffle:
            self._rng(epoch, block).shuffle(order)
        return [[packed[row] for row in order[first : first + rows]] for first in range(0, len(order), rows)]

    @functools.lru_cache(maxsize=4)  # noqa: B019, few and small
    def _packed(self, sample, block):
        """Indices of the pairs of each row of a block: each pair goes into the first open row with room for it."""
        pairs, members = self.samples[sample], self._members(sample, block, self._rng(block))
        needs = np.stack([sequences.lengths(members) + 1 for sequences in (pairs.sources, pairs.targets)], axis=1)
        rows, room = [], np.zeros((OPEN_ROWS, 2), int)  # of the open rows, which are the last ones
        for member, need in zip(members.tolist(), needs, strict=True):
            fits = (room >= need).all(1)
            place = int(fits.argmax())
            if not fits[place]:  # then the oldest is closed
                rows.append([])
                room = np.concatenate([room[1:], [self.shapes[0]]])
                place = OPEN_ROWS - 1
            rows[place - OPEN_ROWS].append(member)
            room[place] -= need
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
        row = np.repeat(np.arange(len(plan)), [len(packed) for packed in plan])  # of each pair
        first = np.searchsorted(row, row)  # number of the first pair in its row
        lengths = sequences.lengths(members) + 1
        starts = np.cumsum(lengths) - lengths
        positions = np.arange(lengths.max())
        real = positions < lengths[:, None]  # (pairs, longest)
        places = np.broadcast_to(row[:, None], real.shape)[real], ((starts - starts[first])[:, None] + positions)[real]
        ids, segments, offsets = np.zeros((3, *self.rows, self.shapes[0][0]), "int32")
        ids[places] = _with_end(sequences, members, len(positions))[real]
        segments[places] = np.broadcast_to((np.arange(len(row)) - first + 1)[:, None], real.shape)[real]
        offsets[places] = np.broadcast_to(positions, real.shape)[real]
        return ids, segments, offsets


def shifted(labels):
    """What the decoder sees: the start token, then the labels but the last, padding where they are padding.

    >>> shifted(np.array([[7, 8, 2, 0]]))
    array([[1, 7, 8, 0]], dtype=int32)
    """
    target = np.pad(labels[:, :-1], ((0, 0), (1, 0)), constant_values=START)
    return np.where(labels > 0, target, 0).astype("int32")


def model_inputs(source, labels, packed=False):
    """What a model sees of ids (rows, source length) and labels (rows, target length), with one pair in each row.

    Args:
        packed: whether the model has `packed=True`, and so wants segments and positions too.

    >>> inputs = model_inputs(np.array([[7, 2, 0]]), np.array([[8, 2]]), packed=True)
    >>> inputs["target"], inputs["source_segments"], inputs["source_positions"]
    (array([[1, 8]], dtype=int32), array([[1, 1, 0]], dtype=int32), array([[0, 1, 0]], dtype=int32))
    """
    inputs = {"source": source, "target": shifted(labels)}
    for side, ids in list(inputs.items()) if packed else ():
        segments = (ids > 0).astype("int32")
        inputs |= {f"{side}_segments": segments, f"{side}_positions": segments * np.arange(ids.shape[1], dtype="int32")}
    return inputs


def padded(rows, width, count=None):
    """Lists of ids → (count or as many as there are, width): each with its end token, then padding.

    >>> padded([[7, 8], [9]], width=4)
    array([[7, 8, 2, 0],
           [9, 2, 0, 0]], dtype=int32)
    """
    ids = np.zeros((count or len(rows), width), "int32")
    for number, row in enumerate(rows):
        ids[number, : len(row) + 1] = [*row, END]
    return ids


def _with_end(sequences, members, width):
    """Rows of ids, each with the end token behind it."""
    rows = sequences.padded(members, width)
    rows[np.arange(len(members)), sequences.lengths(members)] = END
    return rows


def _length_counts(samples):
    """Counts of pairs by length with the end token, (longest source + 1, longest target + 1)."""
    counts = np.zeros((1, 1), int)
    for pairs in samples:
        for first in range(0, len(pairs), BLOCK):
            members = np.arange(first, min(first + BLOCK, len(pairs)))
            source, target = pairs.sources.lengths(members) + 1, pairs.targets.lengths(members) + 1
            size = max(counts.shape[0], source.max() + 1), max(counts.shape[1], target.max() + 1)
            counts = np.pad(counts, [(0, new - old) for new, old in zip(size, counts.shape, strict=True)])
            np.add.at(counts, (source, target), 1)
    return counts


def _fitting(shapes, size):
    """Number of the first shape that holds a pair, by length: (longest source + 1, longest target + 1)."""
    source, target = np.indices(size)
    fits = [(source <= shape[0]) & (target <= shape[1]) for shape in shapes]
    return np.argmax(fits, axis=0)


def _even(rows):
    """A number of rows that accelerators like: a multiple of 8, where there are so many."""
    return rows if rows < 8 else rows // 8 * 8


def padding_share(batches):
    """Share of the tokens of an epoch that are padding, on both sides together."""
    total = padding = 0
    for index in range(len(batches)):
        inputs, labels = batches.batch(0, index)
        for ids in (inputs["source"], labels):
            total, padding = total + ids.size, padding + int((ids == 0).sum())
    return padding / total
