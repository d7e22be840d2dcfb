"""What layers with weights share: saving of their options, and initialization of their kernels."""

import inspect

import keras

from keras_tfm import ops
from keras_tfm.common.arguments import UserError


class Layer(keras.layers.Layer):
    """A Keras layer whose config includes initializers and activations.

    Keras writes the config by itself if all arguments are plain values, so they are serialized before Keras sees them;
    all but the data type, which Keras always writes (and to serialize it would import TensorFlow).
    """

    def __new__(cls, *args, **kwargs):
        plain = keras.saving.serialize_keras_object
        kwargs.pop("dtype", None)
        return super().__new__(cls, *map(plain, args), **plain(kwargs))

    def set_options(self, options):
        """Makes each option an attribute of its name."""
        for name, value in options.items():
            setattr(self, name, value)


def options_of(kind, arguments):
    """Those of the arguments, by name, that the constructor of a class of layers takes as options."""
    names = inspect.signature(kind.__init__).parameters.keys() - {"self", "kwargs"}
    return {name: value for name, value in arguments.items() if name in names}


def check_sequence(name, shape):
    """Raises an error unless this is the shape of a batch of sequences."""
    if len(shape) != 3:
        raise UserError(f"`{name}` must be (batch, length, features). Received: {name}.shape={tuple(shape)}")


def initializer(name, value):
    """The Keras initializer for a name, a config or an initializer."""
    try:
        return keras.initializers.get(value)
    except (TypeError, ValueError) as error:
        raise UserError(f"`{name}` must be a Keras initializer or its name. Received: {name}={value!r}") from error


def fresh(initializer):
    """A copy of an initializer, which draws other numbers unless it has a seed; functions are returned as they are."""
    return initializer.clone() if hasattr(initializer, "clone") else initializer


def as_matrices(initializer, inputs, outputs, matrices=1):
    """Initializes a kernel of rank 3 as matrices of this size; Keras would treat it as that of a convolution."""

    def draw(shape, dtype=None):
        return ops.reshape(ops.stack([fresh(initializer)((inputs, outputs), dtype) for _ in range(matrices)]), shape)

    return draw
