"""Convolutional translators: ConvS2S and ByteNet.

A decoder's convolutions read only earlier tokens. For each of them the cache holds a window, the last inputs that it
will read again: zeros at first. A full pass and cached decoding are the same code: one has all tokens, the other the
next.
"""

import math

import keras

from keras_tfm import ops
from keras_tfm.common.arguments import check, one_of, positive, rate
from keras_tfm.layers import PositionalEncoding, attention, masks, recording
from keras_tfm.layers.base import fresh
from keras_tfm.layers.blocks import NORMS
from keras_tfm.layers.dropout import Dropout
from keras_tfm.layers.masks import MaskedLayer
from keras_tfm.layers.positions import ENCODINGS
from keras_tfm.models.encoder_decoder import EncoderDecoder
from keras_tfm.models.sizes import sizes

FARTHEST = 2**17  # tokens that a dilated convolution may span
HALF = math.sqrt(0.5)  # times the sum of two vectors: keeps the variance


def only_tokens(x, mask):
    """x (batch, length, features), with zeros where the mask is False."""
    return x if mask is None else ops.where(mask[:, :, None], x, 0)


class Convolution(keras.layers.Conv1D):
    """Keras' layer, with zeros before and after the sequence, or with a window of earlier inputs before it."""

    def __init__(self, filters, kernel_size, dilation_rate=1, **kwargs):
        super().__init__(filters, kernel_size, dilation_rate=dilation_rate, padding="valid", **kwargs)
        self.room = (kernel_size - 1) * dilation_rate

    def convolution_op(self, inputs, kernel):
        """One matrix product, of shifted copies side by side: all runtimes have it, with and without gaps."""
        (size,), (gap,) = self.kernel_size, self.dilation_rate
        length = ops.shape(inputs)[1] - self.room
        shifted = [inputs[:, n * gap : n * gap + length] for n in range(size)]
        return ops.matmul(ops.concatenate(shifted, axis=-1), ops.reshape(kernel, (-1, self.filters)))

    def both_sides(self, x):
        """(batch, length, features) → (batch, length, filters); each output reads as far back as ahead."""
        return self(ops.pad(x, [(0, 0), (self.room // 2, self.room - self.room // 2), (0, 0)]))

    def after(self, window, x):
        """Outputs for x (batch, t, features) after a window (batch, room, features), and the next window."""
        x = ops.concatenate([window, x], axis=1)
        return self(x), x[:, ops.shape(x)[1] - self.room :]

    def empty_window(self, batch_size, features):
        return ops.zeros((batch_size, self.room, features), self.compute_dtype)


class Encoder(MaskedLayer):
    """Convolutions over the tokens of a sequence; padding anywhere changes nothing."""

    def call(self, x, mask=None):
        return masks.over_tokens(lambda x: self.run(x, None if mask is None else masks.in_front(mask)), x, mask)


class Decoder(MaskedLayer):
    """Convolutions over the earlier tokens; padding anywhere changes nothing."""

    def call(self, x, memory=None, mask=None, memory_mask=None, cache=None, start=0, check_room=True):
        if cache is None:
            new = self.make_cache(ops.shape(x)[0], None, memory, memory_mask)
            return masks.over_tokens(lambda x: self.run(x, new, start)[0], x, mask)
        self.check_only_cache(memory=memory, mask=mask, memory_mask=memory_mask)
        x, windows = self.run(x, cache, start)
        return x, {**cache, "state": windows}


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

    def __init__(self, units, kernel_size=3, num_layers=4, positions="learned", max_length=512, dropout=0.1, **kwargs):
        super().__init__(**kwargs)
        self.units, policy = positive("units", units), self.dtype_policy
        one_of("positions", positions, (None, *ENCODINGS))
        limit = max_length if positions == "learned" else None
        self.encoding = positions and PositionalEncoding(positions, max_length=limit, dtype=policy, name="positions")
        numbers = range(positive("num_layers", num_layers))
        names = [f"convolution_{number}" for number in numbers]
        self.kept = 1 - rate("dropout", dropout)
        normal = keras.initializers.RandomNormal(
            stddev=math.sqrt(4 * self.kept / (positive("kernel_size", kernel_size) * units))
        )
        self.convolutions = [
            Convolution(2 * units, kernel_size, kernel_initializer=fresh(normal), dtype=policy, name=name)
            for name in names
        ]
        self.dropouts = [Dropout(dropout, dtype=policy) for _ in ("input", *numbers, "output")]

    def dense(self, name, units, inputs):
        """A dense layer for inputs of this width, whose outputs have the variance of its inputs after dropout."""
        normal = keras.initializers.RandomNormal(stddev=math.sqrt(self.kept / inputs))
        layer = keras.layers.Dense(units, kernel_initializer=normal, dtype=self.dtype_policy, name=name)
        layer.build((None, None, inputs))
        return layer

    def build(self, x_shape):
        if self.encoding is not None:
            self.encoding.build(x_shape)
        self.input_dense = self.dense("input", self.units, x_shape[-1])
        for convolution in self.convolutions:
            convolution.build((None, None, self.units))
        self.output_dense = self.dense("output", x_shape[-1], self.units)

    def embed(self, x, start=0):
        """Embeddings with positions and dropout, as wide as `x`.

        They start as small as the paper's, with a standard deviation of about 0.1, or the dot products of attention
        would be too large. The decoder makes up for that at the end.
        """
        x = x * x.shape[-1] ** -0.5
        x = x if self.encoding is None else self.encoding(x, start=start)
        return self.dropouts[0](x)


@keras.saving.register_keras_serializable(package="keras_tfm")
class ConvEncoder(Encoder, ConvStack):
    """The encoder of ConvS2S; the arguments are those of `ConvStack`.

    Call arguments:
        x, mask: (batch, length, features) and (batch, length).

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
            x = HALF * (x + ops.glu(convolution.both_sides(only_tokens(dropout(x), mask))))
        x = self.output_dense(x)
        return ops.concatenate([x, HALF * (x + embedded)], axis=-1)

    def compute_output_shape(self, x_shape):
        return *x_shape[:-1], 2 * x_shape[-1]


class MultiStepAttention(keras.layers.Layer):
    """Attention of one layer of the decoder of ConvS2S, in which the embedding of a token takes part."""

    def __init__(self, dense, width, **kwargs):
        super().__init__(**kwargs)
        self.dense, self.width = dense, width

    def build(self, x_shape):
        self.query_dense = self.dense("query", self.width, x_shape[-1])
        self.output_dense = self.dense("output", x_shape[-1], self.width)

    def call(self, x, embedded, memory):
        """For x (rows, t, units) and embeddings (rows, t, width), rows a multiple of those of the memory."""
        queries = HALF * (self.query_dense(x) + embedded)
        keys, values = ops.split(memory["features"], 2, axis=-1)
        heads = attention.fold_hypotheses(queries[:, :, None], keys), keys[:, :, None], values[:, :, None]
        context, weights = attention.attend(*heads, score=attention.dot, mask=memory.get("mask"))
        if recording.recording():
            recording.record(self.path, weights)
        # a mean of m vectors has 1/m of their variance
        factor = ops.sqrt(ops.cast(memory["count"], "float32"))
        context = context * ops.cast(factor, context.dtype)[:, :, None, None]
        return self.output_dense(ops.reshape(context, ops.shape(queries)))


@keras.saving.register_keras_serializable(package="keras_tfm")
class ConvDecoder(Decoder, ConvStack):
    """The decoder of ConvS2S, with attention after each convolution; the arguments are those of `ConvStack`.

    Call arguments:
        x, memory, memory_mask: (batch, length, features), the output of `ConvEncoder`, and its mask.
        mask: (batch, length); only where it is True, `x` is read. None in a call with a cache.
        cache, start: a cache from `make_cache`, instead of `memory`; `x` starts at position `start`.
        check_room: ignored: each call goes on where the last one ended.

    Returns:
        (batch, length, features), zeros where the mask is False; with a cache, a tuple of that and the new cache.

    >>> decoder, x, memory = ConvDecoder(units=6), ops.ones((1, 3, 8)), ops.ones((1, 5, 16))
    >>> y = decoder(x, memory)
    >>> y, cache = decoder(x[:, :1], cache=decoder.make_cache(batch_size=1, max_length=3, memory=memory))
    >>> y, cache = decoder(x[:, 1:], cache=cache, start=1)
    """

    def build(self, x_shape, memory_shape):
        super().build(x_shape)
        names = [f"memory_attention_{number}" for number in range(len(self.convolutions))]
        options = {"dense": self.dense, "width": x_shape[-1], "dtype": self.dtype_policy}
        self.memory_attentions = [MultiStepAttention(**options, name=name) for name in names]
        for layer in self.memory_attentions:
            layer.build((*x_shape[:-1], self.units))

    def run(self, x, cache, start):
        """The output for x, all of it tokens or with padding after them, and the new windows."""
        embedded, windows = self.embed(x, start), []
        x = self.input_dense(embedded)
        for number, convolution in enumerate(self.convolutions):
            y, window = convolution.after(cache["state"][number], self.dropouts[1 + number](x))
            y = ops.glu(y)
            y = HALF * (y + self.memory_attentions[number](y, embedded, cache["memory"]))
            x = HALF * (x + y)
            windows.append(window)
        return self.dropouts[-1](self.output_dense(x) * embedded.shape[-1] ** 0.5), windows

    def make_cache(self, batch_size, max_length, memory, memory_mask=None, masked=True):
        """The cache before the first token: a window per convolution as "state", and the "memory"."""
        self.check_built("make_cache")
        mask = masks.of_memory(memory, memory_mask)
        memory = ops.cast(memory, self.compute_dtype)  # as in a call, or a step would change the type of the cache
        share = 1 / (2 * len(self.convolutions))  # the encoder hears from each attention; less of each, as in the paper
        memory = share * memory + ops.stop_gradient((1 - share) * memory)
        # integers, which no call casts to a type that rounds them
        kept = {"features": memory, "count": ops.ones_like(memory[:, :1, 0], "int32") * ops.shape(memory)[1]}
        if mask is not None:
            kept |= {"count": ops.sum(ops.cast(mask, "int32"), axis=1, keepdims=True), "mask": mask}
        return {"state": [each.empty_window(batch_size, self.units) for each in self.convolutions], "memory": kept}


class ResidualConvolution(keras.layers.Layer):
    """ByteNet's block: down to `units` channels, a dilated convolution, and up again, each after norm and ReLU."""

    def __init__(self, units, kernel_size, dilation, dropout, **kwargs):
        super().__init__(**kwargs)
        self.units, policy = units, self.dtype_policy
        self.norms = [NORMS["layer"](dtype=policy, name=f"norm_{number}") for number in range(3)]
        self.down = keras.layers.Dense(units, dtype=policy, name="down")
        self.convolution = Convolution(units, kernel_size, dilation, dtype=policy, name="convolution")
        self.dropout = Dropout(dropout, dtype=policy)

    def build(self, x_shape):
        self.up = keras.layers.Dense(x_shape[-1], dtype=self.dtype_policy, name="up")
        for layer in (self.norms[0], self.down):
            layer.build(x_shape)
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

    def __init__(self, units, kernel_size=3, num_layers=2, dilations=5, dropout=0.1, **kwargs):
        super().__init__(**kwargs)
        positive("units", units), positive("kernel_size", kernel_size), positive("num_layers", num_layers)
        far = positive("dilations", dilations) > 16 or (kernel_size - 1) * 2**dilations > FARTHEST
        check("dilations", dilations, not far, f"so few that the widest convolution spans {FARTHEST:,} tokens at most")
        rates = [2**power for power in range(dilations)] * num_layers
        self.blocks = [
            ResidualConvolution(units, kernel_size, dilation, dropout, dtype=self.dtype_policy, name=f"block_{number}")
            for number, dilation in enumerate(rates)
        ]
        self.dropout = Dropout(rate("dropout", dropout), dtype=self.dtype_policy)
        self.norm = NORMS["layer"](dtype=self.dtype_policy, name="norm")

    def build(self, x_shape):
        for layer in (*self.blocks, self.norm):
            layer.build(x_shape)


@keras.saving.register_keras_serializable(package="keras_tfm")
class ByteNetEncoder(Encoder, ByteNetStack):
    """The encoder of ByteNet, (batch, length, features) and its mask → the same shape; arguments of `ByteNetStack`.

    >>> print(ByteNetEncoder(units=4)(ops.ones((2, 3, 8))).shape)
    (2, 3, 8)
    """

    def run(self, x, mask):
        """The output for x whose tokens, where the mask is True, come before its padding."""
        x = self.dropout(x)
        for block in self.blocks:
            x = block.finish(x, block.convolution.both_sides(only_tokens(block.before(x), mask)))
        return self.norm(x)


@keras.saving.register_keras_serializable(package="keras_tfm")
class ByteNetDecoder(Decoder, ByteNetStack):
    """The decoder of ByteNet, without attention: token `t` reads the memory at place `t`, and those before it.

    The paper first stretches the memory to the length that it expects of the target. Here its place `t` is that of
    source token `t`, with zeros beyond the last one, and each token also reads the mean of the memory, for what lies
    further ahead. The arguments are those of `ByteNetStack`.

    Call arguments:
        x, memory, memory_mask: (batch, length, features), the output of `ByteNetEncoder`, and its mask.
        mask: (batch, length); only where it is True, `x` is read. None in a call with a cache.
        cache, start: a cache from `make_cache`, instead of `memory`; `x` starts at position `start`.
        check_room: ignored: each call goes on where the last one ended.

    Returns:
        (batch, length, features), zeros where the mask is False; with a cache, a tuple of that and the new cache.

    >>> decoder, x, memory = ByteNetDecoder(units=4), ops.ones((1, 3, 8)), ops.ones((1, 5, 8))
    >>> y = decoder(x, memory)
    >>> y, cache = decoder(x[:, :1], cache=decoder.make_cache(batch_size=1, max_length=3, memory=memory))
    >>> y, cache = decoder(x[:, 1:], cache=cache, start=1)
    """

    memory_attentions = ()

    def build(self, x_shape, memory_shape):
        super().build(x_shape)
        self.memory_dense = keras.layers.Dense(x_shape[-1], dtype=self.dtype_policy, name="memory")
        self.summary_dense = keras.layers.Dense(x_shape[-1], dtype=self.dtype_policy, name="summary")
        for layer in (self.memory_dense, self.summary_dense):
            layer.build(memory_shape)

    def run(self, x, cache, start):
        """The output for x, all of it tokens or with padding after them, and the new windows."""
        x, windows = self.dropout(x) + self.beside(x, cache["memory"], start), []
        for block, window in zip(self.blocks, cache["state"], strict=True):
            y, window = block.convolution.after(window, block.before(x))
            x = block.finish(x, y)
            windows.append(window)
        return self.norm(x), windows

    def beside(self, x, memory, start):
        """What the tokens of x (rows, t, width) read of the memory of the sources; rows are a multiple of these."""
        features = memory["features"]
        (sources, length, width), (rows, t) = ops.shape(features), ops.shape(x)[:2]
        places = ops.arange(t, dtype="int32") + ops.as_integer("start", start)
        found = ops.take(features, ops.minimum(places, length - 1), axis=1)
        found = ops.where((places < length)[:, None], found, 0) + memory["summary"]
        shape = sources, rows // (ops.maximum(sources, 1) if ops.is_tensor(sources) else sources), t, width
        return ops.reshape(ops.broadcast_to(found[:, None], shape), (rows, t, width))

    def make_cache(self, batch_size, max_length, memory, memory_mask=None, masked=True):
        """The cache before the first token: a window per block as "state", and the "memory"."""
        self.check_built("make_cache")
        mask = masks.of_memory(memory, memory_mask)
        memory = ops.cast(memory, self.compute_dtype)  # as in a call, or a step would change the type of the cache
        kept = {"features": self.memory_dense(memory)}
        if mask is not None:  # place `t` is that of token `t`
            features = ops.take_each(kept["features"], masks.tokens_first(mask)[0])
            kept["features"] = only_tokens(features, masks.in_front(mask))
        kept["summary"] = self.summary_dense(masks.mean_of(memory, mask))[:, None]
        windows = [block.convolution.empty_window(batch_size, block.units) for block in self.blocks]
        return {"state": windows, "memory": kept}


class Convolutional(EncoderDecoder):
    """What `ConvS2S` and `ByteNet` share: everything except their layers and defaults."""

    Encoder, Decoder, DEFAULTS, SHARE = None, None, {}, 1  # `units` are by default `model_dim // SHARE`

    def __init__(
        self,
        vocab_size,
        target_vocab_size=None,
        model_dim=512,
        units=None,
        num_decoder_layers=None,
        tied_output=True,
        dtype=None,
        name=None,
        **options,
    ):
        options, width = self.DEFAULTS | options, units or model_dim // self.SHARE
        arguments = {"vocab_size": vocab_size, "target_vocab_size": target_vocab_size, "model_dim": model_dim}
        arguments |= {"units": units, "num_decoder_layers": num_decoder_layers, "tied_output": tied_output}
        decoder_layers = {"num_layers": num_decoder_layers} if num_decoder_layers else {}
        encoder = self.Encoder(width, **options, dtype=dtype, name="encoder")
        decoder = self.Decoder(width, **options | decoder_layers, dtype=dtype, name="decoder")
        name = name or type(self).__name__.lower()
        super().__init__(arguments | {"dtype": dtype, "name": name} | options, encoder, decoder)


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

    Encoder, Decoder, DEFAULTS = ConvEncoder, ConvDecoder, {"positions": "learned", "max_length": 512}


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


def conv(vocab_size, preset=None, **options):
    """A `ConvS2S`.

    Args:
        vocab_size: number of tokens.
        preset: a name in `PRESETS`, for sizes; by default 4 convolutions of 512 channels for each side.
        **options: arguments of `ConvS2S`; they override those of the preset.

    >>> model = conv(vocab_size=100, preset="tiny", kernel_size=5)
    >>> ids = {"source": ops.ones((2, 7), dtype="int32"), "target": ops.ones((2, 5), dtype="int32")}
    >>> print(model(ids).shape)
    (2, 5, 100)
    """
    return ConvS2S(vocab_size, **{"name": "conv"} | sizes("conv", preset) | options)


def bytenet(vocab_size, preset=None, **options):
    """A `ByteNet`; the arguments are like those of `conv`.

    >>> model = bytenet(vocab_size=100, preset="tiny", dilations=3)
    >>> ids = {"source": ops.ones((2, 7), dtype="int32"), "target": ops.ones((2, 5), dtype="int32")}
    >>> print(model(ids).shape)
    (2, 5, 100)
    """
    return ByteNet(vocab_size, **sizes("bytenet", preset) | options)
