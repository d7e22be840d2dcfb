"""ConvS2S (https://arxiv.org/abs/1705.03122)."""

import math
from typing import Any

import keras

from keras_tfm import ops
from keras_tfm.common.arguments import one_of
from keras_tfm.layers import PositionalEncoding, recording, scores
from keras_tfm.layers.base import clone, options_of, unless_loading
from keras_tfm.layers.caches import fold_hypotheses
from keras_tfm.layers.dropout import Dropout
from keras_tfm.layers.masks import MaskedLayer
from keras_tfm.layers.positions import ENCODINGS
from keras_tfm.models.convolutional import HALF, Convolution, Convolutional, Encoder, zero_padding
from keras_tfm.models.encoder_decoder import Decoder
from keras_tfm.sizes import sizes


class ConvStack(MaskedLayer):
    """What encoder and decoder of ConvS2S share: positions, and gated convolutions of `units` channels.

    Args:
        units: number of channels.
        kernel_size: width of the convolutions.
        num_layers: number of convolutions.
        positions: "learned", "sinusoidal", "index" or None.
        max_length: number of learned positions.
        dropout: dropout rate of the embeddings, of the input of each convolution and of the decoder's output.
    """

    def __init__(
        self, units, *, kernel_size=3, num_layers=4, positions="learned", max_length=512, dropout=0.1, **kwargs
    ):
        super().__init__(options_of(ConvStack, locals()), **kwargs)
        one_of("positions", positions, (None, *ENCODINGS))
        policy, numbers = self.dtype_policy, range(num_layers)
        limit = max_length if positions == "learned" else None
        self.encoding = positions and PositionalEncoding(positions, max_length=limit, dtype=policy, name="positions")
        self.kept = 1 - dropout
        normal = keras.initializers.RandomNormal(stddev=math.sqrt(4 * self.kept / (kernel_size * units)))
        self.convolutions = [
            Convolution(2 * units, kernel_size, kernel_initializer=clone(normal), dtype=policy, name=f"convolution_{n}")
            for n in numbers
        ]
        self.dropouts = [Dropout(dropout, dtype=policy) for _ in ("input", *numbers, "output")]

    def dense(self, name, units, inputs):
        """A dense layer for inputs of this width, whose outputs have the variance of its inputs after dropout."""
        normal = keras.initializers.RandomNormal(stddev=math.sqrt(self.kept / inputs))
        layer = keras.layers.Dense(units, kernel_initializer=unless_loading(normal), dtype=self.dtype_policy, name=name)
        layer.build((None, None, inputs))
        return layer

    def build(self, inputs_shape):
        if self.encoding is not None:
            self.encoding.build(inputs_shape)
        self.input_dense = self.dense("input", self.units, inputs_shape[-1])
        for convolution in self.convolutions:
            convolution.build((None, None, self.units))
        self.output_dense = self.dense("output", inputs_shape[-1], self.units)

    def embed(self, x, start=0):
        """Embeddings with positions and dropout, as wide as `x`.

        They start as small as the paper's, with a standard deviation of about 0.1, or the dot products of attention
        would be too large. The decoder makes up for that at the end.
        """
        x = x * x.shape[-1] ** -0.5
        x = x if self.encoding is None else self.encoding(x, start_index=start)
        return self.dropouts[0](x)


@keras.saving.register_keras_serializable(package="keras_tfm")
class ConvEncoder(Encoder, ConvStack):
    """The encoder of ConvS2S; the arguments are those of `ConvStack`.

    Call arguments:
        inputs, mask: (batch, length, features) and (batch, length).

    Returns:
        (batch, length, 2 · features): for attention, keys and then values, which are the keys plus the embeddings.

    >>> print(ConvEncoder(units=6)(ops.ones((2, 3, 8))).shape)
    (2, 3, 16)
    """

    def run(self, x, mask):
        """The output for x whose tokens, where the mask is True, come before its padding."""
        embedded = self.embed(x)
        x = self.input_dense(embedded)
        for convolution, dropout in zip(self.convolutions, self.dropouts[1:-1], strict=True):
            x = HALF * (x + ops.glu(convolution.both_sides(zero_padding(dropout(x), mask))))
        x = self.output_dense(x)
        return ops.concatenate([x, HALF * (x + embedded)], axis=-1)

    def compute_output_shape(self, inputs_shape):
        return *inputs_shape[:-1], 2 * inputs_shape[-1]


