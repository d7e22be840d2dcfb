"""Encoder and decoder: positions, dropout and a stack of Transformer blocks."""

from collections.abc import Callable
from functools import partial
from typing import Any

import keras

from keras_tfm import ops
from keras_tfm.common.arguments import UserError, one_of, positive
from keras_tfm.layers import masks
from keras_tfm.layers.base import as_integer, options_of
from keras_tfm.layers.blocks import TransformerDecoderBlock, TransformerEncoderBlock, normalization
from keras_tfm.layers.caches import capacity_of, check_capacity
from keras_tfm.layers.dropout import Dropout
from keras_tfm.layers.positions import ENCODINGS, SCHEMES, PositionalEncoding

PLACES = ("input", "every_layer")  # where positions that join the features enter


class Stack(masks.MaskedLayer):
    """What encoder and decoder share: everything except their options and `call`."""

    def __init__(self, block, options, **kwargs):
        super().__init__(options, **kwargs)
        positions = one_of("positions", self.positions, (*ENCODINGS, *SCHEMES))
        one_of("positions_in", self.positions_in, PLACES)
        policy, numbers = self.dtype_policy, range(self.num_layers)
        self.input_dropout = Dropout(self.dropout, name=f"{self.name}_dropout", dtype=policy)
        of_block = options | {"positions": positions if positions in SCHEMES else None}
        self.blocks = [self.make(block, f"{self.name}_{n}", of_block) for n in numbers]
        self.encodings, self.position_denses = [], []  # one for the first block, one per block, or none
        if positions in ENCODINGS:
            limit = positive("max_length", self.max_length) if positions == "learned" else None
            arguments = {"kind": positions, "combine": self.positions_combine, "max_length": limit, "dtype": policy}
            arguments["max_wavelength"] = self.max_wavelength
            numbers = numbers if self.positions_in == "every_layer" else (0,)
            self.encodings = [PositionalEncoding(**arguments, name=f"{self.name}_positions_{n}") for n in numbers]
        norm = partial(normalization, self.norm, self.norm_epsilon, dtype=policy)
        self.input_norm = norm(name=f"{self.name}_embedding_norm") if self.embedding_norm else None
        # with `norm_first`, nothing else normalizes the output of the last block
        self.output_norm = norm(name=f"{self.name}_norm") if self.norm_first else None

    def build_layers(self, inputs_shape, *memory_shape):
        """Builds the layers for inputs of these shapes."""
        for number, encoding in enumerate(self.encodings):
            encoding.build(inputs_shape)
            if encoding.combine == "concat":  # back to the width of the input
                name = f"{self.name}_positions_dense_{number}"
                dense = keras.layers.Dense(inputs_shape[-1], name=name, dtype=self.dtype_policy)
                dense.build(encoding.compute_output_shape(inputs_shape))
                self.position_denses.append(dense)
        for block in self.blocks:
            block.build(inputs_shape, *memory_shape)
        for norm in (self.input_norm, self.output_norm):
            if norm is not None:
                norm.build(inputs_shape)

    def before_block(self, number, x, position_ids=None, start=0, training=None):
        """The input of a block: adds positions where they enter; norm and dropout before the first block."""
        if position_ids is not None and not self.encodings:
            rule = f"None for positions={self.positions!r}, where only distances matter"
            shape = tuple(ops.shape(position_ids))
            raise UserError(f"`position_ids` must be {rule}. Received: position_ids of shape {shape}")
        if number < len(self.encodings):
            encoding = self.encodings[number]
            x = encoding(x, start_index=start) if position_ids is None else encoding(x, position_ids=position_ids)
            x = self.position_denses[number](x) if self.position_denses else x
        if number:
            return x
        return self.input_dropout(x if self.input_norm is None else self.input_norm(x), training=training)

    def after_blocks(self, x):
        return x if self.output_norm is None else self.output_norm(x)

    def compute_output_spec(self, *args, return_hidden_states=False, **kwargs):
        spec = super().compute_output_spec(*args, **kwargs)
        if not return_hidden_states:
            return spec
        return spec, [keras.KerasTensor(spec.shape, spec.dtype) for _ in range(self.num_layers + 1)]

    def through_blocks(self, x, position_ids, training, return_hidden_states, **arguments):
        """The output for x, which each block is called with these arguments for, or a tuple of that and all states."""
        states = []
        for number, block in enumerate(self.blocks):
            x = self.before_block(number, x, position_ids, training=training)
            states += [] if number else [x]
            x = block(x, **arguments, training=training)
            states.append(x)
        states[-1] = x = self.after_blocks(x)
        return (x, states) if return_hidden_states else x


