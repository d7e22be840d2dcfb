"""Recurrent translators: an encoder and a decoder of LSTMs or GRUs, with a fixed-size bottleneck or with attention.

A full pass of a decoder and cached decoding are the same code: one starts from the state after the source, the other
from that after the last token. Layers that wait for no attention run by the fused kernels that Keras has for them.
"""

import keras

from keras_tfm import ops
from keras_tfm.common.arguments import check, one_of
from keras_tfm.layers import MultiHeadAttention, masks, recording
from keras_tfm.layers.base import options_of
from keras_tfm.layers.dropout import Dropout
from keras_tfm.layers.masks import MaskedLayer
from keras_tfm.models.encoder_decoder import Decoder
from keras_tfm.ops import take_each

CELLS = {"lstm": keras.layers.LSTM, "gru": keras.layers.GRU, "rnn": keras.layers.SimpleRNN}


def run_layer(layer, x, states):
    """Outputs (batch, t, units) of a recurrent layer for x (batch, t, features), and its new states."""
    if x.shape[1] == 1:  # needs no loop
        y, states = layer.cell(x[:, 0], states)
        return y[:, None], states
    return ops.recurrent(layer, x, states)


def read(layer, x, count=None, backwards=False):
    """Runs a recurrent layer over x (batch, length, features), in either direction.

    If `count` (batch, 1) is given, only so many tokens of each row are read, the first ones. No mask is needed for
    that, which most fused kernels cannot take.

    Returns:
        (batch, length, units), in the order of `x`, and the output for the token that was last, (batch, units).
    """

    def turned(x):
        if not backwards:
            return x
        if count is None:
            return ops.flip(x, axis=1)
        places = ops.arange(ops.shape(x)[1], dtype="int32")
        return take_each(x, ops.where(places < count, count - 1 - places, places))

    states = keras.tree.flatten(layer.get_initial_state(ops.shape(x)[0]))
    y, _ = run_layer(layer, turned(x), states)
    if count is None:
        return turned(y), y[:, -1]
    return turned(y), ops.where(count > 0, take_each(y, ops.maximum(count - 1, 0))[:, 0], 0)


