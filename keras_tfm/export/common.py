"""What exports share."""

import keras

from keras_tfm.arguments import one_of


def graph_of(function, *specs):
    """`function` as a TensorFlow graph; `specs` are shape, dtype and name of each argument."""
    tf = tensorflow()
    return tf.function(function, input_signature=[tf.TensorSpec(*spec) for spec in specs], autograph=False)


def tensorflow():
    """The module `tensorflow`; raises an error if Keras runs on another backend."""
    if keras.backend.backend() != "tensorflow":
        raise RuntimeError(
            "This export needs the TensorFlow backend: save the translator, and load it where KERAS_BACKEND=tensorflow."
            f" Received: the {keras.backend.backend()} backend"
        )
    import tensorflow as tf

    return tf


def check_options(model, holder, allowed, free):
    """Raises an error unless another format can hold the model, else returns its options of `allowed`.

    Args:
        model: a model of `keras_tfm.models`.
        holder: name of the format, for the message.
        allowed: option → values that the format supports, the default first.
        free: options whose value does not matter.
    """
    unknown = [name for name in model.arguments if name not in free and name not in allowed]
    if unknown:
        raise ValueError(
            f"`translator` must have a model that {holder} can hold, which knows no {' and no '.join(unknown)}. "
            f"Received: {type(model).__name__}"
        )
    return {name: one_of(name, model.arguments.get(name, values[0]), values) for name, values in allowed.items()}
