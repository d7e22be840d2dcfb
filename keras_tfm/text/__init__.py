"""Tokenizers: text to token ids and back, in plain Python and inside a TensorFlow graph."""

from keras_tfm.common import lazy

__getattr__, __dir__, __all__ = lazy.attach(__name__, __file__)
