"""ByteNet (https://arxiv.org/abs/1610.10099)."""

from typing import Any

import keras

from keras_tfm import ops
from keras_tfm.common.arguments import check
from keras_tfm.layers import masks
from keras_tfm.layers.base import as_integer, options_of
from keras_tfm.layers.blocks import NORMS
from keras_tfm.layers.dropout import Dropout
from keras_tfm.layers.masks import MaskedLayer
from keras_tfm.models.convolutional import FARTHEST, Convolution, Convolutional, Encoder, zero_padding
from keras_tfm.models.encoder_decoder import Decoder
from keras_tfm.sizes import sizes


class ResidualConvolution(keras.layers.Layer):
    """ByteNet's block: down to `units` channels, a dilated convolution, and up again, each after norm and ReLU."""

    def __init__(self, units, kernel_size, dilation, dropout, **kwargs):
        super().__init__(**kwargs)
        self.units, policy = units, self.dtype_policy
        self.norms = [NORMS["layer"](dtype=policy, name=f"norm_{number}") for number in range(3)]
        self.down = keras.layers.Dense(units, dtype=policy, name="down")
        self.convolution = Convolution(units, kernel_size, dilation, dtype=policy, name="convolution")
        self.dropout = Dropout(dropout, dtype=policy)

    def build(self, inputs_shape):
        self.up = keras.layers.Dense(inputs_shape[-1], dtype=self.dtype_policy, name="up")
        for layer in (self.norms[0], self.down):
            layer.build(inputs_shape)
        for layer in (*self.norms[1:], self.convolution, self.up):
            layer.build((None, None, self.units))

    def before(self, x):
        """What the convolution reads."""
        x = self.down(ops.relu(self.norms[0](x)))
        return ops.relu(self.norms[1](x))

    def finish(self, x, y):
        """The new stream, for the stream `x` and the output `y` of the convolution."""
        return x + self.dropout(self.up(ops.relu(self.norms[2](y))))


class ByteNetStack(MaskedLayer):
    """What encoder and decoder of ByteNet share: blocks whose dilation doubles from one to the next.

    Args:
        units: number of channels of the convolutions, in the paper half the width.
        kernel_size: width of the convolutions.
        num_layers: number of sets of blocks.
        dilations: number of blocks in a set, with dilations 1, 2, 4, …
        dropout: dropout rate of the embeddings and of the output of each block.
    """

    def __init__(self, units, *, kernel_size=3, num_layers=2, dilations=5, dropout=0.1, **kwargs):
        super().__init__(options_of(ByteNetStack, locals()), **kwargs)
        far = dilations > 16 or (kernel_size - 1) * 2**dilations > FARTHEST
        check("dilations", dilations, not far, f"so few that the widest convolution spans {FARTHEST:,} tokens at most")
        rates = [2**power for power in range(dilations)] * num_layers
        self.blocks = [
            ResidualConvolution(units, kernel_size, dilation, dropout, dtype=self.dtype_policy, name=f"block_{number}")
            for number, dilation in enumerate(rates)
        ]
        self.input_dropout = Dropout(dropout, dtype=self.dtype_policy)
        self.norm = NORMS["layer"](dtype=self.dtype_policy, name="norm")

    def build(self, inputs_shape):
        for layer in (*self.blocks, self.norm):
            layer.build(inputs_shape)


@keras.saving.register_keras_serializable(package="keras_tfm")
class ByteNetEncoder(Encoder, ByteNetStack):
    """The encoder of ByteNet, (batch, length, features) and its mask → the same shape; arguments of `ByteNetStack`.

    >>> print(ByteNetEncoder(units=4)(ops.ones((2, 3, 8))).shape)
    (2, 3, 8)
    """

    def run(self, x, mask):
        """The output for x whose tokens, where the mask is True, come before its padding."""
        x = self.input_dropout(x)
        for block in self.blocks:
            x = block.finish(x, block.convolution.both_sides(zero_padding(block.before(x), mask)))
        return self.norm(x)


