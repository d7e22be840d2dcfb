"""Attention: score the keys, mix the values.

The maths are free functions, to be read beside a paper; the layers hold the parameters.
Axes: b batch, q query, k key, h heads, g key/value heads, r query heads that share one of them, d head_dim.
"""

import math
from functools import partial

import keras
from keras import ops

from keras_tfm import kernels, recording
from keras_tfm.arguments import one_of, positive, rate
from keras_tfm.backend import tensors
from keras_tfm.layers import masks
from keras_tfm.layers.base import as_matrices, fresh, initializer
from keras_tfm.layers.positions import SCHEMES


def dot(q, k):
    """qᵀk, as every score: queries (b, q, h, d), keys (b, k, g, d) → (b, h, q, k)."""
    heads, groups = q.shape[2], k.shape[2]
    scores = ops.matmul(_grouped(_swapped(q), groups), ops.transpose(_swapped(k), (0, 1, 3, 2)))
    return _grouped(scores, heads)


def scaled_dot(q, k):
    """qᵀk / √d (https://arxiv.org/abs/1706.03762); without the scale, large `d` saturates the softmax."""
    return dot(q * q.shape[-1] ** -0.5, k)


def cosine(q, k, log_temperature):
    """√d cos(q, k) / temperature, which each head learns (https://arxiv.org/abs/2010.04245); it starts at one."""
    q, k = (ops.cast(x, "float32") for x in (q, k))
    q, k = (x * ops.rsqrt(ops.sum(x * x, axis=-1, keepdims=True) + 1e-12) for x in (q, k))  # smooth at zero, too
    return scaled_dot(q * (q.shape[-1] * ops.exp(-ops.cast(log_temperature, "float32")))[:, None], k)


def bilinear(q, k, kernel):
    """qᵀWk, Luong's "general" score (https://arxiv.org/abs/1508.04025)."""
    return dot(ops.einsum("bqhd,hde->bqhe", q, kernel), k)


