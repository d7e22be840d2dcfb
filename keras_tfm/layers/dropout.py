"""Dropout whose random numbers cost less than those of Keras."""

import keras
import numpy as np

from keras_tfm import ops


@keras.saving.register_keras_serializable(package="keras_tfm")
class Dropout(keras.layers.Dropout):
    """Keras' layer; the rate is rounded to a multiple of 1/65,536.

    >>> layer, x = Dropout(0.25, seed=0), ops.ones((100, 100))
    >>> round(float(ops.mean(layer(x, training=True) == 0)), 1)
    0.2
    """

    def call(self, inputs, training=False):
        dropped = round(self.rate * 65536)
        if not training or not 0 < dropped < 65536 or self.noise_shape is not None:
            return super().call(inputs, training=training)
        bits = ops.random_bits(ops.shape(inputs), self.seed_generator)
        if bits is None:
            return super().call(inputs, training=training)
        scale = np.array(65536 / (65536 - dropped), keras.backend.standardize_dtype(inputs.dtype))
        return ops.where(bits >= np.uint16(dropped), inputs * scale, 0)
