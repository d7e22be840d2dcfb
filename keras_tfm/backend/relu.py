"""The rectifier, with a gradient that needs only its output."""

import keras
from keras import ops


def relu(x):
    """max(x, 0). JAX would keep x for the gradient, and could not write only the output after a matrix product."""
    if keras.backend.backend() != "jax":
        return ops.relu(x)
    import jax

    @jax.custom_vjp
    def rectified(x):
        return jax.numpy.maximum(x, 0)

    def forwards(x):
        y = rectified(x)
        return y, y

    rectified.defvjp(forwards, lambda y, upstream: (jax.numpy.where(y > 0, upstream, 0),))
    return rectified(ops.convert_to_tensor(x))