def additive(q, k, query_kernel, key_kernel, vector):
    """vᵀ tanh(Wq + Uk), the multi-layer perceptron of https://arxiv.org/abs/1409.0473."""
    k = ops.repeat(k, q.shape[2] // k.shape[2], axis=2)
    wq = ops.einsum("bqhd,hde->bqhe", q, query_kernel)
    uk = ops.einsum("bkhd,hde->bkhe", k, key_kernel)
    return ops.einsum("bqkhd,hd->bhqk", ops.tanh(wq[:, :, None] + uk[:, None]), vector)


def concat(q, k, kernel, vector):
    """vᵀ tanh(W[q; k]) (https://arxiv.org/abs/1508.04025): W's upper half meets q, its lower half k."""
    return additive(q, k, *ops.split(kernel, 2, axis=1), vector)


# Word → function and its weights, each given per head and in units of head_dim.
SCORES = {
    "dot": (dot, {}),
    "scaled_dot": (scaled_dot, {}),
    "cosine": (cosine, {"log_temperature": ()}),
    "bilinear": (bilinear, {"kernel": (1, 1)}),
    "additive": (additive, {"query_kernel": (1, 1), "key_kernel": (1, 1), "vector": (1,)}),
    "concat": (concat, {"kernel": (2, 1), "vector": (1,)}),
}


def soft(scores, mask=None):
    """Softmax over the keys that may be attended to: float32 scores (b, h, q, k) → weights of the same shape."""
    if mask is not None:
        scores = ops.where(mask, scores, -1e30)
    single = scores.shape[-1] == 1  # of which Keras' softmax would warn
    return scores - scores + 1 if single else ops.softmax(scores)


def hard(scores, mask=None):
    """All weight on the best key; the gradient passes straight through to the softmax."""
    weights = soft(scores, mask)
    best = ops.one_hot(ops.top_k(weights, 1)[1][..., 0], ops.shape(weights)[-1], dtype=weights.dtype)
    return best + (weights - ops.stop_gradient(weights))


MIXINGS = {"soft": soft, "hard": hard}


def attend(q, k, v, score=scaled_dot, mixing=soft, mask=None, bias=None, dropout=None):
    """Mixes the values by how well queries and keys agree.

    Args:
        q, k, v: queries (b, q, h, d), keys and values (b, k, g, d); `g` divides `h`.
        score, mixing: functions as in `SCORES` and `MIXINGS`.
        mask: booleans, True = may attend: (b, k), (b or 1, q, k) or (b or 1, h or 1, q, k).
        bias, dropout: what to add to the scores (b, h, q, k), what to apply to the weights.

    Returns:
        context (b, q, h, d) and float32 weights (b, h, q, k); both zero for queries that may attend to nothing.

    >>> q = k = v = keras.random.normal((2, 5, 4, 8))
    >>> context, weights = attend(q, k, v, mask=masks.causal(5, 5))
    >>> print(context.shape, weights.shape)
    (2, 5, 4, 8) (2, 4, 5, 5)
    """
    mask = masks.combine(masks.check("mask", mask), rank=4)
    scores = ops.cast(score(q, k), "float32")
    if bias is not None:
        scores = scores + ops.cast(bias, "float32")
    weights = mixing(scores, mask)
    dropped = ops.cast(weights if dropout is None else dropout(weights), v.dtype)
    mixed = ops.matmul(_grouped(dropped, v.shape[2]), _swapped(v))
    context = _swapped(_grouped(mixed, q.shape[2]))
    if mask is None:
        return context, weights
    some = ops.any(mask, axis=-1, keepdims=True)  # (b, h, q, 1)
    return ops.where(ops.transpose(some, (0, 2, 1, 3)), context, 0), ops.where(some, weights, 0.0)


def self_attention(x, mask=None):
    """Self-attention without parameters, `y_i = Σ_j softmax_j(x_i · x_j) x_j`; x (b, t, d), mask (b or 1, t, t).

    >>> print(self_attention(ops.ones((1, 3, 4))).shape)
    (1, 3, 4)
    """
    head = ops.convert_to_tensor(x)[:, :, None]
    return attend(head, head, head, score=dot, mask=mask)[0][:, :, 0]


def local_attention(attend, q, k, v, window, causal=False, key_mask=None):
    """Attention to keys less than `window` away, at a cost that grows with length × window.

    The sequence is cut into blocks of `window`; each becomes a row of the batch that sees itself and its neighbours.
    There, `attend(q, k, v, mask) → context` finds query `i` at position `i + window`. Mask: (b, t).
    """
    batch, length = ops.shape(q)[:2]
    blocks = (length + window - 1) // window
    seen = 2 if causal else 3  # the block before, the block itself and the one after
    near = masks.window(window, seen * window, window, start=window)
    past = masks.causal(window, seen * window, start=window) if causal else None
    key_mask = ops.ones((batch, length), dtype="bool") if key_mask is None else key_mask

    def pad(x, before):
        return ops.pad(x, [(0, 0), (before, 2 * window), (0, 0), (0, 0)][: len(x.shape)])

    def cut(x, first, count, seen):  # padded (b, t, …) → (b · count, seen · window, …)
        parts = [x[:, (first + n) * window : (first + n + count) * window] for n in range(seen)]
        parts = [ops.reshape(part, (batch * count, window, *x.shape[2:])) for part in parts]
        return ops.concatenate(parts, axis=1)

    q, k, v, key_mask = pad(q, 0), pad(k, window), pad(v, window), pad(key_mask, window)
    known_length = isinstance(blocks, int)
    group = max(2048 // window, -(-blocks // 8), 1) if known_length else blocks  # few enough to stay in a cache
    contexts = []
    for first in range(0, blocks, group) if known_length else (0,):
        count = min(group, blocks - first) if known_length else blocks
        mask = masks.combine(cut(key_mask, first, count, seen), near, past)
        context = attend(cut(q, first, count, 1), cut(k, first, count, seen), cut(v, first, count, seen), mask)
        contexts.append(ops.reshape(context, (batch, count * window, *q.shape[2:])))
    return ops.concatenate(contexts, axis=1)[:, :length]


# Word → width of a head, for an input of width k and h heads.
HEADS = {
    "standard": lambda k, h: k // h,  # each head sees the whole input, through k/h features
    "narrow": lambda k, h: k // h,  # each head sees only its own chunk of k/h features
    "wide": lambda k, h: k,  # each head sees the whole input, through k features
}


def glorot(fan_in, fan_out):
    """Glorot's uniform limits for the weights of a score, which are matrices or vectors of each head."""
    limit = (6 / (fan_in + fan_out)) ** 0.5
    return keras.initializers.RandomUniform(-limit, limit)


@keras.saving.register_keras_serializable(package="keras_tfm")
class MultiHeadAttention(masks.MaskedLayer):
    """Attention of one sequence to another.

    Its weights have the order and the shapes of those of `keras.layers.MultiHeadAttention`.

    Args:
        num_heads: number of query heads.
        num_kv_heads: number of key/value heads, a divisor of `num_heads` and by default the same; one is multi-query,
            a few are grouped attention (https://arxiv.org/abs/2305.13245).
        heads, score, mixing: words of `HEADS`, `SCORES` and `MIXINGS`.
        attention_dropout: rate of dropout on the attention weights.
        use_bias, kernel_initializer, bias_initializer: of the four projections, as in Keras.

    Call arguments:
        x, memory: (batch, query, features) and (batch, key, any features).
        mask: (batch, query); where it is False, nothing is attended to.
        memory_mask: (batch, key), (batch, query, key) or (batch, heads, query, key).
        attention_mask: (query, key), (batch, query, key) or (batch, heads, query, key).
        cache: what `memory_cache(memory)` returned, in place of `memory`; `x` may have several rows for each of it.

    Returns:
        (batch, query, features); with a cache, the same and the cache.

    >>> x, memory = ops.ones((2, 3, 8)), ops.ones((2, 5, 16))
    >>> print(MultiHeadAttention(num_heads=4, num_kv_heads=2)(x, memory).shape)
    (2, 3, 8)
    """

    OPTIONS = ("num_kv_heads", "heads", "score", "mixing", "attention_dropout")
    OPTIONS += ("use_bias", "kernel_initializer", "bias_initializer")
    causal, window, scheme = False, None, SCHEMES[None]  # self-attention sets its own

    def __init__(
        self,
        num_heads,
        num_kv_heads=None,
        heads="standard",
        score="scaled_dot",
        mixing="soft",
        attention_dropout=0.0,
        use_bias=True,
        kernel_initializer="glorot_uniform",
        bias_initializer="zeros",
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.num_heads = positive("num_heads", num_heads)
        self.num_kv_heads = positive("num_kv_heads", num_kv_heads, optional=True) or num_heads
        if num_heads % self.num_kv_heads:
            raise ValueError(f"`num_kv_heads` must divide {num_heads=}. Received: {num_kv_heads=}")
        self.heads = one_of("heads", heads, HEADS)
        self.score = one_of("score", score, SCORES)
        self.mixing = one_of("mixing", mixing, MIXINGS)
        self.use_bias = one_of("use_bias", use_bias, (False, True))
        self.kernel_initializer = initializer("kernel_initializer", kernel_initializer)
        self.bias_initializer = initializer("bias_initializer", bias_initializer)
        attention_dropout = rate("attention_dropout", attention_dropout)
        self.dropout = keras.layers.Dropout(attention_dropout, dtype="float32") if attention_dropout else None

    def build(self, x_shape, memory_shape=None):
        width, memory_width = x_shape[-1], (memory_shape or x_shape)[-1]
        narrow = self.heads == "narrow"
        if self.heads != "wide" and width % self.num_heads or narrow and memory_width % self.num_kv_heads:
            raise ValueError(
                "`num_heads` must divide the width, and `num_kv_heads` that of the memory of narrow heads. Received: "
                f"num_heads={self.num_heads}, num_kv_heads={self.num_kv_heads}, {width=}, {memory_width=}"
            )
        self.head_dim = HEADS[self.heads](width, self.num_heads)
        self.query_dense = self._head_dense("query", width, self.num_heads)
        self.key_dense = self._head_dense("key", memory_width, self.num_kv_heads)
        self.value_dense = self._head_dense("value", memory_width, self.num_kv_heads)
        # The letters of heads and features are in their order, in which JAX contracts them; else it copies the kernel.
        self.output_dense = self._dense("output", "bqcd,cde->bqe", (self.num_heads, self.head_dim), (width,))
        self.score_weights = {}
        for name, units in SCORES[self.score][1].items():
            shape = [unit * self.head_dim for unit in units]
            initializer = glorot(*[*shape, 1][:2]) if shape else "zeros"
            self.score_weights[name] = self.add_weight((self.num_heads, *shape), initializer, name=name)

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
            bias_initializer=fresh(self.bias_initializer),
            dtype=self.dtype_policy,
            name=name,
        )
        dense.supports_masking = True
        dense.build((None, None, *inputs))
        return dense

    def call(self, x, memory=None, mask=None, memory_mask=None, attention_mask=None, cache=None, training=None):
        if (memory is None) == (cache is None):
            received = "neither" if cache is None else "both"
            raise ValueError(f"`memory` must be given, or a `cache` made from it instead. Received: {received}")
        if cache is None:
            k, v = self.project(memory, self.key_dense, self.value_dense)
            key_mask = masks.combine(masks.merge(memory), memory_mask)
        else:
            k, v, key_mask = _swapped(cache["k"]), _swapped(cache["v"]), masks.combine(cache.get("mask"), memory_mask)
        if key_mask is not None and len(key_mask.shape) > 2:
            key_mask, attention_mask = None, masks.combine(key_mask, attention_mask)
        (q,) = self.project(x, self.query_dense)
        if cache is not None and attention_mask is None:
            q = self.side_by_side(q, k)
        context = self.context(q, k, v, key_mask, attention_mask, training)
        if cache is None:
            return self.finish(context, mask)
        return self.finish(ops.reshape(context, (*ops.shape(x)[:2], *context.shape[2:])), mask), cache

    def side_by_side(self, q, k):
        """Rows that share a row of keys become queries of one row: (b · n, q, h, d) → (b, n · q, h, d)."""
        rows, sources = ops.shape(q)[0], ops.shape(k)[0]
        if not ops.is_tensor(rows) and rows == sources:
            return q
        at_least_one = ops.maximum(sources, 1) if ops.is_tensor(sources) else sources
        return ops.reshape(q, (sources, rows // at_least_one * ops.shape(q)[1], *q.shape[2:]))

    def memory_cache(self, memory, memory_mask=None):
        """Of a memory that stays the same from step to step: keys, values (batch, kv_heads, key, head_dim), mask."""
        self.check_built("memory_cache")
        k, v = self.project(memory, self.key_dense, self.value_dense)
        cache = {"k": _swapped(k), "v": _swapped(v)}
        mask = masks.merge(memory, masks.check("memory_mask", memory_mask, ranks=(2,), of=memory))
        if mask is None:
            return cache
        # Padding is zero; what is masked here, XLA does not move back to the other order, to do it at each step.
        return {name: ops.where(mask[:, None, :, None], x, 0) for name, x in cache.items()} | {"mask": mask}

    def project(self, x, *layers):
        """(b, t, features) → (b, t, heads, head_dim) for each of the dense layers."""
        if self.heads == "narrow":
            return [layer(ops.reshape(x, (*ops.shape(x)[:2], *layer.kernel.shape[:2]))) for layer in layers]
        return kernels.current().dense(x, *layers)

    def context(self, q, k, v, key_mask=None, attention_mask=None, training=None):
        """What the queries find, (b, q, h, d), by the cheapest way that is exact."""
        dropping = self.dropout is not None and training
        plain = self.score == "scaled_dot" and self.mixing == "soft" and self.scheme.bias is None and not dropping
        if attention_mask is None and not recording.recording():
            length = ops.shape(q)[1]
            if self.window and not (isinstance(length, int) and length <= 2 * self.window):
                weigh = partial(self.weigh, start=self.window, training=training)
                return local_attention(weigh, q, k, v, self.window, self.causal, key_mask)
            if plain and not self.window:
                context = kernels.current().attention(q, k, v, key_mask, self.causal)
                if context is not None:
                    return context
        return self.full_context(q, k, v, key_mask, attention_mask, training=training)

    def full_context(self, q, k, v, key_mask, attention_mask, start=0, training=None, room=None):
        lengths = ops.shape(q)[1], ops.shape(k)[1] if room is None else room
        past = kernels.current().once(start, partial(masks.causal, *lengths, start)) if self.causal else None
        near = masks.window(*lengths, self.window, start) if self.window else None
        if room is not None and key_mask is None and attention_mask is None:  # of tokens, each of which sees itself
            return self.weigh(q, k, v, None, start, training, hidden=masks.hidden(masks.combine(past, near, rank=4)))
        return self.weigh(q, k, v, masks.combine(key_mask, past, near, attention_mask), start, training)

    def weigh(self, q, k, v, mask, start=0, training=None, hidden=None):
        score = partial(SCORES[self.score][0], **self.score_weights)
        bias = hidden
        if self.scheme.bias is not None:
            distance = masks.distance(ops.shape(q)[1], ops.shape(k)[1], start)
            bias = self.scheme.bias(distance, self.num_heads, self.causal, **self.position_weights)
            bias = bias if hidden is None else ops.cast(bias, "float32") + hidden
        dropout = partial(self.dropout, training=training) if self.dropout else None
        context, weights = attend(q, k, v, score, MIXINGS[self.mixing], mask, bias, dropout)
        if recording.recording():
            recording.record(self.path, weights)
        return context

    def finish(self, context, mask):
        """(b, q, h, d) → (b, q, features)."""
        if mask is not None:
            context = ops.where(ops.expand_dims(mask, (2, 3)), context, 0)
        return self.output_dense(context)


@keras.saving.register_keras_serializable(package="keras_tfm")
class MultiHeadSelfAttention(MultiHeadAttention):
    """Attention of a sequence to itself.

    Args:
        num_heads: number of query heads.
        causal: whether a token sees only itself and what came before.
        window: if given, a token sees only what is less than `window` away; linear cost but for custom masks and cache.
        positions: None, "rotary", "relative" (T5's bias) or "alibi".
        **kwargs: the other options of `MultiHeadAttention`.

    Call arguments:
        x, mask: (batch, length, features) and (batch, length); Keras fills in the mask of `Embedding(mask_zero=True)`.
        attention_mask: (query, key), (batch, query, key) or (batch, heads, query, key), True = may attend.
        cache, start: of `empty_cache`; `x` is written into it from position `start` on.

    Returns:
        (batch, length, features); with a cache, the same and the new cache.

    >>> layer, x = MultiHeadSelfAttention(num_heads=2, causal=True, positions="rotary"), ops.ones((1, 3, 8))
    >>> y = layer(x)
    >>> y, cache = layer(x[:, :1], cache=layer.empty_cache(batch_size=1, max_length=3), start=0)
    >>> y, cache = layer(x[:, 1:], cache=cache, start=1)
    """

    OPTIONS = ("causal", "window", "positions", *MultiHeadAttention.OPTIONS)

    def __init__(self, num_heads, causal=False, window=None, positions=None, **kwargs):
        super().__init__(num_heads, **kwargs)
        self.causal = one_of("causal", causal, (False, True))
        self.window = positive("window", window, optional=True)
        self.positions = one_of("positions", positions, SCHEMES)
        self.scheme = SCHEMES[positions]

    def build(self, x_shape):
        super().build(x_shape)
        if self.positions == "rotary" and self.head_dim % 2:
            raise ValueError(f'`positions="rotary"` needs an even head_dim. Received: head_dim={self.head_dim}')
        normal = keras.initializers.RandomNormal(stddev=0.02)
        weights = self.scheme.weights(self.num_heads)
        self.position_weights = {name: self.add_weight(shape, normal, name=name) for name, shape in weights.items()}

    def call(self, x, mask=None, attention_mask=None, cache=None, start=0, training=None):
        q, k, v = self.project(x, self.query_dense, self.key_dense, self.value_dense)
        start = tensors.whole("start", start)
        places = ops.arange(ops.shape(x)[1], dtype="int32") + start
        q, k = self.scheme.rotate(q, places), self.scheme.rotate(k, places)
        if cache is None:
            return self.finish(self.context(q, k, v, mask, attention_mask, training), mask)
        q, slice_update = self.in_room(q, cache, start), kernels.current().slice_update
        new = {
            "k": slice_update(cache["k"], (0, 0, start, 0), _swapped(k)),
            "v": slice_update(cache["v"], (0, 0, start, 0), _swapped(v)),
        }
        if "mask" in cache:
            tokens = ops.ones(ops.shape(x)[:2], dtype="bool") if mask is None else mask
            new["mask"] = slice_update(cache["mask"], (0, start), tokens)
        elif mask is not None:
            raise ValueError("`mask` must not be given beside a cache of tokens alone, masked=False. Received: both")
        k, v, room = _swapped(new["k"]), _swapped(new["v"]), ops.shape(new["k"])[2]
        context = self.full_context(q, k, v, new.get("mask"), attention_mask, start, training, room)
        return self.finish(context, mask), new

    def empty_cache(self, batch_size, max_length, masked=True):
        """Room for keys and values (batch, kv_heads, max_length, head_dim), and if `masked` for which are tokens.

        Heads come first, since a matrix product of each step would else begin by moving the whole cache that way.
        """
        self.check_built("empty_cache")
        zeros = ops.zeros((batch_size, self.num_kv_heads, max_length, self.head_dim), dtype=self.compute_dtype)
        cache = {"k": zeros, "v": zeros}
        return {**cache, "mask": ops.zeros((batch_size, max_length), dtype="bool")} if masked else cache

    def in_room(self, q, cache, start):
        """The queries, if the cache has room for them; if only a run can know, NaN rather than a wrong place."""
        if not self.causal:
            raise ValueError("`cache` needs causal=True, since cached tokens see no later ones. Received: causal=False")
        if not kernels.current().checks_room:
            return q
        room, first, count = ops.shape(cache["k"])[2], tensors.known(start), ops.shape(q)[1]
        if first is None or not (isinstance(room, int) and isinstance(count, int)):
            return ops.where(ops.logical_and(start >= 0, start + count <= room), q, math.nan)
        if first < 0 or first + count > room:
            raise ValueError(f"`cache` must have room for every token. Received: {room=}, {count} tokens from {first}")
        return q


def _grouped(x, heads):
    """The same rows for another number of heads: (b, g, n, d) → (b, heads, n · g / heads, d)."""
    batch, groups, rows, dim = ops.shape(x)
    return x if groups == heads else tensors.reshape(x, (batch, heads, rows * groups // heads, dim))


def _swapped(x):
    """(b, t, g, d) ↔ (b, g, t, d)."""
    return ops.transpose(x, (0, 2, 1, 3))
