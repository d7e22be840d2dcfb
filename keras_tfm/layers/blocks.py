"""Transformer blocks: attention and feed-forward, each with its residual connection, norm and dropout."""

from functools import partial

import keras

from keras_tfm import kernels
from keras_tfm.arguments import one_of, positive, rate
from keras_tfm.layers.attention import MultiHeadAttention, MultiHeadSelfAttention
from keras_tfm.layers.base import Layer, fresh, initializer
from keras_tfm.layers.masks import MaskedLayer

GATES = {"glu": "sigmoid", "reglu": "relu", "geglu": "gelu", "swiglu": "swish"}  # https://arxiv.org/abs/2002.05202
DENSE = ("use_bias", "kernel_initializer", "bias_initializer")  # options of attention that are also for feed-forward


class LayerNormalization(keras.layers.LayerNormalization):
    """Keras' layer, with the operators of the runtime."""

    def call(self, x):
        return kernels.current().norm(self, x)


NORMS = {"layer": partial(LayerNormalization, epsilon=1e-5), "rms": keras.layers.RMSNormalization}


@keras.saving.register_keras_serializable(package="keras_tfm")
class FeedForward(Layer):
    """The same small network for each token: `W₂ f(W₁x)`, or with a gate `W₂ (f(W₁x) · Vx)`.

    Args:
        ff_dim: width in the middle, between input and output of (batch, length, features).
        activation: any Keras activation, by name or as a function, or with a gate "glu", "reglu", "geglu", "swiglu".
        use_bias, kernel_initializer, bias_initializer: of the dense layers, as in Keras.

    >>> print(FeedForward(ff_dim=32, activation="swiglu")(keras.ops.ones((2, 3, 8))).shape)
    (2, 3, 8)
    """

    def __init__(
        self,
        ff_dim,
        activation="relu",
        use_bias=True,
        kernel_initializer="glorot_uniform",
        bias_initializer="zeros",
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.ff_dim = positive("ff_dim", ff_dim)
        self.is_gated = isinstance(activation, str) and activation in GATES
        try:
            self.activation = keras.activations.get(GATES[activation] if self.is_gated else activation)
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"`activation` must be one of {list(GATES)} or any Keras activation. Received: {activation=}"
            ) from error
        self.use_bias = one_of("use_bias", use_bias, (False, True))
        self.kernel_initializer = initializer("kernel_initializer", kernel_initializer)
        self.bias_initializer = initializer("bias_initializer", bias_initializer)
        self.supports_masking = True

    def build(self, x_shape):
        self.inner = self._dense("inner", self.ff_dim, self.activation)
        self.inner.build(x_shape)
        if self.is_gated:
            self.gated = self._dense("gated", self.ff_dim)
            self.gated.build(x_shape)
        self.outer = self._dense("outer", x_shape[-1])
        self.outer.build((*x_shape[:-1], self.ff_dim))

    def _dense(self, name, units, activation=None):
        initializers = fresh(self.kernel_initializer), fresh(self.bias_initializer)
        return keras.layers.Dense(units, activation, self.use_bias, *initializers, dtype=self.dtype_policy, name=name)

    def call(self, x):
        dense = kernels.current().dense
        if self.is_gated:
            inner, gate = dense(x, self.inner, self.gated)
            middle = inner * gate
        else:
            (middle,) = dense(x, self.inner)
        return dense(middle, self.outer)[0]

    def compute_output_shape(self, x_shape):
        return x_shape


class Residual(keras.layers.Layer):
    """Joins a sublayer `f` to the stream: `norm(x + f(x))` as in the paper, or `x + f(norm(x))` with `norm_first`."""

    def __init__(self, norm, norm_first, dropout, **kwargs):
        super().__init__(**kwargs)
        self.norm = NORMS[one_of("norm", norm, NORMS)](dtype=self.dtype_policy, name="norm")
        self.norm.supports_masking = True  # Keras says so of one norm and not of the other
        self.norm_first = one_of("norm_first", norm_first, (False, True))
        self.dropout = keras.layers.Dropout(rate("dropout", dropout), dtype=self.dtype_policy, name="dropout")
        self.supports_masking = True

    def build(self, x_shape):
        self.norm.build(x_shape)

    def join(self, x, sublayer):  # no `call`: Keras cannot rematerialise one that takes a function
        if self.norm_first:
            return x + self.dropout(sublayer(self.norm(x)))
        return self.norm(x + self.dropout(sublayer(x)))


