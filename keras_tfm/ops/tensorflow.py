"""TensorFlow, which computes step by step: gradients in fewer steps, and attention in blocks for long sequences."""

import tensorflow as tf
from keras import ops

from keras_tfm.ops import plain
from keras_tfm.ops.blockwise import BLOCK, blockwise_attention
from keras_tfm.ops.plain import *  # noqa: F403


def standardized(x, epsilon):
    """x (…, features) with mean 0 and variance 1 in float32, and the factor (…, 1) that made its variance 1."""
    wide = ops.cast(x, "float32")
    centred = wide - ops.mean(wide, axis=-1, keepdims=True)
    inverse = ops.rsqrt(ops.mean(ops.square(centred), axis=-1, keepdims=True) + epsilon)
    return centred * inverse, inverse


def layer_norm(layer, x):
    """With a gradient of fewer steps than that of Keras' layer."""
    if not plain.is_simple_norm(layer, x):
        return plain.layer_norm(layer, x)

    @tf.custom_gradient
    def normalized(x, scale, offset):
        unit, inverse = standardized(x, layer.epsilon)

        def gradient(upstream):
            upstream = tf.cast(upstream, "float32")
            to_unit, rows = upstream * scale, list(range(len(x.shape) - 1))
            along = tf.reduce_mean(to_unit * unit, axis=-1, keepdims=True)
            to_x = (to_unit - tf.reduce_mean(to_unit, axis=-1, keepdims=True) - unit * along) * inverse
            return tf.cast(to_x, x.dtype), tf.reduce_sum(upstream * unit, rows), tf.reduce_sum(upstream, rows)

        return tf.cast(unit * scale + offset, layer.compute_dtype), gradient

    return normalized(x, tf.cast(layer.gamma, "float32"), tf.cast(layer.beta, "float32"))


def crossentropy(labels, logits, smoothing=0.0):
    """Holds no second copy of the logits in float32."""
    shape, size = ops.shape(labels), logits.shape[-1]
    labels, logits = tf.reshape(tf.cast(labels, "int32"), [-1]), tf.reshape(logits, (-1, size))

    @tf.function(jit_compile=True, autograph=False)  # one pass over the logits instead of three
    def slope(shares, labels, upstream):
        share = smoothing / size
        wanted = tf.where(tf.range(size) == labels[:, None], 1 - smoothing + share, share)
        return tf.cast((shares - wanted) * upstream[:, None], logits.dtype)

    @tf.custom_gradient
    def losses(logits):
        places = tf.stack([tf.range(tf.shape(labels)[0]), labels], axis=1)
        wide = tf.cast(logits, "float32")
        shares = tf.nn.softmax(wide)  # many times as fast as TensorFlow's kernels for cross-entropy
        chosen, share = tf.gather_nd(wide, places), tf.gather_nd(shares, places)
        normalizer = tf.cond(
            tf.reduce_all(share > 1e-30),
            lambda: chosen - tf.math.log(share),
            lambda: tf.reduce_max(wide, axis=-1) - tf.math.log(tf.reduce_max(shares, axis=-1)),
        )
        loss = normalizer - (1 - smoothing) * chosen
        loss = loss - smoothing * tf.reduce_mean(wide, axis=-1) if smoothing else loss
        return loss, lambda upstream: slope(shares, labels, upstream)

    return tf.reshape(losses(logits), shape)


def attention(q, k, v, key_mask=None, causal=False):
    """In blocks of queries if there are, or may be, many."""
    length = q.shape[1]
    if length is None or length > 2 * BLOCK:
        return blockwise_attention(q, k, v, key_mask, causal)
    return short_attention(q, k, v, key_mask, causal)


def short_attention(q, k, v, key_mask=None, causal=False):
    if key_mask is None and k.shape[2] == 1:  # Keras does not broadcast a single head here
        k, v = (ops.repeat(x, q.shape[2], axis=2) for x in (k, v))
    return plain.keras_attention(q, k, v, key_mask, causal)


def random_bits(shape, seed_generator):
    """By TensorFlow's generator, which draws 32 bits at a time: each gives two numbers."""
    *rest, last = shape
    even = last + last % 2
    seed = tf.cast(seed_generator.next(), "int32")
    words = tf.random.stateless_uniform((*rest, even // 2), seed, None, None, "int32")
    bits = tf.reshape(tf.bitcast(words, "uint16"), (*rest, even))
    return bits if isinstance(last, int) and last == even else bits[..., :last]
