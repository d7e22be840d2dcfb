"""Cross-entropy with a gradient of its own, which reads the logits once and holds no second copy of them in float32."""

import keras
from keras import ops


def smoothed_crossentropy(labels, logits, smoothing=0.0):
    """−Σ q log p, where q gives a label the probability 1 − `smoothing` and spreads the rest over the vocabulary.

    Args:
        labels: ids (batch, length).
        logits: (batch, length, vocab_size).

    Returns:
        float32 (batch, length).
    """
    rows, shape = ops.reshape(logits, (-1, logits.shape[-1])), ops.shape(labels)
    compute = {"tensorflow": _with_tensorflow, "jax": _with_jax}.get(keras.backend.backend(), _plain)
    return ops.reshape(compute(ops.cast(ops.reshape(labels, (-1,)), "int32"), rows, smoothing), shape)


def _plain(labels, logits, smoothing):
    logits = ops.cast(logits, "float32")
    chosen = ops.take_along_axis(logits, labels[:, None], axis=-1)[:, 0]
    losses = ops.logsumexp(logits, axis=-1) - (1 - smoothing) * chosen
    return losses - smoothing * ops.mean(logits, axis=-1) if smoothing else losses


def _with_jax(labels, logits, smoothing):
    import jax
    from jax import numpy as jnp

    share = smoothing / logits.shape[-1]

    def forwards(logits):
        wide = logits.astype("float32")
        highest = jnp.max(wide, axis=-1, keepdims=True)
        lowered = wide - highest  # both sums below read it, in one pass
        log_total = jnp.log(jnp.sum(jnp.exp(lowered), axis=-1))
        chosen = jnp.take_along_axis(wide, labels[:, None], axis=-1) - highest
        found = log_total - (1 - smoothing) * chosen[:, 0]
        if smoothing:
            found = found - smoothing * jnp.mean(lowered, axis=-1)
        return found, (logits, highest[:, 0] + log_total)

    def gradient(saved, upstream):
        logits, normaliser = saved
        wanted = jnp.where(jnp.arange(logits.shape[-1]) == labels[:, None], 1 - smoothing + share, share)
        slope = jnp.exp(logits.astype("float32") - normaliser[:, None]) - wanted
        return ((slope * upstream[:, None]).astype(logits.dtype),)

    losses = jax.custom_vjp(lambda logits: forwards(logits)[0])
    losses.defvjp(forwards, gradient)
    return losses(logits)


def _with_tensorflow(labels, logits, smoothing):
    import tensorflow as tf

    size = logits.shape[-1]

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
        normaliser = tf.cond(
            tf.reduce_all(share > 1e-30),
            lambda: chosen - tf.math.log(share),
            lambda: tf.reduce_max(wide, axis=-1) - tf.math.log(tf.reduce_max(shares, axis=-1)),
        )
        found = normaliser - (1 - smoothing) * chosen
        found = found - smoothing * tf.reduce_mean(wide, axis=-1) if smoothing else found
        return found, lambda upstream: slope(shares, labels, upstream)

    return losses(logits)