@keras.saving.register_keras_serializable(package="keras_tfm")
class ByteNetDecoder(Decoder, ByteNetStack):
    """The decoder of ByteNet, without attention: token `t` reads the memory at place `t`, and those before it.

    The paper first stretches the memory to the length that it expects of the target. Here its place `t` is that of
    source token `t`, with zeros beyond the last one, and each token also reads the mean of the memory, for what lies
    further ahead. Arguments are those of `ByteNetStack`, calls those of `Decoder`.
    """

    memory_attentions = ()

    def build(self, inputs_shape, memory_shape):
        super().build(inputs_shape)
        self.memory_dense = keras.layers.Dense(inputs_shape[-1], dtype=self.dtype_policy, name="memory")
        self.summary_dense = keras.layers.Dense(inputs_shape[-1], dtype=self.dtype_policy, name="summary")
        for layer in (self.memory_dense, self.summary_dense):
            layer.build(memory_shape)

    def run(self, x, cache, start):
        x, windows = self.input_dropout(x) + self.memory_features(x, cache["memory"], start), []
        for block, window in zip(self.blocks, cache["state"], strict=True):
            y, window = block.convolution.after(window, block.before(x))
            x = block.finish(x, y)
            windows.append(window)
        return self.norm(x), windows

    def memory_features(self, x, memory, start):
        """What the tokens of x (rows, t, width) read of the memory; rows are a multiple of its sources."""
        features = memory["features"]
        (sources, length, width), (rows, t) = ops.shape(features), ops.shape(x)[:2]
        places = ops.arange(t, dtype="int32") + as_integer("cache_position", start)
        aligned = ops.take(features, ops.minimum(places, length - 1), axis=1)
        aligned = ops.where((places < length)[:, None], aligned, 0) + memory["summary"]
        shape = sources, rows // (ops.maximum(sources, 1) if ops.is_tensor(sources) else sources), t, width
        return ops.reshape(ops.broadcast_to(aligned[:, None], shape), (rows, t, width))

    def new_cache(self, batch_size, memory, mask):
        kept = {"features": self.memory_dense(memory)}
        if mask is not None:  # place `t` is that of token `t`
            features = ops.take_each(kept["features"], masks.tokens_first(mask)[0])
            kept["features"] = zero_padding(features, masks.in_front(mask))
        kept["summary"] = self.summary_dense(masks.mean_of(memory, mask))[:, None]
        windows = [block.convolution.empty_window(batch_size, block.units) for block in self.blocks]
        return {"state": windows, "memory": kept}


@keras.saving.register_keras_serializable(package="keras_tfm")
class ByteNet(Convolutional):
    """The dilated convolutions of https://arxiv.org/abs/1610.10099, like `Transformer` in inputs, outputs and methods.

    Args:
        vocab_size, target_vocab_size, model_dim, tied_output, dtype, name: as for `Transformer`.
        units: number of channels of the convolutions, by default half of `model_dim`.
        num_decoder_layers: number of sets of blocks of the decoder, if it differs from `num_layers`.
        **options: `kernel_size`, `num_layers`, `dilations` and `dropout` of `ByteNetEncoder`.
    """

    Encoder, Decoder, SHARE = ByteNetEncoder, ByteNetDecoder, 2


def bytenet(vocab_size: int, size: str | None = None, **options: Any) -> ByteNet:
    """A `ByteNet`; the arguments are like those of `conv`.

    >>> model = bytenet(vocab_size=100, size="tiny", dilations=3)
    >>> ids = {"source": ops.ones((2, 7), dtype="int32"), "target": ops.ones((2, 5), dtype="int32")}
    >>> print(model(ids).shape)
    (2, 5, 100)
    """
    return ByteNet(vocab_size, **sizes("bytenet", size) | options)
