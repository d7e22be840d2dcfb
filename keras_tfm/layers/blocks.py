"""Transformer blocks: attention and feed-forward, each with its residual connection, norm and dropout."""

from collections.abc import Callable
from functools import partial
from typing import Any

import keras

from keras_tfm import ops
from keras_tfm.common.arguments import UserError, one_of
from keras_tfm.layers.attention import MultiHeadAttention, MultiHeadSelfAttention
from keras_tfm.layers.base import Layer, clone, initializer, options_of
from keras_tfm.layers.dropout import Dropout
from keras_tfm.layers.masks import MaskedLayer
from keras_tfm.ops.private import earlier_store

GATES = {"glu": "sigmoid", "reglu": "relu", "geglu": "gelu", "swiglu": "swish"}  # https://arxiv.org/abs/2002.05202


class Norm:
    """Loads files in which the norms of a stack were called as options of it are now."""

    def load_own_variables(self, store):
        super().load_own_variables(earlier_store(store, {"input_norm": "embedding_norm", "output_norm": "norm"}))


class LayerNormalization(Norm, keras.layers.LayerNormalization):
    """Keras' layer, with the operators of the runtime."""

    def call(self, x):
        return ops.layer_norm(self, x)


class RMSNormalization(Norm, keras.layers.RMSNormalization):
    """Keras' layer."""


NORMS = {"layer": partial(LayerNormalization, epsilon=1e-5), "rms": RMSNormalization}


def normalization(norm, norm_epsilon=None, **kwargs):
    """A layer of `NORMS`, by default with its own epsilon."""
    epsilon = {"epsilon": norm_epsilon} if norm_epsilon else {}
    layer = NORMS[one_of("norm", norm, NORMS)](**epsilon, **kwargs)
    layer.supports_masking = True  # not set by Keras' RMSNormalization
    return layer


@keras.saving.register_keras_serializable(package="keras_tfm")
class FeedForward(Layer):
    """A two-layer network applied to each token, `W₂ f(W₁x)`, or with a gate `W₂ (f(W₁x) · Vx)`.

    Args:
        ff_dim: width of the hidden layer; input and output are (batch, length, features).
        activation: any Keras activation, by name or as a function; or "glu", "reglu", "geglu", "swiglu" for a gate.
        use_bias, kernel_initializer, bias_initializer: for the dense layers, as in Keras.

    >>> print(FeedForward(ff_dim=32, activation="swiglu")(keras.ops.ones((2, 3, 8))).shape)
    (2, 3, 8)
    """

    def __init__(
        self,
        ff_dim: int,
        *,
        activation: str | Callable = "relu",
        use_bias: bool = True,
        kernel_initializer: str | keras.Initializer = "glorot_uniform",
        bias_initializer: str | keras.Initializer = "zeros",
        **kwargs: Any,
    ):
        super().__init__(options_of(FeedForward, locals()), **kwargs)
        self.is_gated = isinstance(activation, str) and activation in GATES
        try:
            self.activation = keras.activations.get(GATES[activation] if self.is_gated else activation)
        except (TypeError, ValueError) as error:
            raise UserError(
                f"`activation` must be one of {list(GATES)} or any Keras activation. Received: {activation=}"
            ) from error
        self.kernel_initializer = initializer("kernel_initializer", kernel_initializer)
        self.bias_initializer = initializer("bias_initializer", bias_initializer)

    def build(self, inputs_shape):
        self.inner = self._dense("inner", inputs_shape, self.ff_dim, self.activation)
        if self.is_gated:
            self.gated = self._dense("gated", inputs_shape, self.ff_dim)
        self.outer = self._dense("outer", (*inputs_shape[:-1], self.ff_dim), inputs_shape[-1])

    def _dense(self, name, inputs_shape, units, activation=None):
        initializers = clone(self.kernel_initializer), clone(self.bias_initializer)
        dense = keras.layers.Dense(units, activation, self.use_bias, *initializers, dtype=self.dtype_policy, name=name)
        dense.build(inputs_shape)
        return dense

    def call(self, inputs):
        middle, *gate = ops.dense(inputs, self.inner, *([self.gated] if self.is_gated else []))
        middle = middle * gate[0] if gate else middle
        return ops.dense(middle, self.outer)[0]

    def compute_output_shape(self, inputs_shape):
        return inputs_shape


