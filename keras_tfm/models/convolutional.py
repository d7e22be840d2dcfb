"""What convolutional translators share.

A decoder's convolutions read only earlier tokens. For each of them the cache holds a window, the last inputs that it
will read again: zeros at first. A full pass and cached decoding are the same code: one has all tokens, the other the
next.
"""

import math
from typing import Any

import keras

from keras_tfm import ops
from keras_tfm.layers import masks
from keras_tfm.layers.base import options_of
from keras_tfm.layers.masks import MaskedLayer
from keras_tfm.models.encoder_decoder import EncoderDecoder

FARTHEST = 2**17  # tokens that a dilated convolution may span
HALF = math.sqrt(0.5)  # times the sum of two vectors: keeps the variance


def zero_padding(x, mask):
    """x (batch, length, features), with zeros where the mask is False."""
    return x if mask is None else ops.where(mask[:, :, None], x, 0)


class Convolution(keras.layers.Conv1D):
    """Keras' layer, with zeros before and after the sequence, or with a window of earlier inputs before it."""

    def __init__(self, filters, kernel_size, dilation_rate=1, **kwargs):
        super().__init__(filters, kernel_size, dilation_rate=dilation_rate, padding="valid", **kwargs)
        self.window_size = (kernel_size - 1) * dilation_rate

    def convolution_op(self, inputs, kernel):
        """One matrix product, of shifted copies side by side: all runtimes have it, with and without gaps."""
        (size,), (gap,) = self.kernel_size, self.dilation_rate
        length = ops.shape(inputs)[1] - self.window_size
        shifted = [inputs[:, n * gap : n * gap + length] for n in range(size)]
        return ops.matmul(ops.concatenate(shifted, axis=-1), ops.reshape(kernel, (-1, self.filters)))

    def both_sides(self, x):
        """(batch, length, features) → (batch, length, filters); each output reads as far back as ahead."""
        return self(ops.pad(x, [(0, 0), (self.window_size // 2, self.window_size - self.window_size // 2), (0, 0)]))

    def after(self, window, x):
        """Outputs for x (batch, t, features) after a window (batch, window_size, features), and the next window."""
        x = ops.concatenate([window, x], axis=1)
        return self(x), x[:, ops.shape(x)[1] - self.window_size :]

    def empty_window(self, batch_size, features):
        return ops.zeros((batch_size, self.window_size, features), self.compute_dtype)


class Encoder(MaskedLayer):
    """Convolutions over the tokens of a sequence; padding anywhere changes nothing."""

    def call(self, inputs, *, mask=None):
        return masks.over_tokens(lambda x: self.run(x, None if mask is None else masks.in_front(mask)), inputs, mask)


class Convolutional(EncoderDecoder):
    """What `ConvS2S` and `ByteNet` share: everything except their layers and defaults."""

    Encoder, Decoder, SHARE = None, None, 1  # `units` are by default `model_dim // SHARE`

    def __init__(
        self,
        vocab_size: int,
        target_vocab_size: int | None = None,
        model_dim: int = 512,
        units: int | None = None,
        num_decoder_layers: int | None = None,
        tied_output: bool = True,
        dtype: str | keras.DTypePolicy | None = None,
        name: str | None = None,
        **options: Any,
    ):
        encoder = self.Encoder(units or model_dim // self.SHARE, **options, dtype=dtype, name="encoder")
        options = encoder.get_options()
        arguments = options | options_of(Convolutional, locals()) | {"name": name or type(self).__name__.lower()}
        options["num_layers"] = num_decoder_layers or encoder.num_layers
        super().__init__(arguments, encoder, self.Decoder(**options, dtype=dtype, name="decoder"))
