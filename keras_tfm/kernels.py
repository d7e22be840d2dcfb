"""Computations that are done differently depending on the runtime that a program is traced for.

A program is traced inside `using(kernels)`, which affects the current thread only; a compiled program keeps the kernels
that it was traced with. The kernels of exported programs are in the modules of `keras_tfm.export`.
"""

import contextlib
import contextvars
import functools
import math
from collections.abc import Callable
from typing import NamedTuple

import keras
import numpy as np
from keras import ops

from keras_tfm.backend import compiling, fused, lookup, norm, products, tensors
from keras_tfm.backend.relu import relu

NEVER = -1e9  # stands for the logarithm of probability 0; finite, so that differences are numbers
FEW_ROWS = 16  # from 2 rows to this many, `_product_of_few` is faster on a CPU


def chunked_top_k(x, k, without=(), maxima=lambda x: ops.max(x, axis=1)):
    """The k highest values of x (rows, v), highest first, and their places: (rows, k) each.

    Rows are divided into chunks; the k highest values lie in the k chunks with the highest maxima, so only these are
    sorted. Columns in `without` are lowered by 1e9. `maxima` reduces (rows, n, columns) to (rows, columns).

    >>> values, places = chunked_top_k(ops.convert_to_tensor([[3.0, 1.0, 4.0, 1.0, 5.0, 9.0, 2.0, 6.0]]), 2)
    >>> print(ops.convert_to_numpy(values), ops.convert_to_numpy(places))
    [[9. 6.]] [[5 7]]
    """
    rows, size, x = ops.shape(x)[0], x.shape[1], masked_columns(x, without)
    count, width = chunk_sizes(size)
    if count <= k:
        values, places = ops.top_k(x, k)
        return values, ops.cast(places, "int32")
    x = padded_to(x, count * width)
    highest = maxima(ops.reshape(x, (rows, width, count)))  # chunk c holds the columns c, c + count, c + 2 count, …
    best = ops.cast(ops.top_k(highest, k)[1], "int32")  # (rows, k)
    ids = ops.add(ops.expand_dims(best, 1), np.arange(0, size, count, dtype="int32")[:, None])
    ids = ops.reshape(ids, (rows, width * k))
    values, places = ops.top_k(take_each(x, ids), k)
    return values, take_each(ids, places)


def masked_columns(x, columns):
    """x (rows, v), lowered by 1e9 in these columns."""
    mask = np.isin(np.arange(x.shape[1]), columns)
    return ops.add(x, np.where(mask, NEVER, 0).astype("float32")) if mask.any() else x


