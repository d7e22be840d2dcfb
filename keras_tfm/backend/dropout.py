"""Dropout whose random numbers cost less than those of Keras."""

import keras
import numpy as np


@keras.saving.register_keras_serializable(package="keras_tfm")
class Dropout(keras.layers.Dropout):
    """Keras' layer; the rate is rounded to a multiple of 1/65,536.

    >>> layer, x = Dropout(0.25, seed=0), keras.ops.ones((100, 100))
    >>> round(float(keras.ops.mean(layer(x, training=True) == 0)), 1)
    0.2
    """

    def call(self, inputs, training=False):
        draw = {"tensorflow": _with_tensorflow, "jax": _with_jax}.get(keras.backend.backend())
        dropped = round(self.rate * 65536)
        if not training or not 0 < dropped < 65536 or self.noise_shape is not None or draw is None:
            return super().call(inputs, training=training)
        kept = draw(keras.ops.shape(inputs), self.seed_generator.next()) >= np.uint16(dropped)
        scale = np.array(65536 / (65536 - dropped), keras.backend.standardize_dtype(inputs.dtype))
        return keras.ops.where(kept, inputs * scale, 0)


def _with_tensorflow(shape, seed):
    """Random uint16 by TensorFlow's generator, which draws 32 bits at a time: each gives two numbers."""
    import tensorflow as tf

    *rest, last = shape
    even = last + last % 2
    words = tf.random.stateless_uniform((*rest, even // 2), tf.cast(seed, "int32"), None, None, "int32")
    bits = tf.reshape(tf.bitcast(words, "uint16"), (*rest, even))
    return bits if isinstance(last, int) and last == even else bits[..., :last]


def _with_jax(shape, seed):
    """Random uint16: the places of the values, mixed twice with keys made from the seed.

    XLA computes this inside the kernel that drops the values, forwards and backwards. The numbers of JAX' generators
    it writes to memory and reads again, which takes a fifth of the time of a training step on a GPU.
    """
    from jax import lax
    from jax import numpy as jnp

    first, second = _keys(*seed.astype("uint32"))
    places = jnp.zeros(shape, "uint32")
    for axis, size in enumerate(shape):
        places = places * np.uint32(size) + lax.broadcasted_iota("uint32", shape, axis)
    # Without the second `places`, keys that differ in `first` alone would give the same numbers in another order.
    mixed = _mixed(_mixed(places ^ first) + places + second)
    return (mixed >> np.uint32(16)).astype("uint16")


def _keys(seed, counter):
    """Two keys from the seed of a layer and its count of calls: a Feistel network, so no two pairs give the same keys.

    Used as they are, seeds that are close to each other would only exchange places.
    """
    seed = seed + _mixed(counter)
    counter = counter ^ _mixed(seed)
    return seed + _mixed(counter), counter


def _mixed(x):
    """MurmurHash3's last step, a bijection in which each bit of `x` changes about half of the bits."""
    x = (x ^ (x >> np.uint32(16))) * np.uint32(0x85EBCA6B)
    x = (x ^ (x >> np.uint32(13))) * np.uint32(0xC2B2AE35)
    return x ^ (x >> np.uint32(16))