class Residual(keras.layers.Layer):
    """Connects a sublayer `f` to the stream `x`: `norm(x + f(x))`, or with `norm_first` `x + f(norm(x))`."""

    def __init__(self, norm, norm_epsilon, norm_first, dropout, **kwargs):
        super().__init__(**kwargs)
        self.norm = normalization(norm, norm_epsilon, dtype=self.dtype_policy, name="norm")
        self.norm_first = norm_first
        self.dropout = Dropout(dropout, dtype=self.dtype_policy, name="dropout")
        self.supports_masking = True

    def build(self, inputs_shape):
        self.norm.build(inputs_shape)

    def join(self, x, sublayer, cache=None, training=None, **arguments):
        """Returns the new stream and the sublayer's new cache, which is None if there is no cache.

        This is not `call`, whose arguments Keras expects to be tensors.
        """
        y = self.norm(x) if self.norm_first else x
        if cache is None:
            y = sublayer(y, training=training, **arguments)
        else:
            y, cache = sublayer(y, cache=cache, training=training, **arguments)
        x = x + self.dropout(y, training=training)
        return (x if self.norm_first else self.norm(x)), cache


@keras.saving.register_keras_serializable(package="keras_tfm")
class TransformerEncoderBlock(MaskedLayer):
    """Self-attention, then a feed-forward network, each with residual connection, norm and dropout.

    Args:
        num_heads: number of attention heads.
        ff_dim, activation: as for `FeedForward`.
        norm: "layer" or "rms".
        norm_epsilon: what norms add to the variance, by default 1e-5 for "layer" and 1e-6 for "rms".
        norm_first: whether to normalize the input of each sublayer (pre-norm) instead of each sum (post-norm).
        dropout: dropout rate of the output of each sublayer.
        head_dim, num_kv_heads, heads, score, mixing, causal, window, positions, max_wavelength, attention_dropout: as
            for `MultiHeadSelfAttention`.
        use_bias, kernel_initializer, bias_initializer: for attention and feed-forward network.

    Call arguments:
        inputs, mask: (batch, length, features) and (batch, length); Keras fills in that of `Embedding(mask_zero=True)`.
        attention_mask: (batch or 1, query, key) or (batch or 1, heads, query, key), True = may attend.
        training: whether to apply dropout; by default as the layer or model around it is called.

    Returns:
        (batch, length, features).

    >>> block = TransformerEncoderBlock(num_heads=2, ff_dim=32, positions="rotary", norm_first=True)
    >>> print(block(keras.ops.ones((2, 3, 8))).shape)
    (2, 3, 8)
    """

    def __init__(
        self,
        *,
        num_heads: int,
        ff_dim: int,
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
        positions: str | None = None,
        max_wavelength: float = 10000.0,
        attention_dropout: float = 0.0,
        use_bias: bool = True,
        kernel_initializer: str | keras.Initializer = "glorot_uniform",
        bias_initializer: str | keras.Initializer = "zeros",
        **kwargs: Any,
    ):
        options = options_of(TransformerEncoderBlock, locals())
        super().__init__(options, **kwargs)
        self.attention = self.make(MultiHeadSelfAttention, "attention", options)
        self.attention_residual = self.make(Residual, "attention_residual", options)
        self.feed_forward = self.make(FeedForward, "feed_forward", options)
        self.feed_forward_residual = self.make(Residual, "feed_forward_residual", options)

    def build(self, inputs_shape):
        for layer in (self.attention, self.attention_residual, self.feed_forward, self.feed_forward_residual):
            layer.build(inputs_shape)

    def call(self, inputs, *, mask=None, attention_mask=None, training=None):
        options = {"mask": mask, "attention_mask": attention_mask, "training": training}
        x, _ = self.attention_residual.join(inputs, self.attention, **options)
        x, _ = self.feed_forward_residual.join(x, self.feed_forward, training=training)
        return x


