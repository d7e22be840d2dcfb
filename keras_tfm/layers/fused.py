"""Fused attention kernels: the one place that asks which backend is running."""

import keras
from keras import ops


def attention(q, k, v, key_mask=None, causal=False):
    """Scaled dot-product attention by a fused kernel, or None where there is none that is exact.

    Args:
        q: queries (batch, query, heads, head_dim).
        k, v: keys and values (batch, key, kv_heads, head_dim).
        key_mask: None or (batch, key).
        causal: whether query `i` sees only keys up to `i`.

    Returns:
        (batch, query, heads, head_dim) or None.
    """
    if key_mask is None:
        return ops.dot_product_attention(q, k, v, is_causal=causal)
    return None
