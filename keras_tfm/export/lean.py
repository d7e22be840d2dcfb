"""What layers and searches compute in a LiteRT file: the same by other operators, which its runtime is quick at."""

import numpy as np
from keras import ops

from keras_tfm import kernels
from keras_tfm.export.common import tensorflow

MOST_SOUGHT = 16  # tokens, up to which finding those that are forbidden too takes less than to mark them in all logits


def lean(lookups=None, checks_room=False):
    """Kernels for one graph of one sentence without padding, by operators that LiteRT's runtime is quick at.

    Args:
        lookups: embedding layer → function of ids, in place of its own.
        checks_room: whether a cache is asked for its room, which a search always has.
    """
    return kernels.Kernels(
        joins=lambda x: True,
        product=_product,
        norm=_normalised,
        fused_attention=False,  # which moves heads to and fro
        most_probable=_most_probable,
        highest=_highest,
        take=tensorflow().gather,  # without a look for negative places
        once=_Once(),
        lookups=lookups or {},
        padded=False,
        checks_room=checks_room,
    )


class _Once:
    """What is made for a tensor of a graph, made once: all layers of a step have one position, and one mask for it."""

    def __init__(self):
        self.found = {}

    def __call__(self, key, make):
        if not ops.is_tensor(key):
            return make()
        if id(key) not in self.found:
            self.found[id(key)] = key, make()  # with the tensor, so that no other gets its id
        return self.found[id(key)][1]


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
    """`kernels.highest`, by chunks that lie together: the runtime is quick to gather rows, not single values."""
    tf, (rows, size) = tensorflow(), x.shape
    count, width = kernels.chunk_sizes(size)
    if count <= k:
        return tf.math.top_k(x, k)
    chunks = tf.reshape(kernels.padded_with_never(x, count * width), (rows, count, width))
    best = tf.math.top_k(tf.reduce_max(chunks, axis=-1), k).indices
    values, places = tf.math.top_k(tf.reshape(tf.gather(chunks, best, batch_dims=1), (rows, k * width)), k)
    return values, tf.gather(best, places // width, batch_dims=1) * width + places % width


def _most_probable(logits, k, constrain, position, written):
    """`kernels.most_probable` by fewer passes over the vocabulary: what is forbidden is found, and then left out."""
    tf, more = tensorflow(), k + len(constrain.forbidden)
    if not constrain.only_forbids or more > min(MOST_SOUGHT, logits.shape[1]):
        return kernels.most_probable(logits, k, constrain, position, written)
    values, ids = _highest(logits, more)
    # log Σ exp by the most probable token, of which the runtime's softmax takes fewer passes than `logsumexp`
    normaliser = values[:, :1] - tf.math.log(tf.gather(tf.nn.softmax(logits), ids[:, :1], batch_dims=1))
    forbidden = tf.reduce_any(ids[..., None] == np.array(constrain.forbidden, "int32"), axis=-1)
    values, places = tf.math.top_k(tf.where(forbidden, kernels.NEVER, values), k)
    return tf.maximum(values - normaliser, kernels.NEVER), tf.gather(ids, places, batch_dims=1)
