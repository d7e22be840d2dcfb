"""LiteRT: the same results, by operators that its runtime executes quickly."""

import functools

import numpy as np
import tensorflow as tf
from keras import ops

from keras_tfm.ops import plain
from keras_tfm.ops.runtime import DEFAULT, NEVER, affine, chunk_sizes, joined_dense, masked_columns, padded_to
from keras_tfm.runtimes.saved_model import embed, layer_norm, take

MAX_CANDIDATES = 16  # up to this many, finding columns to drop takes less time than masking them


def _product(x, kernel):
    return ops.einsum("btc,cd->btd", x, kernel)  # one operator, also if the length is unknown


def _logits(x, table):
    # Without the `maximum`, a no-op, the converter would fold the scale of a norm into a second copy of the table. The
    # rows have two axes, or the runtime would copy the logits to reshape them.
    rows = ops.maximum(ops.reshape(x, (-1, x.shape[-1])), -3e38)
    return ops.reshape(ops.matmul(rows, ops.transpose(table)), (*ops.shape(x)[:-1], table.shape[0]))


def _best_k(x, k, without=()):
    """`chunked_top_k`; for a beam, those of `without` are found too, and then dropped: fewer passes over x."""
    candidates = k + len(without)
    if k == 1 or candidates > min(MAX_CANDIDATES, x.shape[1]):
        return _contiguous_top_k(masked_columns(x, without), k)
    values, ids = _contiguous_top_k(x, candidates)
    dropped = tf.reduce_any(ids[..., None] == np.array(without, "int32"), axis=-1)
    values, places = tf.math.top_k(tf.where(dropped, NEVER, values), k)
    return values, tf.gather(ids, places, batch_dims=1)


def _contiguous_top_k(x, k):
    """With chunks of contiguous columns: the runtime gathers rows quickly, single values slowly."""
    rows, size = x.shape
    count, width = chunk_sizes(size)
    if count <= k:
        return tf.math.top_k(x, k)
    chunks = tf.reshape(padded_to(x, count * width), (rows, count, width))
    best = tf.math.top_k(tf.reduce_max(chunks, axis=-1), k).indices
    values, places = tf.math.top_k(tf.reshape(tf.gather(chunks, best, batch_dims=1), (rows, k * width)), k)
    return values, tf.gather(best, places // width, batch_dims=1) * width + places % width


def _log_normalizer(logits, values, ids):
    # The runtime's softmax passes over the vocabulary fewer times than `logsumexp` does.
    shares = tf.gather(tf.nn.softmax(logits), ids[:, :1], batch_dims=1)
    return values[:, :1] - tf.math.log(tf.maximum(shares, 1e-37))


def _recurrent(layer, x, states):
    """A loop over a buffer; with Keras' own, over a list of tensors, the runtime's results vary from load to load."""
    length = ops.shape(x)[1]

    def step(place, states, outputs):
        y, states = layer.cell(tf.gather(x, place, axis=1), states)
        return place + 1, states, ops.slice_update(outputs, (0, place, 0), y[:, None])

    before = ops.convert_to_tensor(0), states, ops.zeros((ops.shape(x)[0], length, layer.units))
    _, states, outputs = ops.while_loop(lambda place, *_: place < length, step, before)
    return outputs, states


LITERT = DEFAULT._replace(
    dense=functools.partial(joined_dense, affine=functools.partial(affine, matmul=_product)),
    logits=_logits,
    attention=plain.attention,  # Keras' fused attention transposes more
    layer_norm=layer_norm,
    best_k=_best_k,
    log_normalizer=_log_normalizer,
    embed=embed,
    take=take,
    recurrent=_recurrent,
)