@keras.saving.register_keras_serializable(package="keras_tfm")
class TransformerDecoderBlock(TransformerEncoderBlock):
    """Causal self-attention, then attention to a memory if there is one, then a feed-forward network.

    Args:
        num_heads, ff_dim, …: as for `TransformerEncoderBlock`, which has `causal` besides; `window` and `positions`
            apply to self-attention only.

    Call arguments:
        inputs, mask, attention_mask, training: as for `TransformerEncoderBlock`.
        memory: (batch, memory length, any features), must be passed in every call or in none.
        memory_mask: (batch, key), (batch, query, key) or (batch, heads, query, key); Keras fills it in too.
        cache, cache_position: a cache from `init_cache`, instead of `memory`, to which `inputs` are written from this
            position on.

    Returns:
        (batch, length, features); with a cache, a tuple of that and the new cache.

    >>> block = TransformerDecoderBlock(num_heads=2, ff_dim=32)
    >>> x, memory = keras.ops.ones((1, 3, 8)), keras.ops.ones((1, 5, 8))
    >>> y = block(x, memory)
    >>> y, cache = block(x[:, :1], cache=block.init_cache(batch_size=1, max_length=3, memory=memory), cache_position=0)
    >>> y, cache = block(x[:, 1:], cache=cache, cache_position=1)
    """

    def __init__(
        self,
        *,
        num_heads: int,
        ff_dim: int,
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
        positions: str | None = None,
        max_wavelength: float = 10000.0,
        attention_dropout: float = 0.0,
        use_bias: bool = True,
        kernel_initializer: str | keras.Initializer = "glorot_uniform",
        bias_initializer: str | keras.Initializer = "zeros",
        **kwargs: Any,
    ):
        if "causal" in kwargs:
            raise UserError(f"A decoder block is always causal: omit `causal`. Received: causal={kwargs['causal']!r}")
        options = options_of(TransformerDecoderBlock, locals())
        super().__init__(**options, causal=True, **kwargs)
        self.memory_attention = self.make(MultiHeadAttention, "memory_attention", options)
        self.memory_residual = self.make(Residual, "memory_residual", options)

    def build(self, inputs_shape, memory_shape=None):
        super().build(inputs_shape)
        if memory_shape is not None:
            self.memory_attention.build(inputs_shape, memory_shape)
            self.memory_residual.build(inputs_shape)

    def call(
        self,
        inputs,
        memory=None,
        *,
        mask=None,
        memory_mask=None,
        attention_mask=None,
        cache=None,
        cache_position=0,
        training=None,
    ):
        self._check_memory(memory, memory_mask, cache)
        own, of_memory = (None, None) if cache is None else (cache["self"], cache.get("memory"))
        step = {} if cache is None else {"cache_position": cache_position}
        step |= {"mask": mask, "attention_mask": attention_mask, "training": training}
        x, own = self.attention_residual.join(inputs, self.attention, own, **step)
        if self.memory_attention.built:
            step = {"memory": memory, "mask": mask, "memory_mask": memory_mask, "training": training}
            x, _ = self.memory_residual.join(x, self.memory_attention, of_memory, **step)
        x, _ = self.feed_forward_residual.join(x, self.feed_forward, training=training)
        return x if cache is None else (x, {**cache, "self": own})

    def init_cache(
        self, batch_size: int, max_length: int, memory: Any = None, memory_mask: Any = None, masked: bool = True
    ) -> Any:
        """A cache for decoding up to `max_length` tokens: "self" changes at each step, "memory" stays the same.

        With `masked=False` everything written to the cache counts as a token, and calls must not have a `mask`.
        """
        self.check_built("init_cache")
        self._check_memory(memory, memory_mask)
        cache = {"self": self.attention.init_cache(batch_size, max_length, masked)}
        if memory is None:
            return cache
        return {**cache, "memory": self.memory_attention.init_cache(batch_size, max_length, memory, memory_mask)}

    def _check_memory(self, memory, memory_mask, cache=None):
        if memory is not None and cache is not None:
            raise UserError("`memory` must be None in a call with a `cache`, which contains it. Received: both")
        given = memory is not None if cache is None else "memory" in cache
        if given != self.memory_attention.built:
            call = f"a call {'with' if given else 'without'} memory, unlike the first"
            raise UserError(f"`memory` must be given in all calls or in none. Received: {call}")
        if memory_mask is not None and not given:
            raise UserError("`memory_mask` needs a memory. Received: memory=None")
