"""Layer normalization in fewer steps than Keras takes, and with a gradient of its own."""

import keras
from keras import ops


def is_plain(layer, x):
    """Whether a layer normalizes the last axis of x and has a scale and an offset."""
    axes = layer.axis if isinstance(layer.axis, (list, tuple)) else [layer.axis]
    last = [axis % len(x.shape) for axis in axes] == [len(x.shape) - 1]
    return last and layer.center and layer.scale and not layer.rms_scaling


def standardized(x, epsilon):
    """x (…, features) with mean 0 and variance 1 in float32, and the factor (…, 1) that made its variance 1."""
    wide = ops.cast(x, "float32")
    centred = wide - ops.mean(wide, axis=-1, keepdims=True)
    inverse = ops.rsqrt(ops.mean(ops.square(centred), axis=-1, keepdims=True) + epsilon)
    return centred * inverse, inverse


def layer_norm(layer, x):
    """Keras' `LayerNormalization`; on TensorFlow, which computes step by step, with a gradient of fewer steps."""
    if keras.backend.backend() != "tensorflow" or not is_plain(layer, x):
        return keras.layers.LayerNormalization.call(layer, x)
    import tensorflow as tf

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
