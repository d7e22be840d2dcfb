"""Tokenizers: text to token ids and back, in plain Python and inside a TensorFlow graph."""

from keras_tfm.common.lazy import attach as _attach

__getattr__, __dir__, __all__ = _attach(__name__, __file__)