@keras.saving.register_keras_serializable(package="keras_tfm")
class TransformerEncoder(Stack):
    """A stack of `TransformerEncoderBlock`s with positions; the width is that of the input.

    Args:
        num_layers: number of blocks.
        num_heads, ff_dim: number of attention heads and width of the feed-forward network of each block.
        dropout: dropout rate of the input and of the output of each sublayer.
        positions: position scheme: "sinusoidal", "learned" or "index", which join the features; "rotary", "relative"
            or "alibi", which act inside self-attention; or None.
        positions_in: where the first three join the features: "input", or "every_layer".
        positions_combine: "add" to the features, or "concat" and a dense layer back to the same width.
        max_length: number of "learned" positions.
        max_wavelength: of "sinusoidal" and "rotary" positions, the base of their wavelengths.
        embedding_norm: whether to normalize the input, after positions have joined it.
        norm_first: as for the blocks; the output is then normalized.
        activation, norm, norm_epsilon, head_dim, …: as for `TransformerEncoderBlock`.

    Call arguments:
        inputs, mask, attention_mask, training: as for `TransformerEncoderBlock`.
        position_ids: (batch, length) integers, for packed sequences; `0, 1, …` by default. For schemes that join the
            features only; the others depend on distances alone, which are the same wherever a sequence starts.
        return_hidden_states: whether to return the states between the blocks, too.

    Returns:
        (batch, length, features); with `return_hidden_states`, a tuple of that and a list: the input of the first
        block, with its positions, and the output of each block. The last of them is the output.

    >>> encoder = TransformerEncoder(num_layers=2, num_heads=2, ff_dim=32, positions="rotary")
    >>> print(encoder(ops.ones((2, 3, 8))).shape)
    (2, 3, 8)
    >>> y, states = encoder(ops.ones((2, 3, 8)), return_hidden_states=True)
    >>> len(states)
    3
    """

    def __init__(
        self,
        *,
        num_layers: int = 6,
        num_heads: int = 8,
        ff_dim: int = 2048,
        activation: str | Callable = "relu",
        norm: str = "layer",
        norm_epsilon: float | None = None,
        norm_first: bool = False,
        dropout: float = 0.1,
        head_dim: int | None = None,
        num_kv_heads: int | None = None,
        heads: str = "standard",
        score: str = "scaled_dot",
        mixing: str = "soft",
        causal: bool = False,
        window: int | None = None,
        positions: str | None = "sinusoidal",
        positions_in: str = "input",
        positions_combine: str = "add",
        max_length: int = 512,
        max_wavelength: float = 10000.0,
        embedding_norm: bool = False,
        attention_dropout: float = 0.0,
        use_bias: bool = True,
        kernel_initializer: str | keras.Initializer = "glorot_uniform",
        bias_initializer: str | keras.Initializer = "zeros",
        **kwargs: Any,
    ):
        super().__init__(TransformerEncoderBlock, options_of(TransformerEncoder, locals()), **kwargs)

    def build(self, inputs_shape):
        self.build_layers(inputs_shape)

    def call(
        self, inputs, *, mask=None, attention_mask=None, position_ids=None, return_hidden_states=False, training=None
    ):
        given = {"mask": mask, "attention_mask": attention_mask}
        return self.through_blocks(inputs, position_ids, training, return_hidden_states, **given)


