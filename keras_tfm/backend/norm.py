"""Layer normalization with a gradient of its own."""

import keras


def layer_norm(layer, x):
    """Keras' `LayerNormalization`; on TensorFlow, which computes step by step, with a gradient of fewer steps."""
    axes = layer.axis if isinstance(layer.axis, (list, tuple)) else [layer.axis]
    plain = [axis % len(x.shape) for axis in axes] == [len(x.shape) - 1] and layer.center and layer.scale
    if keras.backend.backend() != "tensorflow" or not plain or layer.rms_scaling:
        return keras.layers.LayerNormalization.call(layer, x)
    import tensorflow as tf

    @tf.custom_gradient
    def normalized(x, scale, offset):
        wide = tf.cast(x, "float32")
        centred = wide - tf.reduce_mean(wide, axis=-1, keepdims=True)
        inverse = tf.math.rsqrt(tf.reduce_mean(tf.square(centred), axis=-1, keepdims=True) + layer.epsilon)
        unit = centred * inverse

        def gradient(upstream):
            upstream = tf.cast(upstream, "float32")
            to_unit, rows = upstream * scale, list(range(len(x.shape) - 1))
            along = tf.reduce_mean(to_unit * unit, axis=-1, keepdims=True)
            to_x = (to_unit - tf.reduce_mean(to_unit, axis=-1, keepdims=True) - unit * along) * inverse
            return tf.cast(to_x, x.dtype), tf.reduce_sum(upstream * unit, rows), tf.reduce_sum(upstream, rows)

        return tf.cast(unit * scale + offset, layer.compute_dtype), gradient

    return normalized(x, tf.cast(layer.gamma, "float32"), tf.cast(layer.beta, "float32"))