def chunk_sizes(size):
    """Number and width of the chunks for `size` values: about √size chunks, a divisor of `size` if one is near."""
    root = max(int(size**0.5), 1)
    near = [count for count in range(root // 2 + 1, 2 * root + 1) if size % count == 0]
    count = min(near, key=lambda count: abs(count - root), default=root)
    return count, -(-size // count)


def padded_to(x, size):
    """x (rows, v) → (rows, size), padded with -∞."""
    missing = size - x.shape[1]
    return ops.pad(x, [(0, 0), (0, missing)], constant_values=-np.inf) if missing else x


def take_each(x, places):
    """The entries of x (b, n, …) at places (b, m), row by row: (b, m, …)."""
    flat = ops.reshape(x, (-1, *x.shape[2:]))
    rows = current().take(flat, flat_places(places, ops.shape(x)[1]), axis=0)
    return ops.reshape(rows, (*ops.shape(places), *x.shape[2:]))


def flat_places(places, size):
    """Places (b, m), each within a group of `size` → places (b · m,) among all groups."""
    first = ops.arange(ops.shape(places)[0], dtype="int32")[:, None] * size
    return ops.reshape(ops.cast(places, "int32") + first, (-1,))


def joined_dense(product, x, layers, add_bias=ops.add):
    """Outputs of dense layers with one input (…, features), by one `product(x, kernel)`; all have biases, or none.

    They are computed in the layers' compute dtype: Keras casts weights and inputs only inside of a layer's call.
    """
    dtype = layers[0].compute_dtype
    joined = product(ops.cast(x, dtype), _joined([layer.kernel for layer in layers], (x.shape[-1], -1), dtype))
    if layers[0].bias is not None:
        joined = add_bias(joined, _joined([layer.bias for layer in layers], (-1,), dtype))
    sizes = [math.prod(layer.kernel.shape) // x.shape[-1] for layer in layers]
    parts = ops.split(joined, np.cumsum(sizes)[:-1].tolist(), axis=-1) if len(layers) > 1 else [joined]
    outputs = []
    for layer, part in zip(layers, parts, strict=True):
        shape = *ops.shape(x)[:-1], *_output_shape(layer)
        activation = relu if layer.activation is keras.activations.relu else layer.activation
        outputs.append(activation(tensors.reshape(part, shape)))
    return outputs


def _output_shape(layer):
    """(units,) or (heads, head_dim): the axes of a kernel that its layer does not contract with the features."""
    if isinstance(layer, keras.layers.Dense):
        return layer.kernel.shape[1:]
    inputs, outputs = layer.equation.split("->")
    axes = zip(inputs.split(",")[1], layer.kernel.shape, strict=True)
    return [size for axis, size in axes if axis in outputs]


def _joined(weights, shape, dtype):
    """Weights in this shape, joined along the last axis."""
    if len(weights) == 1:
        return ops.reshape(ops.cast(weights[0], dtype), shape)
    parts = (ops.reshape(ops.cast(weight, dtype), shape) for weight in weights)  # made inside of `once`
    return current().once(lambda: ops.concatenate([*parts], axis=-1))


def dense(x, *layers, add_bias=ops.add):
    """Outputs of dense layers of Keras that share their input (…, features), by one product of two matrices."""
    if any(layer.quantization_mode for layer in layers):
        return [layer(x) for layer in layers]
    return [_in_shape(x, y) for y in joined_dense(products.product, _as_rows(x), layers, add_bias)]


def logits(x, table, product=products.product_with_rows):
    """Products of x (…, features) with all rows of a table (size, features): (…, size)."""
    return _in_shape(x, product(_as_rows(x), table))


def _as_rows(x):
    """(…, features) → (n, features)."""
    return tensors.reshape(x, (math.prod(ops.shape(x)[:-1]), x.shape[-1]))


def _in_shape(x, rows):
    """Rows (n, …) of what has been computed from x (…, features), with the first axes of x."""
    return tensors.reshape(rows, (*ops.shape(x)[:-1], *rows.shape[1:]))


def recurrent(layer, x, states):
    """Runs a recurrent layer of Keras over x (b, t, features) from its states: outputs (b, t, units), new states."""
    y, *states = layer(x, initial_state=states)
    return y, states


class Kernels(NamedTuple):
    """The functions of a runtime; the defaults suit any."""

    dense: Callable = dense  # (x, *layers)
    logits: Callable = logits  # (x, table)
    attention: Callable = fused.exact_attention  # returns None if nothing is better than to hold all weights
    norm: Callable = norm.layer_norm  # (layer, x)
    top_k: Callable = chunked_top_k  # (x, k, without=())
    # log Σ exp(logits) (rows, 1), given values and ids of some of the highest logits
    log_normaliser: Callable = lambda logits, values, ids: ops.logsumexp(logits, axis=-1, keepdims=True)
    rows: Callable = lookup.rows_of  # (table, ids)
    take: Callable = ops.take  # (x, places, axis)
    slice_update: Callable = ops.slice_update  # (x, starts, updates)
    recurrent: Callable = recurrent  # (layer, x, states)
    once: Callable = lambda make: make()  # computes what depends on weights alone, for a whole loop at once
    divides_searches: bool = False  # whether rows that are finished leave a search


PLAIN = Kernels()
# For programs that have no gradient.
FORWARD = PLAIN._replace(attention=fused.fused_attention, norm=keras.layers.LayerNormalization.call)
_current = contextvars.ContextVar("kernels", default=PLAIN)


def current():
    """The kernels of the program that this thread is tracing."""
    return _current.get()


@contextlib.contextmanager
def using(kernels):
    """Whatever this thread traces or computes inside uses these kernels."""
    before = _current.set(kernels)
    try:
        yield
    finally:
        _current.reset(before)


def _few(x):
    """Whether x (rows, …, features) is a step of a few rows. For one row, or outside of a loop, it does not pay."""
    return None not in x.shape and math.prod(x.shape[1:-1]) == 1 and 1 < x.shape[0] <= FEW_ROWS


def _product_of_few(x, kernel=None, table=None):
    """A few rows x (…, k) times a kernel (k, n), or times a transposed table (n, k): (…, n).

    XLA needs a fraction of the time for table · xᵀ, where it reads the table once, row by row. The `maximum` of the
    product is a no-op on finite values; it stops XLA from commuting the product. The `maximum` of the kernel stops XLA
    from transposing it again at each step of a loop.
    """
    lowest = -65504 if keras.backend.standardize_dtype(x.dtype) == "float16" else -3e38
    if table is None:
        table = ops.maximum(ops.transpose(kernel), lowest)
    columns = ops.transpose(ops.reshape(x, (-1, x.shape[-1])))
    found = ops.transpose(ops.maximum(ops.matmul(table, columns), lowest))
    return ops.reshape(found, (*x.shape[:-1], table.shape[0]))


def _xla_dense(x, *layers):
    joins = _few(x) and not any(layer.quantization_mode for layer in layers)
    return joined_dense(_product_of_few, x, layers) if joins else PLAIN.dense(x, *layers)


def _xla_logits(x, table):
    return _product_of_few(x, table=table) if _few(x) else PLAIN.logits(x, table)


def _maxima_by_halves(x):
    """Maxima of columns; XLA compares two halves faster than it reduces."""
    while x.shape[1] > 1:
        half = (x.shape[1] + 1) // 2
        x = ops.maximum(x[:, :half], x[:, x.shape[1] - half :])  # the halves may overlap
    return ops.squeeze(x, axis=1)


XLA = FORWARD._replace(
    dense=_xla_dense,
    logits=_xla_logits,
    top_k=functools.partial(chunked_top_k, maxima=_maxima_by_halves),
    divides_searches=True,
)


def compiled(function, variables, locks=(), jit_compile=True):
    """`function(arrays, size)` with one program for each shape and size, for inference; several threads may call it.

    Args:
        function, variables: a function and the variables that it uses; each call sees their current values.
        locks: those of the models that own the variables, see `SequenceModel.running`; used on JAX.
        jit_compile: whether XLA compiles the program on TensorFlow, or optimizes it on JAX: slow to start, faster
            afterwards.
    """
    if compiling.uses_xla(jit_compile):
        function = functools.partial(_run_for_xla, function)
    return compiling.compiled(function, variables, locks, jit_compile)


def _run_for_xla(function, *arguments):
    with using(XLA):
        return function(*arguments)
