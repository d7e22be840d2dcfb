"""What layers and searches compute in one way or another, depending on what will run the program.

A program is traced inside `using(kernels)`, which holds for its thread alone; what is compiled keeps the kernels it was
traced with. Exports have kernels of their own, in their modules.
"""

import contextlib
import contextvars
import functools
import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

import keras
import numpy as np
from keras import ops

from keras_tfm.backend import compiling

NEVER = -1e9  # the logarithm of no probability at all; finite, so that differences are numbers
FEW_ROWS = 16  # up to which `_product_of_few` is faster on a processor


def most_probable(logits, k, constrain, position, written):
    """The `k` most probable tokens of those that may stand at `position`: logarithms and ids, (rows, k) each."""
    scores, ids = current().highest(constrain(logits, position, written), k)
    return ops.maximum(scores - ops.logsumexp(logits, axis=-1, keepdims=True), NEVER), ids


def highest(x, k):
    """The k highest of x (rows, v), highest first, and their places: (rows, k) each.

    They are in the k chunks with the highest maxima, so that only these are sorted.

    >>> values, places = highest(ops.convert_to_tensor([[3.0, 1.0, 4.0, 1.0, 5.0, 9.0, 2.0, 6.0]]), 2)
    >>> print(ops.convert_to_numpy(values), ops.convert_to_numpy(places))
    [[9. 6.]] [[5 7]]
    """
    rows, size = ops.shape(x)[0], x.shape[1]
    count, width = chunk_sizes(size)
    if count <= k:
        values, places = ops.top_k(x, k)
        return values, ops.cast(places, "int32")
    x = padded_with_never(x, count * width)
    maxima = current().maxima(ops.reshape(x, (rows, width, count)))  # a chunk is every count-th of a row
    best = ops.cast(ops.top_k(maxima, k)[1], "int32")  # (rows, k)
    ids = ops.expand_dims(best, 1) + np.arange(0, size, count, dtype="int32")[:, None]
    ids = ops.reshape(ids, (rows, width * k))
    values, places = ops.top_k(take_each(x, ids), k)
    return values, take_each(ids, places)


def chunk_sizes(size):
    """Into how many chunks so many values are divided, about √size and a divisor if one is near; how wide they are."""
    root = max(int(size**0.5), 1)
    near = [count for count in range(root // 2 + 1, 2 * root + 1) if size % count == 0]
    count = min(near, key=lambda count: abs(count - root), default=root)
    return count, -(-size // count)


def padded_with_never(x, size):
    """x (rows, v) → (rows, size), with -∞ behind it."""
    missing = size - x.shape[1]
    return ops.pad(x, [(0, 0), (0, missing)], constant_values=-np.inf) if missing else x


def take_each(x, places):
    """Of x (b, n, …) the entries that places (b, m) name: (b, m, …)."""
    flat = ops.reshape(x, (-1, *x.shape[2:]))
    rows = current().take(flat, flat_places(places, ops.shape(x)[1]), axis=0)
    return ops.reshape(rows, (*ops.shape(places), *x.shape[2:]))


def flat_places(places, size):
    """Places (b, m) in groups of `size` → places (b · m,) in all of them."""
    first = ops.arange(ops.shape(places)[0], dtype="int32")[:, None] * size
    return ops.reshape(ops.cast(places, "int32") + first, (-1,))


class Kernels(NamedTuple):
    """Functions, by default those that suit any program, and facts about what the program will be given."""

    joins: Callable = lambda x: False  # whether `product` is to be used for x (…, features)
    product: Callable | None = None  # (x, kernel=None, table=None) → x · kernel or x · tableᵀ
    norm: Callable = keras.layers.LayerNormalization.call  # (layer, x)
    fused_attention: bool = True  # whether `backend.fused_attention` may be used
    most_probable: Callable = most_probable
    highest: Callable = highest
    maxima: Callable = lambda x: ops.max(x, axis=1)  # of columns: (rows, n, columns) → (rows, columns)
    take: Callable = ops.take
    slice_update: Callable = ops.slice_update
    once: Callable = lambda key, make: make()  # what `make()` gives, perhaps what it gave for the same key before
    lookups: Mapping = {}  # embedding layer → function of ids, where its own is not to be used
    padded: bool = True  # whether sources may have padding
    checks_room: bool = True  # whether a cache is asked for its room, which a search always has


PLAIN = Kernels()
_current = contextvars.ContextVar("kernels", default=PLAIN)


def current():
    """The kernels of the program that this thread is tracing."""
    return _current.get()


@contextlib.contextmanager
def using(kernels):
    """What is traced or computed inside, in this thread, uses these kernels."""
    before = _current.set(kernels)
    try:
        yield
    finally:
        _current.reset(before)


def _few(x):
    """Whether x (…, features) has so few rows that `_product_of_few` is faster."""
    return None not in x.shape and math.prod(x.shape[:-1]) <= FEW_ROWS


def _product_of_few(x, kernel=None, table=None):
    """Few rows x (…, k) times a kernel (k, n) or the transposed table (n, k): (…, n).

    XLA takes a fraction of the time for table × xᵀ, in which it reads the table row by row, once. The `maximum` of the
    product is a no-op on finite values; it stops XLA from commuting the product. That of the kernel stops XLA from
    transposing the kernel at each step of a loop.
    """
    lowest = -65504 if keras.backend.standardize_dtype(x.dtype) == "float16" else -3e38
    if table is None:
        table = ops.maximum(ops.transpose(kernel), lowest)
    columns = ops.transpose(ops.reshape(x, (-1, x.shape[-1])))
    found = ops.transpose(ops.maximum(ops.matmul(table, columns), lowest))
    return ops.reshape(found, (*x.shape[:-1], table.shape[0]))


def _maxima_by_halves(x):
    """Maxima of columns; XLA is faster to compare halves than to reduce."""
    while x.shape[1] > 1:
        half = (x.shape[1] + 1) // 2
        x = ops.maximum(x[:, :half], x[:, x.shape[1] - half :])  # which may overlap
    return ops.squeeze(x, axis=1)


XLA = Kernels(joins=_few, product=_product_of_few, maxima=_maxima_by_halves)


def compiled(function, variables, locks=(), jit_compile=True):
    """`function(array, size)` with one program for each shape and size, for inference; several threads may call it.

    Args:
        function: of an array, or a tree of arrays, and an integer.
        variables: those that `function` uses; a program sees their values at the time of each call.
        locks: those of the models that own the variables, see `SequenceModel.running`; used on JAX.
        jit_compile: whether XLA compiles the program on TensorFlow: slow to start, faster afterwards.
    """
    if compiling.uses_xla(jit_compile):
        function = functools.partial(_run_for_xla, function)
    return compiling.compiled(function, variables, locks, jit_compile)


def _run_for_xla(function, *arguments):
    with using(XLA):
        return function(*arguments)
