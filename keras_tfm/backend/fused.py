"""Attention that does not hold the weights of all queries in memory."""

import keras
from keras import ops

from keras_tfm.backend.blockwise import BLOCK, blockwise_attention


def exact_attention(q, k, v, key_mask=None, causal=False):
    """`fused_attention`, or on TensorFlow attention in blocks of queries if there are, or may be, many."""
    length = q.shape[1]
    if keras.backend.backend() == "tensorflow" and (length is None or length > 2 * BLOCK):
        return blockwise_attention(q, k, v, key_mask, causal)
    return fused_attention(q, k, v, key_mask, causal)


def fused_attention(q, k, v, key_mask=None, causal=False):
    """Scaled dot-product attention by a fused kernel.

    Args:
        q, k, v: queries (batch, query, heads, head_dim), keys and values (batch, key, kv_heads, head_dim).
        key_mask: None or (batch, key), True = may attend. With `causal`, the context of queries that are themselves
            masked is undefined.
        causal: whether query `i` sees only the keys 0 … i.

    Returns:
        context (batch, query, heads, head_dim), or None if there is no fused kernel that computes exactly this.
    """
    if key_mask is not None:
        return _cudnn_attention(q, k, v, key_mask, causal) if keras.backend.backend() == "jax" else None
    if _jax_on_cpu() and keras.backend.standardize_dtype(q.dtype) == "float16":
        return None  # XLA on CPU cannot multiply float16 matrices
    if keras.backend.backend() == "tensorflow" and k.shape[2] == 1:  # Keras does not broadcast a single head there
        k, v = (ops.repeat(x, q.shape[2], axis=2) for x in (k, v))
    q = q * q.shape[-1] ** -0.5  # scaled before the product, which overflows float16 less easily
    return ops.dot_product_attention(q, k, v, scale=1.0, is_causal=causal)


def _jax_on_cpu():
    if keras.backend.backend() != "jax":
        return False
    import jax

    return jax.default_backend() == "cpu"


def _cudnn_attention(q, k, v, key_mask, causal):
    """cuDNN takes the number of keys instead of a mask, so tokens move to the front and padding to the end."""
    import jax
    from jax import numpy as jnp

    if jax.default_backend() != "gpu":
        return None

    def gather(x, order):
        return jnp.take_along_axis(x, order[:, :, None, None], axis=1, mode="promise_in_bounds")

    # JAX differentiates a gather into a scatter-add, which is slow on GPUs; a permutation only needs its inverse.
    permute = jax.custom_vjp(lambda x, order, inverse: gather(x, order))
    permute.defvjp(
        lambda x, order, inverse: (gather(x, order), inverse), lambda inverse, g: (gather(g, inverse), None, None)
    )

    order = jnp.argsort(~key_mask, axis=1, stable=True)
    inverse = jnp.argsort(order, axis=1)
    k, v = permute(k, order, inverse), permute(v, order, inverse)
    if causal:
        q = permute(q, order, inverse)
    lengths = key_mask.sum(axis=1, dtype="int32")
    try:
        context = jax.nn.dot_product_attention(
            q, k, v, is_causal=causal, key_value_seq_lengths=jnp.maximum(lengths, 1), implementation="cudnn"
        )
    except (NotImplementedError, RuntimeError):  # cuDNN is missing, or does not support this dtype, length or head_dim
        return None
    if causal:
        context = permute(context, inverse, order)
    return jnp.where(lengths[:, None, None, None] > 0, context, 0)