@keras.saving.register_keras_serializable(package="keras_tfm")
class TransformerEncoderBlock(MaskedLayer):
    """Self-attention, then feed-forward, each with residual connection, norm and dropout.

    Args:
        num_heads: number of attention heads.
        ff_dim, activation: of the feed-forward network, see `FeedForward`.
        norm: "layer" or "rms".
        norm_first: whether sublayers get a normalised input (pre-norm), instead of their sums being normalised.
        dropout: rate of dropout on the output of each sublayer.
        **kwargs: any option of `MultiHeadSelfAttention`: `score`, `heads`, `num_kv_heads`, `mixing`, `causal`,
            `window`, `positions`, `attention_dropout`, `use_bias`, `kernel_initializer`, `bias_initializer`; the last
            three are for the feed-forward network as well.

    Call arguments:
        x, mask: (batch, length, features) and (batch, length); Keras fills in the mask of `Embedding(mask_zero=True)`.
        attention_mask: (query, key), (batch, query, key) or (batch, heads, query, key), True = may attend.

    Returns:
        (batch, length, features).

    >>> block = TransformerEncoderBlock(num_heads=2, ff_dim=32, positions="rotary", norm_first=True)
    >>> print(block(keras.ops.ones((2, 3, 8))).shape)
    (2, 3, 8)
    """

    def __init__(self, num_heads, ff_dim, activation="relu", norm="layer", norm_first=False, dropout=0.1, **kwargs):
        options = {name: kwargs.pop(name) for name in MultiHeadSelfAttention.OPTIONS if name in kwargs}
        super().__init__(**kwargs)
        self.residual = partial(Residual, norm, norm_first, dropout, dtype=self.dtype_policy)
        self.attention = MultiHeadSelfAttention(num_heads, **options, dtype=self.dtype_policy, name="attention")
        self.attention_residual = self.residual(name="attention_residual")
        dense = {name: options[name] for name in DENSE if name in options}
        self.feed_forward = FeedForward(ff_dim, activation, **dense, dtype=self.dtype_policy, name="feed_forward")
        self.feed_forward_residual = self.residual(name="feed_forward_residual")

    def build(self, x_shape):
        for layer in (self.attention, self.attention_residual, self.feed_forward, self.feed_forward_residual):
            layer.build(x_shape)

    def call(self, x, mask=None, attention_mask=None):
        x = self.attention_residual.join(x, partial(self.attention, mask=mask, attention_mask=attention_mask))
        return self.feed_forward_residual.join(x, self.feed_forward)


@keras.saving.register_keras_serializable(package="keras_tfm")
class TransformerDecoderBlock(TransformerEncoderBlock):
    """Causal self-attention, then attention to a memory if there is one, then feed-forward.

    Args:
        num_heads, ff_dim, activation, norm, norm_first, dropout: as for `TransformerEncoderBlock`.
        **kwargs: any option of `MultiHeadSelfAttention` but `causal`; `window` and `positions` are for self-attention.

    Call arguments:
        x, mask, attention_mask: as for `TransformerEncoderBlock`.
        memory: (batch, memory length, any features), in all calls of a block or in none.
        memory_mask: (batch, key), (batch, query, key) or (batch, heads, query, key); Keras fills it in likewise.
        cache, start: of `make_cache`, in place of `memory`; `x` is written into it from position `start` on.

    Returns:
        (batch, length, features); with a cache, the same and the new cache.

    >>> block, x, memory = TransformerDecoderBlock(2, 32), keras.ops.ones((1, 3, 8)), keras.ops.ones((1, 5, 8))
    >>> y = block(x, memory)
    >>> y, cache = block(x[:, :1], cache=block.make_cache(batch_size=1, max_length=3, memory=memory), start=0)
    >>> y, cache = block(x[:, 1:], cache=cache, start=1)
    """

    def __init__(self, num_heads, ff_dim, activation="relu", norm="layer", norm_first=False, dropout=0.1, **kwargs):
        if "causal" in kwargs:
            raise ValueError(f"`causal` must not be given: a decoder block is. Received: causal={kwargs['causal']!r}")
        shared = {name: kwargs[name] for name in MultiHeadAttention.OPTIONS if name in kwargs}
        super().__init__(num_heads, ff_dim, activation, norm, norm_first, dropout, causal=True, **kwargs)
        self.memory_attention = MultiHeadAttention(
            num_heads, **shared, dtype=self.dtype_policy, name="memory_attention"
        )
        self.memory_residual = self.residual(name="memory_residual")

    def build(self, x_shape, memory_shape=None):
        super().build(x_shape)
        if memory_shape is not None:
            self.memory_attention.build(x_shape, memory_shape)
            self.memory_residual.build(x_shape)

    def call(self, x, memory=None, mask=None, memory_mask=None, attention_mask=None, cache=None, start=0):
        self._check_memory(memory, memory_mask, cache)
        attend = partial(self.attention, mask=mask, attention_mask=attention_mask)
        recall = partial(self.memory_attention, memory=memory, mask=mask, memory_mask=memory_mask)
        if cache is not None:
            new_cache = dict(cache)
            attend = _caching(attend, new_cache, "self", start=start)
            recall = _caching(recall, new_cache, "memory")
        x = self.attention_residual.join(x, attend)
        if self.memory_attention.built:
            x = self.memory_residual.join(x, recall)
        x = self.feed_forward_residual.join(x, self.feed_forward)
        return x if cache is None else (x, new_cache)

    def make_cache(self, batch_size, max_length, memory=None, memory_mask=None, masked=True):
        """For decoding up to `max_length` tokens: its `self` changes at each step, its `memory` stays.

        If not `masked`, all that is written is taken for tokens, and calls have no `mask`.
        """
        self.check_built("make_cache")
        self._check_memory(memory, memory_mask)
        cache = {"self": self.attention.empty_cache(batch_size, max_length, masked)}
        return cache if memory is None else {**cache, "memory": self.memory_attention.memory_cache(memory, memory_mask)}

    def _check_memory(self, memory, memory_mask, cache=None):
        if memory is not None and cache is not None:
            raise ValueError("`memory` must not be given beside a `cache`, which holds its own. Received: both")
        given = memory is not None if cache is None else "memory" in cache
        if given != self.memory_attention.built:
            call = f"a call {'with' if given else 'without'} memory, unlike the first"
            raise ValueError(f"`memory` must be given in all calls or in none. Received: {call}")
        if memory_mask is not None and not given:
            raise ValueError("`memory_mask` must come with a memory. Received: memory=None")


def _caching(attention, cache, name, **kwargs):
    """`attention` as a function of `x` alone, which leaves its new cache in `cache[name]`."""

    def attend(x):
        x, cache[name] = attention(x, cache=cache[name], **kwargs)
        return x

    return attend
