"""What layers and searches compute in a LiteRT file: the same by other operators, which its runtime is quick at."""

import contextlib
import functools

import keras
import numpy as np
from keras import ops

from keras_tfm import backend, decoding
from keras_tfm.export.common import replaced, tensorflow
from keras_tfm.layers import MultiHeadSelfAttention, masks
from keras_tfm.models.transformer import TokenEmbedding

MOST_SOUGHT = 16  # tokens, up to which finding those that are forbidden too takes less than to mark them in all logits


@contextlib.contextmanager
def lean(check_room=False):
    """For a while, graphs are traced for one sentence without padding, by operators that LiteRT's runtime is quick at.

    All of the process has these other functions meanwhile: no other thread may use the layers.

    Args:
        check_room: whether a cache is asked for its room, which a search always has.
    """
    others = [
        (TokenEmbedding, "compute_mask", lambda *_: None),
        (masks, "causal", _one_for_all(masks.causal)),
        (backend, "fused_attention", lambda *_: None),  # which moves heads to and fro
        (backend, "few", lambda x: True),  # so that products are those of the next line
        (backend, "product_of_few", _product),
        (keras.layers.LayerNormalization, "call", _normalised),
        (decoding, "highest", _highest),
        (decoding, "most_probable", functools.partial(_most_probable, decoding.most_probable)),
        (ops, "take", tensorflow().gather),  # without a look for negative places
    ]
    if not check_room:
        others.append((MultiHeadSelfAttention, "in_room", lambda self, q, *_: q))
    with contextlib.ExitStack() as stack:
        for other in others:
            stack.enter_context(replaced(*other))
        yield


def _one_for_all(causal):
    """One mask for all layers of a step: they have one position, one query, and caches of the same room."""
    found = {}

    def causal_once(query_len, key_len, start=0):
        if not ops.is_tensor(start):
            return causal(query_len, key_len, start)
        if id(start) not in found:
            found[id(start)] = start, causal(query_len, key_len, start)
        return found[id(start)][1]

    return causal_once


def _product(x, kernel=None, table=None):
    """x (b, t, k) times a kernel (k, n) or a transposed table (n, k), as one operator."""
    if table is None:
        return ops.einsum("btc,cd->btd", x, kernel)
    # But for the maximum, the converter would write a second table, times the scale of a norm. Rows of two axes, or the
    # runtime would copy the logits to reshape them.
    rows = ops.maximum(ops.reshape(x, (-1, x.shape[-1])), -3e38)
    return ops.reshape(ops.matmul(rows, ops.transpose(table)), (*ops.shape(x)[:-1], table.shape[0]))


def _normalised(layer, x):
    """Keras' layer norm by fewer operators."""
    x = ops.cast(x, "float32")
    x = x - ops.mean(x, axis=-1, keepdims=True)
    scale = ops.rsqrt(ops.mean(ops.square(x), axis=-1, keepdims=True) + layer.epsilon)
    return ops.cast(x * scale * layer.gamma + layer.beta, layer.compute_dtype)


def _highest(x, k):
    """`decoding.highest`, by chunks that lie together: the runtime is quick to gather rows, not single values."""
    tf, (rows, size) = tensorflow(), x.shape
    count, width = decoding.chunk_sizes(size)
    if count <= k:
        return tf.math.top_k(x, k)
    chunks = tf.reshape(decoding.padded_with_never(x, count * width), (rows, count, width))
    best = tf.math.top_k(tf.reduce_max(chunks, axis=-1), k).indices
    values, places = tf.math.top_k(tf.reshape(tf.gather(chunks, best, batch_dims=1), (rows, k * width)), k)
    return values, tf.gather(best, places // width, batch_dims=1) * width + places % width


def _most_probable(most_probable, logits, k, constrain, position, written):
    """`decoding.most_probable` by fewer passes over the vocabulary: what is forbidden is found, and then left out."""
    tf, more = tensorflow(), k + len(constrain.forbidden)
    if not constrain.only_forbids or more > min(MOST_SOUGHT, logits.shape[1]):
        return most_probable(logits, k, constrain, position, written)
    values, ids = _highest(logits, more)
    # log Σ exp by the most probable token, of which the runtime's softmax takes fewer passes than `logsumexp`
    normaliser = values[:, :1] - tf.math.log(tf.gather(tf.nn.softmax(logits), ids[:, :1], batch_dims=1))
    forbidden = tf.reduce_any(ids[..., None] == np.array(constrain.forbidden, "int32"), axis=-1)
    values, places = tf.math.top_k(tf.where(forbidden, decoding.NEVER, values), k)
    return tf.maximum(values - normaliser, decoding.NEVER), tf.gather(ids, places, batch_dims=1)
