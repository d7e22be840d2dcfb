"""Functional Keras models made of the layers; they can also encode and decode step by step."""

from keras_tfm.common import lazy

__getattr__, __dir__, __all__ = lazy.attach(__name__, __file__)
