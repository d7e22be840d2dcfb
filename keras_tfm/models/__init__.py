"""Functional Keras models made of the layers; they can also encode and decode step by step."""

from keras_tfm.common.lazy import attach as _attach

__getattr__, __dir__, __all__ = _attach(__name__, __file__)

from keras_tfm import registration as _registration  # noqa: E402, last, since it imports names from here
