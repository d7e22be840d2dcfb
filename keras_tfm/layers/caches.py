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


def written(cache, k, v, place):
    """Keys and values of a cache, with those of some tokens (b, t, g, d) from a place on."""
    new = {"k": k, "v": v}
    return {name: ops.slice_update(cache[name], (0, 0, place, 0), ops.swap_heads(x)) for name, x in new.items()}


def chosen_slots(start, ancestors, position):
    """Whether a hypothesis finds a position of the cache in a slot, (b, slot, t, slot).

    A search, whose table (b, slot, t) says so, counts from 0, and is at `position`. Here that is the position `start`,
    since what precedes may have been read before the search began. It is the same in all slots.
    """
    if start is not position:
        places = ops.maximum(ops.arange(ops.shape(ancestors)[2], dtype="int32") - (start - position), 0)
        ancestors = ops.take(ancestors, places, axis=2)
    return ops.expand_dims(ancestors, -1) == ops.arange(ancestors.shape[1], dtype="int32")


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
