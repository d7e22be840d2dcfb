"""Kernels for LiteRT files: the same results, by operators that its runtime executes quickly."""

from keras import ops

from keras_tfm import kernels
from keras_tfm.export.common import tensorflow


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


def _top_k(x, k):
    """`kernels.chunked_top_k` with contiguous chunks: the runtime gathers rows quickly, single values slowly."""
    tf, (rows, size) = tensorflow(), x.shape
    count, width = kernels.chunk_sizes(size)
    if count <= k:
        return tf.math.top_k(x, k)
    chunks = tf.reshape(kernels.padded_with_never(x, count * width), (rows, count, width))
    best = tf.math.top_k(tf.reduce_max(chunks, axis=-1), k).indices
    values, places = tf.math.top_k(tf.reshape(tf.gather(chunks, best, batch_dims=1), (rows, k * width)), k)
    return values, tf.gather(best, places // width, batch_dims=1) * width + places % width


def _log_normaliser(logits, highest, ids):
    # The runtime's softmax passes over the vocabulary fewer times than `logsumexp` does.
    tf = tensorflow()
    return highest - tf.math.log(tf.gather(tf.nn.softmax(logits), ids, batch_dims=1))


def _take(table, places, axis):
    return tensorflow().gather(table, places, axis=axis)  # without Keras' handling of negative places


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


LITERT = kernels.Kernels(_dense, _logits, _attention, _norm, _top_k, _log_normaliser, _take, padded=False)


def lean(lookups=None, checks_room=False):
    return LITERT._replace(once=_Once(), lookups=lookups or {}, checks_room=checks_room)
