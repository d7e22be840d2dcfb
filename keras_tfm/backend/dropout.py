"""Dropout that draws 16 random bits for each value, where Keras draws 32 or more."""

import keras
import numpy as np

LEVELS = 1 << 16


@keras.saving.register_keras_serializable(package="keras_tfm")
class Dropout(keras.layers.Dropout):
    """Keras' layer; the rate is rounded to a multiple of 1/65,536.

    >>> layer, x = Dropout(0.25, seed=0), keras.ops.ones((100, 100))
    >>> round(float(keras.ops.mean(layer(x, training=True) == 0)), 1)
    0.2
    """

    def call(self, inputs, training=False):
        draw = {"tensorflow": _with_tensorflow, "jax": _with_jax}.get(keras.backend.backend())
        dropped = round(self.rate * LEVELS)
        if not training or not 0 < dropped < LEVELS or self.noise_shape is not None or draw is None:
            return super().call(inputs, training=training)
        kept = draw(keras.ops.shape(inputs), self.seed_generator.next()) >= np.uint16(dropped)
        scale = np.array(LEVELS / (LEVELS - dropped), keras.backend.standardize_dtype(inputs.dtype))
        return keras.ops.where(kept, inputs * scale, 0)


def _with_tensorflow(shape, seed):
    import tensorflow as tf

    *rest, last = shape
    even = last + last % 2
    words = tf.random.stateless_uniform((*rest, even // 2), tf.cast(seed, "int32"), None, None, "int32")
    bits = tf.reshape(tf.bitcast(words, "uint16"), (*rest, even))
    return bits if isinstance(last, int) and last == even else bits[..., :last]


def _with_jax(shape, seed):
    import jax
    from jax import numpy as jnp

    key = jnp.concatenate([seed, seed]).astype("uint32")
    return jax.lax.rng_bit_generator(key, shape, "uint16")[1]
