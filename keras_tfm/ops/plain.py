"""What each function means, in `keras.ops`. The file of each backend imports all of them and defines faster ones."""

import keras
from keras import ops

from keras_tfm.ops.tensors import group_heads, masked_softmax, swap_heads


def matmul(x, kernel):
    """Rows x (n, k) times a kernel (k, m): (n, m)."""
    return ops.matmul(x, kernel)


def matmul_transposed(x, table):
    """Rows x (n, k) times the rows of a table (m, k): (n, m)."""
    return ops.matmul(x, ops.transpose(table))


def relu(x):
    """max(x, 0)."""
    return ops.relu(x)


def embed(table, ids):
    """Rows of a table (size, features) for ids (…): (…, features)."""
    return ops.take(table, ids, axis=0)


def layer_norm(layer, x):
    """The output of Keras' `LayerNormalization`."""
    return keras.layers.LayerNormalization.call(layer, x)


def is_simple_norm(layer, x):
    """Whether a norm layer normalizes the last axis of x and has a scale and an offset."""
    axes = layer.axis if isinstance(layer.axis, (list, tuple)) else [layer.axis]
    last = [axis % len(x.shape) for axis in axes] == [len(x.shape) - 1]
    return last and layer.center and layer.scale and not layer.rms_scaling


def crossentropy(labels, logits, smoothing=0.0):
    """−Σ q log p, where q gives a label the probability 1 − `smoothing` and spreads the rest over the vocabulary.

    Args:
        labels: ids (batch, length) or (batch,).
        logits: (batch, length, vocab_size) or (batch, vocab_size).

    Returns:
        float32, in the shape of the labels.
    """
    logits = ops.cast(logits, "float32")
    chosen = ops.take_along_axis(logits, ops.cast(labels, "int32")[..., None], axis=-1)[..., 0]
    losses = ops.logsumexp(logits, axis=-1) - (1 - smoothing) * chosen
    return losses - smoothing * ops.mean(logits, axis=-1) if smoothing else losses


def attention(q, k, v, key_mask=None, causal=False):
    """softmax(q kᵀ / √head_dim) v: scaled dot-product attention, which holds the weights of all queries.

    Args:
        q, k, v: queries (batch, query, heads, head_dim), keys and values (batch, key, kv_heads, head_dim).
        key_mask: None or (batch, key), True = may attend. With `causal`, the context of queries that are themselves
            masked is undefined.
        causal: whether query `i` sees only the keys 0 … i.

    Returns:
        context (batch, query, heads, head_dim), zero for queries that may attend to nothing.
    """
    heads, groups, mask = q.shape[2], k.shape[2], None if key_mask is None else key_mask[:, None, None, :]
    if causal:
        past = ops.arange(ops.shape(k)[1]) <= ops.arange(ops.shape(q)[1])[:, None]
        mask = past[None, None] if mask is None else ops.logical_and(mask, past)
    queries = group_heads(swap_heads(q * q.shape[-1] ** -0.5), groups)
    scores = ops.matmul(queries, ops.transpose(swap_heads(k), (0, 1, 3, 2)))
    weights = ops.cast(masked_softmax(ops.cast(group_heads(scores, heads), "float32"), mask), v.dtype)
    context = swap_heads(group_heads(ops.matmul(group_heads(weights, groups), swap_heads(v)), heads))
    if mask is None:
        return context
    some = ops.any(mask, axis=-1, keepdims=True)  # (batch, 1, query or 1, 1)
    return ops.where(ops.transpose(some, (0, 2, 1, 3)), context, 0)


def keras_attention(q, k, v, key_mask=None, causal=False):
    """`attention` by Keras' fused kernel, if there is no mask; Keras' result for a masked query is not zero."""
    if key_mask is not None:
        return attention(q, k, v, key_mask, causal)
    q = q * q.shape[-1] ** -0.5  # scaled before the product, which overflows float16 less easily
    return ops.dot_product_attention(q, k, v, scale=1.0, is_causal=causal)


def packs_attention(inputs, memory, heads, dtype):
    """Whether `packed_attention` exists for inputs, a memory (batch, length, …) and heads [(number, head_dim)] × 3."""
    return False


def random_bits(shape, seed_generator):
    """Random uint16 of a shape by a `keras.random.SeedGenerator`; None where Keras' own layer should draw."""
    return None


def to_numpy(variables):
    """NumPy arrays of a list of variables."""
    return [ops.convert_to_numpy(variable) for variable in variables]
