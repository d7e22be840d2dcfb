"""What layers with a cache share: how many positions it has, and hypotheses that share the cache of one source."""

import math

from keras_tfm import ops
from keras_tfm.common.arguments import UserError


def fold_hypotheses(q, k):
    """Turns rows of queries that share one row of keys into one row: (b · n, q, h, d) → (b, n · q, h, d)."""
    rows, sources = ops.shape(q)[0], ops.shape(k)[0]
    if not ops.is_tensor(rows) and rows == sources:
        return q
    at_least_one = ops.maximum(sources, 1) if ops.is_tensor(sources) else sources
    return ops.reshape(q, (sources, rows // at_least_one * ops.shape(q)[1], *q.shape[2:]))


def capacity_of(cache):
    """Number of positions of a cache of self-attention."""
    return ops.shape(cache["slots"]["ancestors"] if cache.get("slots") else cache["k"])[2]


def ancestors_at(start, ancestors, position):
    """The slot in which each hypothesis finds each position of the cache, (b, slot, t).

    A search, whose table (b, slot, t) that is, counts from 0; here it is at the position `start`, since what precedes
    it may have been read before it began. That is the same in all slots.
    """
    if start is position:
        return ancestors
    places = ops.maximum(ops.arange(ops.shape(ancestors)[2], dtype="int32") - (start - position), 0)
    return ops.take(ancestors, places, axis=2)


def check_capacity(x, capacity, start):
    """`x` (b, t, …) if it fits into a cache of `capacity` tokens from `start` on, else an error; NaN in a graph."""
    first, count = ops.known_value(start), ops.shape(x)[1]
    if first is None or not (isinstance(capacity, int) and isinstance(count, int)):
        return ops.where(ops.logical_and(start >= 0, start + count <= capacity), x, math.nan)
    if first < 0 or first + count > capacity:
        raise UserError(
            f"`cache` must have capacity for all tokens. Received: {capacity=}, {count} tokens from {first}"
        )
    return x
