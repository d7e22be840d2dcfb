"""The functions of the backend that Keras runs on. The choice of a backend for a computation is made here only."""

import importlib

import keras

from keras_tfm.ops import plain, xla_flags

xla_flags.set_flags()
_BACKEND = importlib.import_module(f"keras_tfm.ops.{keras.backend.backend()}")


def _chosen(name):
    """The backend's function, or else the plain one."""
    return getattr(_BACKEND, name, getattr(plain, name))


matmul, matmul_transposed, relu = _chosen("matmul"), _chosen("matmul_transposed"), _chosen("relu")
embed, layer_norm, crossentropy = _chosen("embed"), _chosen("layer_norm"), _chosen("crossentropy")
attention, short_attention = _BACKEND.attention, _BACKEND.short_attention  # short: for programs without gradients
random_bits, to_numpy = _chosen("random_bits"), _chosen("to_numpy")