@keras.saving.register_keras_serializable(package="keras_tfm")
class TransformerDecoder(Stack):
    """A stack of `TransformerDecoderBlock`s with positions; the width is that of the input.

    Args:
        num_layers, num_heads, …: as for `TransformerEncoder`, which has `causal` besides.

    Call arguments:
        inputs, memory, mask, memory_mask, attention_mask, training: as for `TransformerDecoderBlock`.
        position_ids: as for `TransformerEncoder`; `cache_position, cache_position + 1, …` by default.
        cache, cache_position: as for `TransformerDecoderBlock`.
        return_hidden_states: as for `TransformerEncoder`; not with a cache.

    Returns:
        (batch, length, features); with a cache, a tuple of that and the new cache.

    >>> decoder = TransformerDecoder(num_layers=2, num_heads=2, ff_dim=32)
    >>> x, memory = ops.ones((1, 3, 8)), ops.ones((1, 5, 8))
    >>> y = decoder(x, memory)
    >>> cache = decoder.init_cache(batch_size=1, max_length=3, memory=memory)
    >>> y, cache = decoder(x[:, :1], cache=cache, cache_position=0)
    >>> y, cache = decoder(x[:, 1:], cache=cache, cache_position=1)
    """

    def __init__(
        self,
        *,
        num_layers: int = 6,
        num_heads: int = 8,
        ff_dim: int = 2048,
        activation: str | Callable = "relu",
        norm: str = "layer",
        norm_epsilon: float | None = None,
        norm_first: bool = False,
        dropout: float = 0.1,
        head_dim: int | None = None,
        num_kv_heads: int | None = None,
        heads: str = "standard",
        score: str = "scaled_dot",
        mixing: str = "soft",
        window: int | None = None,
        positions: str | None = "sinusoidal",
        positions_in: str = "input",
        positions_combine: str = "add",
        max_length: int = 512,
        max_wavelength: float = 10000.0,
        embedding_norm: bool = False,
        attention_dropout: float = 0.0,
        use_bias: bool = True,
        kernel_initializer: str | keras.Initializer = "glorot_uniform",
        bias_initializer: str | keras.Initializer = "zeros",
        **kwargs: Any,
    ):
        super().__init__(TransformerDecoderBlock, options_of(TransformerDecoder, locals()), **kwargs)

    def build(self, inputs_shape, memory_shape=None):
        self.build_layers(inputs_shape, *([] if memory_shape is None else [memory_shape]))

    def call(
        self,
        inputs,
        memory=None,
        *,
        mask=None,
        memory_mask=None,
        attention_mask=None,
        position_ids=None,
        cache=None,
        cache_position=0,
        return_hidden_states=False,
        training=None,
    ):
        given = {"memory": memory, "mask": mask, "memory_mask": memory_mask, "attention_mask": attention_mask}
        if cache is None:
            return self.through_blocks(inputs, position_ids, training, return_hidden_states, **given)
        if return_hidden_states:
            raise UserError("`return_hidden_states` must be False in a call with a `cache`. Received: both")
        start, capacity = as_integer("cache_position", cache_position), capacity_of(cache[0]["self"])
        x, new_cache = check_capacity(inputs, capacity, start), []
        causal_mask = masks.causal(ops.shape(inputs)[1], capacity, start)
        for number, (block, old) in enumerate(zip(self.blocks, cache, strict=True)):
            x = self.before_block(number, x, position_ids, start, training)
            old = {**old, "self": {**old["self"], "causal_mask": causal_mask}}  # the same for all blocks
            x, new = block(x, cache=old, cache_position=start, training=training, **given)
            new_cache.append(new)
        return self.after_blocks(x), new_cache

    @property
    def memory_attentions(self):
        """The layers that attend to the memory, the first one first."""
        return [block.memory_attention for block in self.blocks]

    def init_cache(
        self, batch_size: int, max_length: int, memory: Any = None, memory_mask: Any = None, masked: bool = True
    ) -> Any:
        """A list with the cache of each block, see `TransformerDecoderBlock.init_cache`."""
        return [block.init_cache(batch_size, max_length, memory, memory_mask, masked) for block in self.blocks]
