"""Layers to import into your own Keras models."""

from keras_tfm.common import lazy

__getattr__, __dir__, __all__ = lazy.attach(__name__, __file__)
