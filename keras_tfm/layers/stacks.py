"""Encoder and decoder: positions, dropout and a stack of Transformer blocks."""

import keras

from keras_tfm import ops
from keras_tfm.common.arguments import UserError, one_of, positive, rate
from keras_tfm.layers import masks
from keras_tfm.layers.attention import check_capacity
from keras_tfm.layers.blocks import NORMS, TransformerDecoderBlock, TransformerEncoderBlock
from keras_tfm.layers.dropout import Dropout
from keras_tfm.layers.positions import ENCODINGS, SCHEMES, PositionalEncoding

PLACES = ("input", "every_layer")  # where positions that join the features enter


class Stack(masks.MaskedLayer):
    """What encoder and decoder share: everything except `build` and `call`."""

    Block = TransformerEncoderBlock

    def __init__(
        self,
        num_layers=6,
        num_heads=8,
        ff_dim=2048,
        dropout=0.1,
        positions="sinusoidal",
        positions_in="input",
        positions_combine="add",
        max_length=512,
        embedding_norm=False,
        **kwargs,
    ):
        options = {name: kwargs.pop(name) for name in self.Block.OPTIONS if name in kwargs}
        super().__init__(**kwargs)
        self.positions = one_of("positions", positions, (*ENCODINGS, *SCHEMES))
        one_of("positions_in", positions_in, PLACES)
        policy, numbers = self.dtype_policy, range(positive("num_layers", num_layers))
        self.dropout = Dropout(rate("dropout", dropout), name=f"{self.name}_dropout", dtype=policy)
        options |= {"dropout": dropout, "positions": positions if positions in SCHEMES else None, "dtype": policy}
        self.blocks = [self.Block(num_heads, ff_dim, **options, name=f"{self.name}_{n}") for n in numbers]
        self.encodings, self.position_denses = [], []  # one for the first block, one per block, or none
        if positions in ENCODINGS:
            limit = positive("max_length", max_length) if positions == "learned" else None
            arguments = {"kind": positions, "combine": positions_combine, "max_length": limit, "dtype": policy}
            numbers = numbers if positions_in == "every_layer" else (0,)
            self.encodings = [PositionalEncoding(**arguments, name=f"{self.name}_positions_{n}") for n in numbers]
        norm = NORMS[options.get("norm", "layer")]
        self.embedding_norm = norm(name=f"{self.name}_embedding_norm", dtype=policy) if embedding_norm else None
        # with `norm_first`, nothing else normalizes the output of the last block
        self.norm = norm(name=f"{self.name}_norm", dtype=policy) if options.get("norm_first") else None
        for layer in self._norms():
            layer.supports_masking = True  # not set by Keras' RMSNormalization

    def build_layers(self, x_shape, *memory_shape):
        """Builds the layers for inputs of these shapes."""
        for number, encoding in enumerate(self.encodings):
            encoding.build(x_shape)
            if encoding.combine == "concat":  # back to the width of the input
                name = f"{self.name}_positions_dense_{number}"
                dense = keras.layers.Dense(x_shape[-1], name=name, dtype=self.dtype_policy)
                dense.build(encoding.compute_output_shape(x_shape))
                self.position_denses.append(dense)
        for block in self.blocks:
            block.build(x_shape, *memory_shape)
        for norm in self._norms():
            norm.build(x_shape)

    def _norms(self):
        return [norm for norm in (self.embedding_norm, self.norm) if norm is not None]

    def before_block(self, number, x, positions=None, start=0):
        """The input of a block: adds positions where they enter; norm and dropout before the first block."""
        if positions is not None and not self.encodings:
            raise UserError(
                f"`positions` must be None for a stack with positions={self.positions!r}, where only distances matter: "
                f"only {', '.join(ENCODINGS)} take them. Received: positions of shape {tuple(ops.shape(positions))}"
            )
        if number < len(self.encodings):
            encoding = self.encodings[number]
            x = encoding(x, start=start) if positions is None else encoding(x, positions=positions)
            x = self.position_denses[number](x) if self.position_denses else x
        if number:
            return x
        return self.dropout(x if self.embedding_norm is None else self.embedding_norm(x))

    def after_blocks(self, x):
        return x if self.norm is None else self.norm(x)


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
        embedding_norm: whether to normalize the input, after positions have joined it.
        **kwargs: any other option of the blocks: `norm_first`, `norm`, `activation`, `score`, `heads`, `num_kv_heads`,
            `mixing`, `window`, `causal`, `attention_dropout`, `use_bias`, `kernel_initializer`, `bias_initializer`.
            With `norm_first`, the output is normalized.

    Call arguments:
        x, mask, attention_mask: as for `TransformerEncoderBlock`.
        positions: (batch, length) integers, for packed sequences; `0, 1, …` by default. Only for schemes that join the
            features; the others depend on distances alone, which are the same wherever a sequence starts.

    Returns:
        (batch, length, features).

    >>> encoder = TransformerEncoder(num_layers=2, num_heads=2, ff_dim=32, positions="rotary")
    >>> print(encoder(ops.ones((2, 3, 8))).shape)
    (2, 3, 8)
    """

    def build(self, x_shape):
        self.build_layers(x_shape)

    def call(self, x, mask=None, attention_mask=None, positions=None):
        for number, block in enumerate(self.blocks):
            x = self.before_block(number, x, positions)
            x = block(x, mask=mask, attention_mask=attention_mask)
        return self.after_blocks(x)


@keras.saving.register_keras_serializable(package="keras_tfm")
class TransformerDecoder(Stack):
    """A stack of `TransformerDecoderBlock`s with positions; the width is that of the input.

    Args:
        **kwargs: those of `TransformerEncoder`, except `causal`.

    Call arguments:
        x, memory, mask, memory_mask, attention_mask: as for `TransformerDecoderBlock`.
        positions: as for `TransformerEncoder`; `start, start + 1, …` by default.
        cache, start: as for `TransformerDecoderBlock`.
        check_room: whether to check that the cache has room for `x`. Searches turn this off: they make room first.

    Returns:
        (batch, length, features); with a cache, a tuple of that and the new cache.

    >>> decoder, x, memory = TransformerDecoder(2, 2, 32), ops.ones((1, 3, 8)), ops.ones((1, 5, 8))
    >>> y = decoder(x, memory)
    >>> y, cache = decoder(x[:, :1], cache=decoder.make_cache(batch_size=1, max_length=3, memory=memory), start=0)
    >>> y, cache = decoder(x[:, 1:], cache=cache, start=1)
    """

    Block = TransformerDecoderBlock

    def build(self, x_shape, memory_shape=None):
        self.build_layers(x_shape, *([] if memory_shape is None else [memory_shape]))

    def call(
        self,
        x,
        memory=None,
        mask=None,
        memory_mask=None,
        attention_mask=None,
        positions=None,
        cache=None,
        start=0,
        check_room=True,
    ):
        given = {"memory": memory, "mask": mask, "memory_mask": memory_mask, "attention_mask": attention_mask}
        if cache is None:
            for number, block in enumerate(self.blocks):
                x = block(self.before_block(number, x, positions), **given)
            return self.after_blocks(x)
        start, room = ops.as_integer("start", start), ops.shape(cache[0]["self"]["k"])[2]
        x = check_capacity(x, room, start) if check_room else x
        given |= {"start": start, "past": masks.causal(ops.shape(x)[1], room, start)}
        new_cache = []
        for number, (block, old) in enumerate(zip(self.blocks, cache, strict=True)):
            x, new = block(self.before_block(number, x, positions, start), cache=old, **given)
            new_cache.append(new)
        return self.after_blocks(x), new_cache

    @property
    def memory_attentions(self):
        """The layers that attend to the memory, the first one first."""
        return [block.memory_attention for block in self.blocks]

    def make_cache(self, batch_size, max_length, memory=None, memory_mask=None, masked=True):
        """A list with the cache of each block, see `TransformerDecoderBlock.make_cache`."""
        return [block.make_cache(batch_size, max_length, memory, memory_mask, masked) for block in self.blocks]
