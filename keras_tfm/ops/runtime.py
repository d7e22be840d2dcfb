"""Chooses how each function of `ops` is computed, for the runtime (XLA, LiteRT, …) that a traced program will run on.

A program is traced inside `using(runtime)`, which affects the current thread only; a compiled program keeps the
functions that it was traced with. The runtimes are in `keras_tfm.runtimes`.
"""

import contextlib
import contextvars
import importlib
import math
from collections.abc import Callable
from typing import NamedTuple

import keras
import numpy as np
from keras import ops

from keras_tfm.ops import plain, xla_flags
from keras_tfm.ops.tensors import static_reshape

xla_flags.set_flags()
backend = importlib.import_module(f"keras_tfm.ops.{keras.backend.backend()}")  # chosen here only

NEVER = -1e9  # stands for the logarithm of probability 0; finite, so that differences are numbers


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
    _, size, *rest = ops.shape(x)
    rows = current().take(ops.reshape(x, (-1, *rest)), flat_places(places, size), axis=0)
    return ops.reshape(rows, (*ops.shape(places), *rest))


def flat_places(places, size):
    """Places (b, m), each within a group of `size` → places (b · m,) among all groups."""
    first = ops.arange(ops.shape(places)[0], dtype="int32")[:, None] * size
    return ops.reshape(ops.cast(places, "int32") + first, (-1,))


def affine(x, kernel, bias=None, matmul=backend.matmul, add_bias=ops.add):
    """x (…, features) times a kernel (features, n), plus a bias (n,) if there is one: (…, n)."""
    product = matmul(x, kernel)
    return product if bias is None else add_bias(product, bias)


def joined_dense(x, *layers, affine):
    """Outputs of dense layers with one input (…, features), by one `affine(x, kernel, bias)`.

    All layers have biases, or none.
    """
    joined = _product(x, layers, affine)
    sizes = [math.prod(layer.kernel.shape) // x.shape[-1] for layer in layers]
    parts = ops.split(joined, np.cumsum(sizes)[:-1].tolist(), axis=-1) if len(layers) > 1 else [joined]
    outputs = []
    for layer, part in zip(layers, parts, strict=True):
        shape = *ops.shape(x)[:-1], *_output_shape(layer)
        activation = backend.relu if layer.activation is keras.activations.relu else layer.activation
        outputs.append(activation(static_reshape(part, shape)))
    return outputs


def _product(x, layers, affine):
    """The outputs of dense layers, one behind the other, before their activations: (…, sum of their sizes).

    They are computed in the layers' compute dtype: Keras casts weights and inputs only inside of a layer's call.
    """
    dtype = layers[0].compute_dtype
    kernel = _joined([layer.kernel for layer in layers], (x.shape[-1], -1), dtype)
    bias = None if layers[0].bias is None else _joined([layer.bias for layer in layers], (-1,), dtype)
    return affine(ops.cast(x, dtype), kernel, bias)


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
    # a generator, so that casts happen inside of `hoist`
    parts = (ops.reshape(ops.cast(weight, dtype), shape) for weight in weights)
    return current().hoist(lambda: ops.concatenate([*parts], axis=-1))


def dense(x, *layers, affine=affine):
    """Outputs of dense layers of Keras that share their input (…, features), by one product of two matrices."""
    if any(layer.quantization_mode for layer in layers):
        return [layer(x) for layer in layers]
    outputs = joined_dense(_as_rows(x), *layers, affine=affine)
    return [_in_shape(x, y) for y in outputs]


def logits(x, table, matmul=backend.matmul_transposed):
    """Products of x (…, features) with all rows of a table (size, features): (…, size)."""
    return _in_shape(x, matmul(_as_rows(x), table))


def _as_rows(x):
    """(…, features) → (n, features)."""
    return static_reshape(x, (math.prod(ops.shape(x)[:-1]), x.shape[-1]))


def _in_shape(x, rows):
    """Rows (n, …) of what has been computed from x (…, features), with the first axes of x."""
    return static_reshape(rows, (*ops.shape(x)[:-1], *rows.shape[1:]))


def projected_attention(inputs, memory, layers, mask=None, key_mask=None, causal=False):
    """`attention` of inputs to a memory, through the dense layers that make queries, keys and values of them.

    Args:
        inputs, memory: (batch, query, features) and (batch, key, features).
        layers: for queries, keys and values.
        mask: None or (batch, query), False where the context is to be zero.
        key_mask, causal: as for `attention`.

    Returns:
        context (batch, query, heads, head_dim).
    """
    pairs = [(inputs, layers)] if memory is inputs else [(inputs, layers[:1]), (memory, layers[1:])]
    heads = [_output_shape(layer) for layer in layers]
    if backend.packs_attention(inputs, memory, heads, layers[0].compute_dtype):
        products = [_in_shape(x, _product(_as_rows(x), some, affine)) for x, some in pairs]
        return backend.packed_attention(
            [ops.reshape(x, (*x.shape[:2], -1, *heads[0])) for x in products], key_mask, mask, causal
        )
    q, k, v = (y for x, some in pairs for y in current().dense(x, *some))
    context = current().attention(q, k, v, key_mask, causal)
    return context if mask is None else ops.where(ops.expand_dims(mask, (2, 3)), context, 0)


def recurrent(layer, x, states):
    """Runs a recurrent layer of Keras over x (b, t, features) from its states: outputs (b, t, units), new states."""
    y, *states = layer(x, initial_state=states)
    return y, states


class Runtime(NamedTuple):
    """How the functions of `keras_tfm.ops` are computed; the defaults suit any program."""

    dense: Callable = dense
    logits: Callable = logits
    attention: Callable = backend.attention
    layer_norm: Callable = backend.layer_norm
    best_k: Callable = chunked_top_k
    # (logits, values, ids) → log Σ exp(logits), (rows, 1), given the values and ids of some of the highest logits
    log_normalizer: Callable = lambda logits, values, ids: ops.logsumexp(logits, axis=-1, keepdims=True)
    embed: Callable = backend.embed
    take: Callable = ops.take  # places are not negative
    slice_update: Callable = ops.slice_update
    recurrent: Callable = recurrent
    hoist: Callable = lambda make: make()  # computes what depends on weights only, before a loop and not in each step
    compacts_batches: bool = False  # whether a search gathers unfinished rows into smaller batches
    keeps_caches: bool = False  # whether a beam leaves keys and values in place, and reorders a table of their slots
    initializes: bool = True  # whether new weights get their initial values, and not zeros until they are loaded


DEFAULT = Runtime()
INFERENCE = DEFAULT._replace(attention=backend.short_attention, layer_norm=plain.layer_norm)  # without gradients
_current = contextvars.ContextVar("runtime", default=DEFAULT)


def current():
    """The runtime of the program that this thread is tracing."""
    return _current.get()


@contextlib.contextmanager
def setting(variable, value):
    """A context in which a context variable has another value."""
    before = variable.set(value)
    try:
        yield
    finally:
        variable.reset(before)


def using(runtime):
    """A context in which whatever this thread traces or computes uses this runtime."""
    return setting(_current, runtime)
