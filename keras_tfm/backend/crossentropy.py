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
    if keras.backend.backend() == "tensorflow":
        return _with_tensorflow(labels, logits, smoothing)
    if keras.backend.backend() == "jax":
        return _with_xla(labels, logits, smoothing)
    return _plain(labels, logits, smoothing)


def _plain(labels, logits, smoothing):
    logits = ops.cast(logits, "float32")
    chosen = ops.take_along_axis(logits, ops.cast(labels, "int32")[..., None], axis=-1)[..., 0]
    losses = ops.logsumexp(logits, axis=-1) - (1 - smoothing) * chosen
    return losses - smoothing * ops.mean(logits, axis=-1) if smoothing else losses


def _with_xla(labels, logits, smoothing):
    labels = ops.cast(labels, "int32")[..., None]

    @ops.custom_gradient
    def losses(logits):
        share = smoothing / logits.shape[-1]
        wide = ops.cast(logits, "float32")
        normaliser = ops.logsumexp(wide, axis=-1, keepdims=True)

        def gradient(upstream):
            wanted = ops.where(ops.arange(logits.shape[-1]) == labels, 1 - smoothing + share, share)
            slope = ops.exp(ops.cast(logits, "float32") - normaliser) - wanted
            return ops.cast(slope * upstream[..., None], logits.dtype)

        chosen = ops.take_along_axis(wide, labels, axis=-1)
        found = normaliser - (1 - smoothing) * chosen
        if smoothing:
            found = found - smoothing * ops.mean(wide, axis=-1, keepdims=True)
        return found[..., 0], gradient

    return losses(logits)


def _with_tensorflow(labels, logits, smoothing):
    import tensorflow as tf

    size, shape = logits.shape[-1], tf.shape(labels)
    labels = tf.reshape(tf.cast(labels, "int32"), [-1])

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

        def gradient(upstream):
            slope = (shares - smoothing / size if smoothing else shares) * upstream[:, None]
            slope = tf.tensor_scatter_nd_sub(slope, places, (1 - smoothing) * upstream)
            return tf.cast(slope, logits.dtype)

        found = normaliser - (1 - smoothing) * chosen
        return found - smoothing * tf.reduce_mean(wide, axis=-1) if smoothing else found, gradient

    return tf.reshape(losses(tf.reshape(logits, (-1, size))), shape)
