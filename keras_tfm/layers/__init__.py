"""Layers to import into your own Keras models."""

from keras_tfm.common.lazy import attach as _attach

__getattr__, __dir__, __all__ = _attach(__name__, __file__)

from keras_tfm import registration as _registration  # noqa: E402, last, since it imports names from here
