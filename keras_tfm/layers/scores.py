"""Attention as functions, to be read beside the papers: score the keys, then average the values by those scores.

Axes: b batch, q query, k key, t time, h query heads, g key/value heads, d head_dim.
"""

from collections.abc import Callable
from typing import Any

import keras  # noqa: F401, for the examples

from keras_tfm import ops
from keras_tfm.layers import masks


def dot(q, k):
    """qᵀk. Like every score, it takes queries (b, q, h, d) and keys (b, k, g, d) and returns (b, h, q, k)."""
    heads, groups = q.shape[2], k.shape[2]
    scores = ops.matmul(ops.group_heads(ops.swap_heads(q), groups), ops.transpose(ops.swap_heads(k), (0, 1, 3, 2)))
    return ops.group_heads(scores, heads)


def scaled_dot(q, k):
    """qᵀk / √d (https://arxiv.org/abs/1706.03762); without the scale, large `d` saturates the softmax."""
    return dot(q * q.shape[-1] ** -0.5, k)


def cosine(q, k, log_temperature):
    """√d cos(q, k) / temperature (https://arxiv.org/abs/2010.04245); each head learns its own, starting at one."""
    q, k = (ops.cast(x, "float32") for x in (q, k))
    q, k = (x * ops.rsqrt(ops.sum(x * x, axis=-1, keepdims=True) + 1e-12) for x in (q, k))  # differentiable at zero
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
    """vᵀ tanh(W[q; k]) (https://arxiv.org/abs/1508.04025): the upper half of W multiplies q, the lower half k."""
    return additive(q, k, *ops.split(kernel, 2, axis=1), vector)


# Name → the function and the shapes of its weights, per head and in units of head_dim.
SCORES = {
    "dot": (dot, {}),
    "scaled_dot": (scaled_dot, {}),
    "cosine": (cosine, {"log_temperature": ()}),
    "bilinear": (bilinear, {"kernel": (1, 1)}),
    "additive": (additive, {"query_kernel": (1, 1), "key_kernel": (1, 1), "vector": (1,)}),
    "concat": (concat, {"kernel": (2, 1), "vector": (1,)}),
}
PRODUCTS = {"dot", "scaled_dot", "cosine", "bilinear"}  # of matrices, in which more keys cost little


def soft(scores, mask=None):
    """Softmax over the keys that the mask allows: float32 scores (b, h, q, k) → weights of the same shape."""
    return ops.masked_softmax(scores, mask)


def hard(scores, mask=None):
    """All the weight on the best key; the gradient is that of the softmax (straight-through)."""
    weights = soft(scores, mask)
    best = ops.one_hot(ops.top_k(weights, 1)[1][..., 0], ops.shape(weights)[-1], dtype=weights.dtype)
    return best + (weights - ops.stop_gradient(weights))


MIXINGS = {"soft": soft, "hard": hard}


def attend(
    q: Any,
    k: Any,
    v: Any,
    score: Callable = scaled_dot,
    mixing: Callable = soft,
    mask: Any = None,
    bias: Any = None,
    dropout: Callable | None = None,
    chosen: Any = None,
) -> Any:
    """Averages the values, weighted by how well the queries match the keys.

    Args:
        q, k, v: queries (b, q, h, d), keys and values (b, k, g, d); `g` divides `h`.
        score, mixing: functions such as those in `SCORES` and `MIXINGS`.
        mask: booleans, True = may attend: (b, k), (b or 1, q, k) or (b or 1, h or 1, q, k).
        bias: added to the scores, broadcast to (b, h, q, k).
        dropout: function applied to the weights.
        chosen: booleans (b, q, t, s), if there are keys in s slots at each of t positions, k = t · s: the slot that a
            query sees at each position. Mask, bias and weights are then those of t positions.

    Returns:
        context (b, q, h, d) and float32 weights (b, h, q, k); both are zero for queries that may attend to nothing.

    >>> q = k = v = keras.random.normal((2, 5, 4, 8))
    >>> context, weights = attend(q, k, v, mask=masks.causal(5, 5))
    >>> print(context.shape, weights.shape)
    (2, 5, 4, 8) (2, 4, 5, 5)
    """
    mask = masks.combine(masks.check("mask", mask), rank=4)
    scores = ops.cast(score(q, k), "float32")
    if chosen is not None:
        slots = ops.static_reshape(scores, (*ops.shape(scores)[:3], *ops.shape(chosen)[2:]))
        scores = ops.sum(ops.where(chosen[:, None], slots, 0.0), axis=-1)  # (b, h, q, t)
    if bias is not None:
        scores = scores + ops.cast(bias, "float32")
    weights = mixing(scores, mask)
    dropped = ops.cast(weights if dropout is None else dropout(weights), v.dtype)
    if chosen is not None:
        slots = ops.where(chosen[:, None], ops.expand_dims(dropped, -1), 0)  # (b, h, q, t, s)
        dropped = ops.static_reshape(slots, (*ops.shape(dropped)[:3], ops.shape(k)[1]))
    mixed = ops.matmul(ops.group_heads(dropped, v.shape[2]), ops.swap_heads(v))
    context = ops.swap_heads(ops.group_heads(mixed, q.shape[2]))
    if mask is None:
        return context, weights
    some = ops.any(mask, axis=-1, keepdims=True)  # (b, h, q, 1)
    return ops.where(ops.transpose(some, (0, 2, 1, 3)), context, 0), ops.where(some, weights, 0.0)


def self_attention(x: Any, mask: Any = None) -> Any:
    """Self-attention without parameters, `y_i = Σ_j softmax_j(x_i · x_j) x_j`, for x (b, t, d), mask (b or 1, t, t).

    >>> print(self_attention(ops.ones((1, 3, 4))).shape)
    (1, 3, 4)
    """
    head = ops.convert_to_tensor(x)[:, :, None]
    return attend(head, head, head, score=dot, mask=mask)[0][:, :, 0]


def local_attention(attend, q, k, v, window, causal=False, key_mask=None):
    """Attention to keys less than `window` positions away; the cost grows with length × window.

    The sequence is cut into blocks of `window` tokens. `attend(q, k, v, mask) → context` gets each block as a row of
    the batch, with the block and its neighbours as keys: query `i` is at position `i + window` among them.
    """
    batch, length = ops.shape(q)[:2]
    blocks = (length + window - 1) // window
    seen = 2 if causal else 3  # the previous block, the block itself and, unless causal, the next
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
    group = max(2048 // window, -(-blocks // 8), 1) if known_length else blocks  # small enough for the CPU cache
    contexts = []
    for first in range(0, blocks, group) if known_length else (0,):
        count = min(group, blocks - first) if known_length else blocks
        mask = masks.combine(cut(key_mask, first, count, seen), near, past)
        context = attend(cut(q, first, count, 1), cut(k, first, count, seen), cut(v, first, count, seen), mask)
        contexts.append(ops.reshape(context, (batch, count * window, *q.shape[2:])))
    return ops.concatenate(contexts, axis=1)[:, :length]
