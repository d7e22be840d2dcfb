"""The attention layers, which hold the parameters; the maths is in `scores.py`.

Axes: b batch, q query, k key, t time, h query heads, g key/value heads, d head_dim.
"""

import math
from functools import partial
from typing import Any

import keras

from keras_tfm import ops
from keras_tfm.common.arguments import UserError, check, one_of
from keras_tfm.layers import masks, recording
from keras_tfm.layers.base import as_integer, as_matrices, clone, initializer, options_of
from keras_tfm.layers.caches import capacity_of, check_capacity, chosen_slots, fold_hypotheses, written
from keras_tfm.layers.dropout import Dropout
from keras_tfm.layers.positions import SCHEMES, rotate
from keras_tfm.layers.scores import MIXINGS, PRODUCTS, SCORES, attend, local_attention

# Name → width of a head, for inputs of width k and h heads.
HEADS = {
    "standard": lambda k, h: k // h,  # each head projects the whole input to k/h features
    "narrow": lambda k, h: k // h,  # each head projects only its own slice of k/h features
    "wide": lambda k, h: k,  # each head projects the whole input to k features
}


@keras.saving.register_keras_serializable(package="keras_tfm")
class MultiHeadAttention(masks.MaskedLayer):
    """Attention from one sequence to another.

    The weights have the order and shapes of those of `keras.layers.MultiHeadAttention`.

    Args:
        num_heads: number of query heads.
        head_dim: width of each head, by default that of `heads`.
        num_kv_heads: number of key/value heads, a divisor of `num_heads`; the same number by default. One is
            multi-query attention, a few are grouped-query attention (https://arxiv.org/abs/2305.13245).
        heads, score, mixing: names from `HEADS`, `SCORES` and `MIXINGS`.
        attention_dropout: dropout rate of the attention weights.
        use_bias, kernel_initializer, bias_initializer: for the four projections, as in Keras.

    Call arguments:
        inputs, memory: (batch, query, features) and (batch, key, any features).
        mask: (batch, query); queries where it is False attend to nothing.
        memory_mask: (batch, key), (batch, query, key) or (batch, heads, query, key).
        attention_mask: (batch or 1, query, key) or (batch or 1, heads, query, key), True = may attend.
        cache: a cache from `init_cache`, instead of `memory`. The batch of `inputs` may be a multiple of
            its batch: several consecutive rows of `inputs` then share one row of the memory.
        return_attention_scores: whether to return the weights, too, as Keras' layer does; not with a cache.

    Returns:
        (batch, query, features); with a cache, a tuple of that and the cache; with `return_attention_scores`, a tuple
        of that and float32 weights (batch, heads, query, key).

    >>> x, memory = ops.ones((2, 3, 8)), ops.ones((2, 5, 16))
    >>> print(MultiHeadAttention(num_heads=4, num_kv_heads=2)(x, memory).shape)
    (2, 3, 8)
    >>> y, scores = MultiHeadAttention(num_heads=4)(x, memory, return_attention_scores=True)
    >>> print(scores.shape)
    (2, 4, 3, 5)
    """

    causal, window, scheme = False, None, SCHEMES[None]  # options of the subclass

    def __init__(
        self,
        num_heads: int,
        *,
        head_dim: int | None = None,
        num_kv_heads: int | None = None,
        heads: str = "standard",
        score: str = "scaled_dot",
        mixing: str = "soft",
        attention_dropout: float = 0.0,
        use_bias: bool = True,
        kernel_initializer: str | keras.Initializer = "glorot_uniform",
        bias_initializer: str | keras.Initializer = "zeros",
        **kwargs: Any,
    ):
        super().__init__(options_of(MultiHeadAttention, locals()), **kwargs)
        for name, words in {"heads": HEADS, "score": SCORES, "mixing": MIXINGS}.items():
            one_of(name, getattr(self, name), words)
        self.num_kv_heads = num_kv_heads or num_heads
        check("num_kv_heads", num_kv_heads, num_heads % self.num_kv_heads == 0, f"a number that divides {num_heads=}")
        self.kernel_initializer = initializer("kernel_initializer", kernel_initializer)
        self.bias_initializer = initializer("bias_initializer", bias_initializer)
        self.dropout = Dropout(attention_dropout, dtype="float32") if attention_dropout else None

    def build(self, inputs_shape, memory_shape=None):
        width, memory_width = inputs_shape[-1], (memory_shape or inputs_shape)[-1]
        divides, divides_memory = width % self.num_heads == 0, memory_width % self.num_kv_heads == 0
        if self.heads == "narrow":
            check("num_heads", self.num_heads, divides, f"a number that divides {width=}, for narrow heads")
            check("num_kv_heads", self.num_kv_heads, divides_memory, f"a number that divides {memory_width=}")
        elif self.heads == "standard" and self.head_dim is None:
            check("num_heads", self.num_heads, divides, f"a number that divides {width=}, unless `head_dim` is set")
        self.head_dim = self.head_dim or HEADS[self.heads](width, self.num_heads)
        self.query_dense = self._head_dense("query", width, self.num_heads)
        self.key_dense = self._head_dense("key", memory_width, self.num_kv_heads)
        self.value_dense = self._head_dense("value", memory_width, self.num_kv_heads)
        # JAX contracts axes in alphabetical order; with these letters it need not copy the kernel.
        self.output_dense = self._dense("output", "bqcd,cde->bqe", (self.num_heads, self.head_dim), (width,))
        self.score_weights = {}
        for name, units in SCORES[self.score][1].items():
            shape = [unit * self.head_dim for unit in units]
            glorot = as_matrices(keras.initializers.GlorotUniform(), *[*shape, 1][:2], self.num_heads)
            initial = glorot if shape else "zeros"
            self.score_weights[name] = self.add_weight((self.num_heads, *shape), initial, name=name)

    def _head_dense(self, name, width, num_heads):
        outputs = num_heads, self.head_dim
        if self.heads == "narrow":
            return self._dense(name, "bqhc,hcd->bqhd", (num_heads, width // num_heads), outputs, matrices=num_heads)
        return self._dense(name, "bqc,chd->bqhd", (width,), outputs)

    def _dense(self, name, equation, inputs, outputs, matrices=1):
        sizes = math.prod(inputs) // matrices, math.prod(outputs) // matrices
        dense = keras.layers.EinsumDense(
            equation,
            (None, *outputs),
            bias_axes=equation[-len(outputs) :] if self.use_bias else None,
            kernel_initializer=as_matrices(self.kernel_initializer, *sizes, matrices),
            bias_initializer=clone(self.bias_initializer),
            dtype=self.dtype_policy,
            name=name,
        )
        dense.supports_masking = True
        dense.build((None, None, *inputs))
        return dense

    def call(
        self,
        inputs,
        memory=None,
        *,
        mask=None,
        memory_mask=None,
        attention_mask=None,
        cache=None,
        return_attention_scores=False,
        training=None,
    ):
        if return_attention_scores:
            given = {"mask": mask, "memory_mask": memory_mask, "attention_mask": attention_mask, "training": training}
            return self.with_scores(inputs, memory, **given, cache=cache)
        if (memory is None) == (cache is None):
            received = "neither" if cache is None else "both"
            raise UserError(f"Either `memory` or a `cache` made from it must be given. Received: {received}")
        if memory_mask is not None and len(memory_mask.shape) > 2:
            memory_mask, attention_mask = None, masks.combine(memory_mask, attention_mask)
        if cache is None and attention_mask is None and self.is_plain(training):
            return self.plain_call(inputs, memory, mask, memory_mask)
        if cache is None:
            k, v = self.project(memory, self.key_dense, self.value_dense)
        else:
            k, v = ops.swap_heads(cache["k"]), ops.swap_heads(cache["v"])
            memory_mask = masks.combine(cache.get("mask"), memory_mask)
        (q,) = self.project(inputs, self.query_dense)
        if cache is not None and attention_mask is None:
            q = fold_hypotheses(q, k)
        context = self.context(q, k, v, memory_mask, attention_mask, training)
        if cache is None:
            return self.finish(context, mask)
        return self.finish(ops.reshape(context, (*ops.shape(inputs)[:2], *context.shape[2:])), mask), cache

    def init_cache(self, batch_size: int, max_length: int, memory: Any, memory_mask: Any = None) -> Any:
        """Keys and values (batch, kv_heads, key, head_dim) of a memory, and its mask, to be used at every step.

        `batch_size` and `max_length` have no effect: its size is that of the memory.
        """
        self.check_built("init_cache")
        # One by one: of a joined product, LiteRT would copy both halves element by element.
        (k,), (v,) = self.project(memory, self.key_dense), self.project(memory, self.value_dense)
        cache = {"k": ops.swap_heads(k), "v": ops.swap_heads(v)}
        mask = masks.of_memory(memory, memory_mask)
        if mask is None:
            return cache
        # Without this `where`, XLA would move the transposes of keys and values into the decoding loop.
        return {name: ops.where(mask[:, None, :, None], x, 0) for name, x in cache.items()} | {"mask": mask}

    def with_scores(self, *args, cache=None, **kwargs):
        """The output of `call`, and the attention weights in it."""
        if cache is not None:
            raise UserError("`return_attention_scores` must be False in a call with a `cache`. Received: both")
        with recording.capture_attention() as maps:
            output = self.call(*args, **kwargs)
        return output, maps[self.path][0]

    def has_plain_weights(self, training):
        """Whether weights are softmax(q kᵀ / √d), with no dropout, and nobody wants to see them."""
        dropping = self.dropout is not None and training
        usual = self.score == "scaled_dot" and self.mixing == "soft" and self.scheme.bias is None
        return usual and not dropping and not recording.is_on()

    def is_plain(self, training):
        """Whether this is scaled dot-product attention of dense layers to all tokens, or all earlier ones."""
        dense = self.query_dense, self.key_dense, self.value_dense
        usual = self.heads != "narrow" and self.scheme == SCHEMES[None] and not self.window
        return usual and not any(layer.quantization_mode for layer in dense) and self.has_plain_weights(training)

    def plain_call(self, inputs, memory, mask, memory_mask):
        """The output of `call` without a cache, if it `is_plain`."""
        layers = self.query_dense, self.key_dense, self.value_dense
        return self.finish(ops.projected_attention(inputs, memory, layers, mask, memory_mask, self.causal), None)

    def project(self, x, *layers):
        """(b, t, features) → (b, t, heads, head_dim) for each of the dense layers."""
        if self.heads != "narrow" and not any(layer.quantization_mode for layer in layers):
            return ops.dense(x, *layers)
        outputs = []
        for layer in layers:
            inputs = layer.kernel.shape[:2] if self.heads == "narrow" else x.shape[-1:]
            # One token per row: Keras on TensorFlow adds a bias (heads, 1) to the tokens if there are as many as heads.
            y = layer(ops.reshape(x, (-1, 1, *inputs)))
            outputs.append(ops.static_reshape(y, (*ops.shape(x)[:2], *y.shape[2:])))
        return outputs

    def context(
        self, q, k, v, key_mask=None, attention_mask=None, training=None, causal_mask=None, start=0, chosen=None
    ):
        """The values averaged for each query, (b, q, h, d), by the cheapest method that is exact.

        In a cached call, `causal_mask` is (1, q, k), for queries at positions `start, start + 1, …`; with `chosen`, see
        `attend`, it is (1, 1, t), and all queries are at the position `start`.
        """
        length, cached = ops.shape(q)[1], causal_mask is not None
        if not cached and attention_mask is None and not recording.is_on():
            if self.window and not (isinstance(length, int) and length <= 2 * self.window):
                attend_block = partial(self.attend_with_weights, start=self.window, training=training)
                return local_attention(attend_block, q, k, v, self.window, self.causal, key_mask)
            if not self.window and self.has_plain_weights(training):
                return ops.attention(q, k, v, key_mask, self.causal)
        lengths = ops.shape(causal_mask)[1:] if cached else (length, ops.shape(k)[1])
        if self.causal and not cached:
            causal_mask = masks.causal(*lengths)
        window_mask = masks.window(*lengths, self.window, start) if self.window else None
        if cached and key_mask is None and attention_mask is None:
            # Every query sees its own token, so no row is empty and a bias can replace the mask, which costs more.
            mask_bias = ops.additive_mask(masks.combine(causal_mask, window_mask, rank=4))
            return self.attend_with_weights(q, k, v, None, start, training, mask_bias, chosen)
        mask = masks.combine(key_mask, causal_mask, window_mask, attention_mask)
        return self.attend_with_weights(q, k, v, mask, start, training, None, chosen)

    def attend_with_weights(self, q, k, v, mask, start=0, training=None, mask_bias=None, chosen=None):
        """`attend` with the score, weights and position scheme of this layer; `mask_bias` is added to the scores."""
        score = partial(SCORES[self.score][0], **self.score_weights)
        bias = mask_bias
        if self.scheme.bias is not None:
            lengths = (ops.shape(q)[1], ops.shape(k)[1]) if chosen is None else (1, ops.shape(chosen)[2])
            distance = masks.distance(*lengths, start)
            bias = self.scheme.bias(distance, self.num_heads, self.causal, **self.position_weights)
            bias = bias if mask_bias is None else ops.cast(bias, "float32") + mask_bias
        dropout = partial(self.dropout, training=training) if self.dropout else None
        context, weights = attend(q, k, v, score, MIXINGS[self.mixing], mask, bias, dropout, chosen)
        recording.record(self.path, weights)
        return context

    def finish(self, context, mask):
        """The output projection, (b, q, h, d) → (b, q, features), with zeros as context where the mask is False."""
        if mask is not None:
            context = ops.where(ops.expand_dims(mask, (2, 3)), context, 0)
        if self.output_dense.quantization_mode:
            return self.output_dense(context)
        joined = ops.static_reshape(context, (*ops.shape(context)[:2], self.num_heads * self.head_dim))
        return ops.dense(joined, self.output_dense)[0]


@keras.saving.register_keras_serializable(package="keras_tfm")
class MultiHeadSelfAttention(MultiHeadAttention):
    """Attention from a sequence to itself.

    Args:
        num_heads, head_dim, num_kv_heads, heads, score, mixing: as for `MultiHeadAttention`.
        causal: whether each token sees only itself and earlier tokens.
        window: if given, each token sees only tokens less than `window` positions away. The cost is then linear in the
            length, unless there is a cache or an `attention_mask`.
        positions: None, "rotary", "relative" (T5's bias) or "alibi".
        max_wavelength: of rotary positions, the base of their wavelengths.
        attention_dropout, use_bias, kernel_initializer, bias_initializer: as for `MultiHeadAttention`.

    Call arguments:
        inputs, mask: (batch, length, features) and (batch, length); Keras fills in that of `Embedding(mask_zero=True)`.
        attention_mask, return_attention_scores, training: as for `MultiHeadAttention`.
        cache, cache_position: a cache from `init_cache`, to which `inputs` are written from this position on.

    Returns:
        (batch, length, features); with a cache, a tuple of that and the new cache.

    >>> layer, x = MultiHeadSelfAttention(num_heads=2, causal=True, positions="rotary"), ops.ones((1, 3, 8))
    >>> y = layer(x)
    >>> y, cache = layer(x[:, :1], cache=layer.init_cache(batch_size=1, max_length=3), cache_position=0)
    >>> y, cache = layer(x[:, 1:], cache=cache, cache_position=1)
    """

    def __init__(
        self,
        num_heads: int,
        *,
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
        super().__init__(**options_of(MultiHeadAttention, locals()), **kwargs)
        self.set_options({"causal": causal, "window": window, "max_wavelength": max_wavelength})
        self.positions = one_of("positions", positions, SCHEMES)
        rotary = {"rotate": partial(rotate, max_wavelength=max_wavelength)} if positions == "rotary" else {}
        self.scheme = SCHEMES[positions]._replace(**rotary)

    def build(self, inputs_shape):
        super().build(inputs_shape)
        if self.positions == "rotary" and self.head_dim % 2:
            raise UserError(f'`positions="rotary"` needs an even head_dim. Received: head_dim={self.head_dim}')
        normal = keras.initializers.RandomNormal(stddev=0.02)
        weights = self.scheme.weights(self.num_heads)
        self.position_weights = {name: self.add_weight(shape, normal, name=name) for name, shape in weights.items()}

    def call(
        self,
        inputs,
        *,
        mask=None,
        attention_mask=None,
        cache=None,
        cache_position=0,
        return_attention_scores=False,
        training=None,
    ):
        if return_attention_scores:
            given = {"mask": mask, "attention_mask": attention_mask, "training": training}
            return self.with_scores(inputs, **given, cache=cache)
        if cache is None and attention_mask is None and self.is_plain(training):
            return self.plain_call(inputs, inputs, mask, mask)
        q, k, v = self.project(inputs, self.query_dense, self.key_dense, self.value_dense)
        start, length = as_integer("cache_position", cache_position), ops.shape(inputs)[1]
        places = ops.arange(length, dtype="int32") + start
        q, k = self.scheme.rotate(q, places), self.scheme.rotate(k, places)
        if cache is None:
            return self.finish(self.context(q, k, v, mask, attention_mask, training), mask)
        if not self.causal:
            raise UserError(
                "`cache` must be None unless causal=True: cached tokens cannot see later ones. Received: causal=False"
            )
        if mask is not None and "mask" not in cache:
            raise UserError("`mask` must be None for a cache that was made with masked=False. Received: a mask")
        causal_mask = cache.get("causal_mask")  # a decoder shares it among its blocks, and has checked the capacity
        if causal_mask is None:
            capacity = capacity_of(cache)
            q, causal_mask = check_capacity(q, capacity, start), masks.causal(length, capacity, start)
        if cache.get("slots"):
            return self._of_hypotheses(inputs, q, k, v, cache, attention_mask, causal_mask, start, training)
        new = written(cache, k, v, start) | ({"slots": cache["slots"]} if "slots" in cache else {})
        if "mask" in cache:
            tokens = ops.ones(ops.shape(inputs)[:2], dtype="bool") if mask is None else mask
            new["mask"] = ops.slice_update(cache["mask"], (0, start), tokens)
        k, v = ops.swap_heads(new["k"]), ops.swap_heads(new["v"])
        context = self.context(q, k, v, new.get("mask"), attention_mask, training, causal_mask, start)
        return self.finish(context, mask), new

    def _of_hypotheses(self, inputs, q, k, v, cache, attention_mask, causal_mask, start, training):
        """The output for one token of each hypothesis, whose keys and values are in slots: `keras_tfm.decoding.search`.

        The hypotheses of a source are queries of one row, so that its keys are read once.
        """
        check("inputs", tuple(inputs.shape), inputs.shape[1] == 1, "one token per row, for a cache with slots")
        q, k, v = (fold_hypotheses(x, cache["k"]) for x in (q, k, v))  # (b, slot, h or g, d)
        chosen = chosen_slots(start, **cache["slots"])  # (b, slot, t, slot)
        new = written(cache, k, v, start * chosen.shape[-1])
        k, v = ops.swap_heads(new["k"]), ops.swap_heads(new["v"])
        if attention_mask is not None and attention_mask.shape[0] != 1:  # (b · n, h, 1, t) → (b, h, n, t)
            attention_mask = ops.swap_heads(masks.combine(attention_mask, rank=4))
            attention_mask = ops.swap_heads(fold_hypotheses(attention_mask, cache["k"]))
        context = self.context(q, k, v, None, attention_mask, training, causal_mask, start, chosen)
        return self.finish(ops.reshape(context, (ops.shape(inputs)[0], 1, *context.shape[2:])), None), {**cache, **new}

    def init_cache(self, batch_size: int, max_length: int, masked: bool = True) -> Any:
        """A cache for keys and values (batch, kv_heads, max_length, head_dim) and, if `masked`, for the calls' masks.

        Where caches can be kept in place, empty "slots" tell a search that this layer could read keys in slots, see
        `keras_tfm.decoding.search`.
        Heads come before positions: otherwise every step would transpose the whole cache for its matrix products.
        """
        self.check_built("init_cache")
        zeros = ops.zeros((batch_size, self.num_kv_heads, max_length, self.head_dim), dtype=self.compute_dtype)
        cache = {"k": zeros, "v": zeros}
        if masked:
            return {**cache, "mask": ops.zeros((batch_size, max_length), dtype="bool")}
        return {**cache, "slots": []} if ops.current().keeps_caches and self.score in PRODUCTS else cache
