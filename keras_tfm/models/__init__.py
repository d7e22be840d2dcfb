"""Functional Keras models made of the layers; they can also encode and decode step by step."""

from keras_tfm.common.lazy import attach as _attach
from keras_tfm.common.lazy import register_classes as _register_classes

__getattr__, __dir__, __all__ = _attach(__name__, __file__)
_register_classes()  # last, since it imports names from here
