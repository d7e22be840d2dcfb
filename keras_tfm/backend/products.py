"""Products of matrices, with gradients that do not transpose the larger factor."""

import keras
from keras import ops


def product(x, kernel):
    """Rows x (n, k) times a kernel (k, m): (n, m)."""
    return ops.matmul(x, kernel) if keras.backend.backend() != "jax" else _with_jax(x, kernel, 0)


def product_with_rows(x, table):
    """Rows x (n, k) times the rows of a table (m, k): (n, m)."""
    if keras.backend.backend() != "jax":
        return ops.matmul(x, ops.transpose(table))
    return _with_jax(x, table, 1)


def _with_jax(x, factor, axis):
    """Contracts the last axis of x with an axis of the factor.

    JAX would compute the gradient of the factor as upstreamᵀ x, and XLA copies the upstream, which may be as large as
    the logits, to transpose it on CPUs; in xᵀ upstream it copies x.
    """
    import jax
    from jax import lax

    x, factor = ops.convert_to_tensor(x), ops.convert_to_tensor(factor)

    def contracted(a, b, axis_a, axis_b):
        return lax.dot_general(a, b, (((axis_a,), (axis_b,)), ((), ())))

    def gradient(saved, upstream):
        x, factor = saved
        to_factor = contracted(x, upstream, 0, 0)
        return contracted(upstream, factor, 1, 1 - axis), to_factor.T if axis else to_factor

    multiply = jax.custom_vjp(lambda x, factor: contracted(x, factor, 1, axis))
    multiply.defvjp(lambda x, factor: (multiply(x, factor), (x, factor)), gradient)
    return multiply(x, factor)
