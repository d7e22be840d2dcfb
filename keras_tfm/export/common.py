"""What exports by the TensorFlow backend share."""

import keras


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
