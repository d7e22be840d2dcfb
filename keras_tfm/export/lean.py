"""Kernels for LiteRT files: the same results, by operators that its runtime executes quickly."""

import numpy as np
from keras import ops

from keras_tfm import kernels
from keras_tfm.export.common import tensorflow

MOST_SOUGHT = 16  # up to this many, finding columns to drop takes less time than masking them


def _dense(x, *layers):
    return kernels.joined_dense(_product, x, layers)


def _product(x, kernel):
    return ops.einsum("btc,cd->btd", x, kernel)  # one operator, also if the length is unknown


def _logits(x, table):
    # Without the `maximum`, a no-op, the converter would fold the scale of a norm into a second copy of the table. The
    # rows have two axes, or the runtime would copy the logits to reshape them.
    rows = ops.maximum(ops.reshape(x, (-1, x.shape[-1])), -3e38)
    return ops.reshape(ops.matmul(rows, ops.transpose(table)), (*ops.shape(x)[:-1], table.shape[0]))


def _attention(q, k, v, key_mask, causal):
    return None  # Keras' fused attention transposes more


def _norm(layer, x):
    """Keras' layer norm with fewer operators."""
    x = ops.cast(x, "float32")
    x = x - ops.mean(x, axis=-1, keepdims=True)
    scale = ops.rsqrt(ops.mean(ops.square(x), axis=-1, keepdims=True) + layer.epsilon)
    return ops.cast(x * scale * layer.gamma + layer.beta, layer.compute_dtype)


def _top_k(x, k, without=()):
    """`kernels.chunked_top_k` by fewer passes over x: those of `without` are found too, and then dropped."""
    if not len(without):
        return _contiguous_top_k(x, k)
    tf, sought = tensorflow(), k + len(without)
    if sought > min(MOST_SOUGHT, x.shape[1]):
        return _contiguous_top_k(kernels.masked_columns(x, without), k)
    values, ids = _contiguous_top_k(x, sought)
    dropped = tf.reduce_any(ids[..., None] == np.array(without, "int32"), axis=-1)
    values, places = tf.math.top_k(tf.where(dropped, kernels.NEVER, values), k)
    return values, tf.gather(ids, places, batch_dims=1)


def _contiguous_top_k(x, k):
    """With chunks of contiguous columns: the runtime gathers rows quickly, single values slowly."""
    tf, (rows, size) = tensorflow(), x.shape
    count, width = kernels.chunk_sizes(size)
    if count <= k:
        return tf.math.top_k(x, k)
    chunks = tf.reshape(kernels.padded_with_never(x, count * width), (rows, count, width))
    best = tf.math.top_k(tf.reduce_max(chunks, axis=-1), k).indices
    values, places = tf.math.top_k(tf.reshape(tf.gather(chunks, best, batch_dims=1), (rows, k * width)), k)
    return values, tf.gather(best, places // width, batch_dims=1) * width + places % width


def _log_normaliser(logits, values, ids):
    # The runtime's softmax passes over the vocabulary fewer times than `logsumexp` does.
    tf = tensorflow()
    shares = tf.gather(tf.nn.softmax(logits), ids[:, :1], batch_dims=1)
    return values[:, :1] - tf.math.log(tf.maximum(shares, 1e-37))


def _take(table, places, axis):
    return tensorflow().gather(table, places, axis=axis)  # without Keras' handling of negative places


LITERT = kernels.Kernels(_dense, _logits, _attention, _norm, _top_k, _log_normaliser, _take)
