"""What layers with weights have in common: options that Keras saves, and kernels that begin as told."""

import keras
from keras import ops


class Layer(keras.layers.Layer):
    """A Keras layer that is saved with its initializers and activations.

    Keras by itself writes the config of layers whose arguments are all plain values, so it is shown plain values.
    """

    def __new__(cls, *args, **kwargs):
        plain = keras.saving.serialize_keras_object
        return super().__new__(cls, *map(plain, args), **plain(kwargs))


def initializer(name, value):
    """A Keras initializer, for its name, its config or itself."""
    try:
        return keras.initializers.get(value)
    except (TypeError, ValueError) as error:
        raise ValueError(f"`{name}` must be a Keras initializer or its name. Received: {name}={value!r}") from error


def fresh(initializer):
    """A copy that draws other numbers, unless its seed was given; a function as it is."""
    return initializer.clone() if hasattr(initializer, "clone") else initializer


def as_matrices(initializer, inputs, outputs, matrices=1):
    """For kernels of rank 3, whose axes Keras would take for those of a convolution: drawn as matrices of this size."""

    def draw(shape, dtype=None):
        return ops.reshape(ops.stack([fresh(initializer)((inputs, outputs), dtype) for _ in range(matrices)]), shape)

    return draw