@keras.saving.register_keras_serializable(package="keras_tfm")
class RecurrentEncoder(MaskedLayer):
    """A stack of recurrent layers.

    Args:
        units: width of each layer; a bidirectional one has half of them for each direction.
        cell: "lstm", "gru" or "rnn".
        num_layers: number of layers.
        bidirectional_layers: how many of them, from the first on, read in both directions.
        residual: whether each layer after the first adds its input to its output.
        summary: whether to return only the last output of the last layer, for each direction.
        dropout: dropout rate of the input of each layer and of the output.

    Call arguments:
        inputs, mask: (batch, length, features) and (batch, length).

    Returns:
        (batch, length, units), zeros where the mask is False; with `summary`, (batch, 1, units).

    >>> print(RecurrentEncoder(units=6, bidirectional_layers=1)(ops.ones((2, 3, 8))).shape)
    (2, 3, 6)
    """

    def __init__(
        self,
        units,
        *,
        cell="lstm",
        num_layers=1,
        bidirectional_layers=0,
        residual=False,
        summary=False,
        dropout=0.1,
        **kwargs,
    ):
        super().__init__(options_of(RecurrentEncoder, locals()), **kwargs)
        layer, numbers = CELLS[one_of("cell", cell, CELLS)], range(num_layers)
        rule = f"an integer from 0 to {num_layers=}"
        check("bidirectional_layers", bidirectional_layers, bidirectional_layers in range(num_layers + 1), rule)
        check("units", units, units % 2 == 0 or not bidirectional_layers, "even")
        self.dropouts = [Dropout(dropout, dtype=self.dtype_policy) for _ in (*numbers, "output")]
        self.layers = []  # the layers of each direction
        for number in numbers:
            names = ("forward", "backward") if number < bidirectional_layers else ("forward",)
            options = {"return_sequences": True, "return_state": True, "dtype": self.dtype_policy}
            self.layers.append([layer(units // len(names), **options, name=f"{name}_{number}") for name in names])

    def build(self, inputs_shape):
        for directions in self.layers:
            for layer in directions:
                layer.build(inputs_shape)
            inputs_shape = (*inputs_shape[:-1], sum(layer.units for layer in directions))

    def call(self, inputs, *, mask=None):
        if self.summary:
            x = inputs if mask is None else take_each(inputs, masks.tokens_first(mask)[0])
            x = ops.expand_dims(self.run(x, mask)[1], 1)
        else:
            x = masks.over_tokens(lambda x: self.run(x, mask)[0], inputs, mask)
        return self.dropouts[-1](x)

    def run(self, x, mask=None):
        """All outputs and the last ones, for x whose tokens come before its padding; `mask` tells only how many."""
        count = None if mask is None else ops.sum(ops.cast(mask, "int32"), axis=1, keepdims=True)
        for number, directions in enumerate(self.layers):
            before, x = x, self.dropouts[number](x)
            outputs = [read(layer, x, count, backwards=bool(n)) for n, layer in enumerate(directions)]
            x, last = (ops.concatenate(parts, axis=-1) for parts in zip(*outputs, strict=True))
            x = x + before if self.residual and number else x
        return x, last

    def compute_output_shape(self, inputs_shape):
        batch, length, _ = inputs_shape
        return batch, 1 if self.summary else length, sum(layer.units for layer in self.layers[-1])

    def compute_mask(self, inputs, mask=None):
        return None if self.summary else mask


class RecurrentDecoder(Decoder):
    """A stack of recurrent layers that read tokens and, beside them, a context made from the memory.

    The layers start from a function of the mean of the memory. Subclasses define what the context is. Calls are those
    of `Decoder`; a `cache_position` is ignored, since each call continues where the last one ended.

    Args:
        units, cell, num_layers, residual: as for `RecurrentEncoder`.
        dropout: dropout rate of the input of each layer and of the output.
        num_heads, score: of attention, as for `MultiHeadAttention`.
    """

    attends = True

    def __init__(
        self, units, *, cell="lstm", num_layers=1, residual=False, dropout=0.1, num_heads=1, score="additive", **kwargs
    ):
        options = options_of(RecurrentDecoder, locals())
        super().__init__(options, **kwargs)
        layer, policy, numbers = CELLS[one_of("cell", cell, CELLS)], self.dtype_policy, range(num_layers)
        returns = {"return_sequences": True, "return_state": True}
        self.layers = [layer(units, **returns, dtype=policy, name=f"layer_{number}") for number in numbers]
        self.dropouts = [Dropout(dropout, dtype=policy) for _ in (*numbers, "output")]
        attentions = ["memory_attention"] if self.attends else []
        self.memory_attentions = [self.make(MultiHeadAttention, name, options) for name in attentions]

    def build_layers(self, inputs_shape, memory_shape, first, others, context):
        """Builds the layers; `first` and `others` are the widths that they read beside their input."""
        batch, length, width = inputs_shape
        for number, layer in enumerate(self.layers):
            layer.build((batch, length, self.units + others if number else width + first))
        for attention in self.memory_attentions:
            attention.build((batch, length, self.units), memory_shape)
        states = keras.tree.flatten([layer.cell.state_size for layer in self.layers])
        self.initial_dense = keras.layers.Dense(sum(states), "tanh", dtype=self.dtype_policy, name="initial")
        self.initial_dense.build((batch, memory_shape[-1]))
        self.output_dense = keras.layers.Dense(width, "tanh", dtype=self.dtype_policy, name="output")
        self.output_dense.build((batch, length, self.units + context + width))

    def run(self, x, cache, start):
        y, state = self.decode(self.dropouts[0](x), cache["state"], cache.get("memory"))
        return self.dropouts[-1](y), state

    def new_cache(self, batch_size, memory, mask):
        summary = masks.mean_of(memory, mask)
        states = ops.split(self.initial_dense(summary), self.initial_dense.units // self.units, axis=-1)
        structure = [keras.tree.flatten([layer.cell.state_size]) for layer in self.layers]
        cache = {"state": self.initial_state(keras.tree.pack_sequence_as(structure, states), summary)}
        for attention in self.memory_attentions:
            cache["memory"] = attention.init_cache(batch_size, None, memory, mask)
        return cache

    def initial_state(self, layers, summary):
        """The state of the decoder, for those of its layers."""
        return {"layers": layers}

    def upper_layers(self, y, context, states):
        """The output of the layers after the first for its output `y`, and a list of their new states."""
        new = []
        for number in range(1, len(self.layers)):
            x = ops.concatenate([self.dropouts[number](y), context], axis=-1)
            above, after = run_layer(self.layers[number], x, states[number])
            y = y + above if self.residual else above
            new.append(after)
        return y, new

    def attend(self, queries, memory):
        """The context (batch, t, units) of queries (batch, t, units)."""
        return self.memory_attentions[0](queries, cache=memory)[0]

    def repeat(self, step, state, x):
        """`step(state, x)` for each token of x (batch, t, features): the states after each, and after the last."""
        with recording.paused():  # no map can leave the loop; `attend` is called once more for all tokens
            if x.shape[1] == 1:
                last = step(state, x[:, 0])
                return keras.tree.map_structure(lambda y: y[:, None], last), last
            last, steps = ops.scan(lambda *now: [step(*now)] * 2, state, ops.transpose(x, (1, 0, 2)))
            return keras.tree.map_structure(lambda y: ops.transpose(y, (1, 0, 2)), steps), last


@keras.saving.register_keras_serializable(package="keras_tfm")
class BottleneckDecoder(RecurrentDecoder):
    """The context is the mean of the memory, the same for each token (https://arxiv.org/abs/1406.1078).

    Arguments and calls are those of `RecurrentDecoder`; `num_heads` and `score` have no effect.
    """

    attends = False

    def build(self, inputs_shape, memory_shape):
        width = memory_shape[-1]
        self.build_layers(inputs_shape, memory_shape, first=width, others=width, context=width)

    def initial_state(self, layers, summary):
        return {"layers": layers, "context": summary}

    def decode(self, x, state, memory):
        context = state["context"][:, None]
        context = ops.broadcast_to(context, (*ops.shape(x)[:2], context.shape[-1]))
        y, first = run_layer(self.layers[0], ops.concatenate([x, context], axis=-1), state["layers"][0])
        y, others = self.upper_layers(y, context, state["layers"])
        y = self.output_dense(ops.concatenate([y, context, x], axis=-1))
        return y, {**state, "layers": [first, *others]}


@keras.saving.register_keras_serializable(package="keras_tfm")
class BahdanauDecoder(RecurrentDecoder):
    """The context is what the first layer's previous output attends to (https://arxiv.org/abs/1409.0473).

    All layers read it (https://arxiv.org/abs/1609.08144). Arguments and calls are those of `RecurrentDecoder`.
    """

    def build(self, inputs_shape, memory_shape):
        self.build_layers(inputs_shape, memory_shape, first=self.units, others=self.units, context=self.units)

    def decode(self, x, state, memory):
        before = state["layers"][0]

        def step(now, x):
            context = self.attend(now["states"][0][:, None], memory)[:, 0]
            _, states = self.layers[0].cell(ops.concatenate([x, context], axis=-1), now["states"])
            return {"states": states, "context": context}

        steps, last = self.repeat(step, {"states": before, "context": ops.zeros_like(before[0])}, x)
        y, context = steps["states"][0], steps["context"]
        if recording.is_on():
            self.attend(ops.concatenate([before[0][:, None], y[:, :-1]], axis=1), memory)
        y, others = self.upper_layers(y, context, state["layers"])
        y = self.output_dense(ops.concatenate([y, context, x], axis=-1))
        return y, {"layers": [last["states"], *others]}


@keras.saving.register_keras_serializable(package="keras_tfm")
class LuongDecoder(RecurrentDecoder):
    """The context is what the last layer's output attends to; the decoder's output is fed back as part of its input.

    This is the input feeding of https://arxiv.org/abs/1508.04025. There is no dropout between the layers. Arguments and
    calls are those of `RecurrentDecoder`.
    """

    def build(self, inputs_shape, memory_shape):
        self.fed_width = inputs_shape[-1]
        self.build_layers(inputs_shape, memory_shape, first=self.fed_width, others=0, context=self.units)

    def initial_state(self, layers, summary):
        return {"layers": layers, "fed": ops.zeros((ops.shape(summary)[0], self.fed_width), self.compute_dtype)}

    def decode(self, x, state, memory):
        def step(now, x):
            y, layers = ops.concatenate([x, now["fed"]], axis=-1), []
            for number, (layer, states) in enumerate(zip(self.layers, now["layers"], strict=True)):
                above, states = layer.cell(y, states)
                y = y + above if self.residual and number else above
                layers.append(states)
            context = self.attend(y[:, None], memory)[:, 0]
            return {"layers": layers, "fed": self.output_dense(ops.concatenate([y, context, x], axis=-1)), "query": y}

        steps, last = self.repeat(step, {**state, "query": state["layers"][-1][0]}, x)
        if recording.is_on():
            self.attend(steps["query"], memory)
        return steps["fed"], {name: last[name] for name in state}


DECODERS = {None: BottleneckDecoder, "bahdanau": BahdanauDecoder, "luong": LuongDecoder}