class MultiStepAttention(keras.layers.Layer):
    """Attention of one layer of the decoder of ConvS2S, in which the embedding of a token takes part."""

    def __init__(self, dense, width, **kwargs):
        super().__init__(**kwargs)
        self.dense, self.width = dense, width

    def build(self, inputs_shape):
        self.query_dense = self.dense("query", self.width, inputs_shape[-1])
        self.output_dense = self.dense("output", inputs_shape[-1], self.width)

    def call(self, x, embedded, memory):
        """For x (rows, t, units) and embeddings (rows, t, width), rows a multiple of those of the memory."""
        queries = HALF * (self.query_dense(x) + embedded)
        keys, values = ops.split(memory["features"], 2, axis=-1)
        heads = fold_hypotheses(queries[:, :, None], keys), keys[:, :, None], values[:, :, None]
        context, weights = scores.attend(*heads, score=scores.dot, mask=memory.get("mask"))
        recording.record(self.path, weights)
        # a mean of m vectors has 1/m of their variance
        factor = ops.sqrt(ops.cast(memory["count"], "float32"))
        context = context * ops.cast(factor, context.dtype)[:, :, None, None]
        return self.output_dense(ops.reshape(context, ops.shape(queries)))


@keras.saving.register_keras_serializable(package="keras_tfm")
class ConvDecoder(Decoder, ConvStack):
    """The decoder of ConvS2S, with attention after each convolution; arguments of `ConvStack`, calls of `Decoder`."""

    def build(self, inputs_shape, memory_shape):
        super().build(inputs_shape)
        names = [f"memory_attention_{number}" for number in range(len(self.convolutions))]
        options = {"dense": self.dense, "width": inputs_shape[-1], "dtype": self.dtype_policy}
        self.memory_attentions = [MultiStepAttention(**options, name=name) for name in names]
        for layer in self.memory_attentions:
            layer.build((*inputs_shape[:-1], self.units))

    def run(self, x, cache, start):
        embedded, windows = self.embed(x, start), []
        x = self.input_dense(embedded)
        for number, convolution in enumerate(self.convolutions):
            y, window = convolution.after(cache["state"][number], self.dropouts[1 + number](x))
            y = ops.glu(y)
            y = HALF * (y + self.memory_attentions[number](y, embedded, cache["memory"]))
            x = HALF * (x + y)
            windows.append(window)
        return self.dropouts[-1](self.output_dense(x) * embedded.shape[-1] ** 0.5), windows

    def new_cache(self, batch_size, memory, mask):
        share = 1 / (2 * len(self.convolutions))  # of the gradient: the paper scales those of all attentions down
        memory = share * memory + ops.stop_gradient((1 - share) * memory)
        # integers, which no call casts to a type that rounds them
        kept = {"features": memory, "count": ops.ones_like(memory[:, :1, 0], "int32") * ops.shape(memory)[1]}
        if mask is not None:
            kept |= {"count": ops.sum(ops.cast(mask, "int32"), axis=1, keepdims=True), "mask": mask}
        return {"state": [each.empty_window(batch_size, self.units) for each in self.convolutions], "memory": kept}


@keras.saving.register_keras_serializable(package="keras_tfm")
class ConvS2S(Convolutional):
    """The encoder-decoder of https://arxiv.org/abs/1705.03122, like `Transformer` in inputs, outputs and methods.

    Unlike the paper's, its weights are not normalized.

    Args:
        vocab_size, target_vocab_size, model_dim, tied_output, dtype, name: as for `Transformer`; `model_dim` is the
            width of the embeddings.
        units: number of channels, by default `model_dim`.
        num_decoder_layers: number of convolutions of the decoder, if it differs from `num_layers`.
        **options: `kernel_size`, `num_layers`, `positions`, `max_length` and `dropout` of `ConvEncoder`.
    """

    Encoder, Decoder = ConvEncoder, ConvDecoder


def conv(vocab_size: int, size: str | None = None, **options: Any) -> ConvS2S:
    """A `ConvS2S`.

    Args:
        vocab_size: number of tokens.
        size: a name in `SIZES`; by default 4 convolutions of 512 channels for each side.
        **options: arguments of `ConvS2S`; they override those of the size.

    >>> model = conv(vocab_size=100, size="tiny", kernel_size=5)
    >>> ids = {"source": ops.ones((2, 7), dtype="int32"), "target": ops.ones((2, 5), dtype="int32")}
    >>> print(model(ids).shape)
    (2, 5, 100)
    """
    return ConvS2S(vocab_size, **sizes("conv", size) | options)
