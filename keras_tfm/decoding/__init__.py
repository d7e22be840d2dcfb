"""Greedy decoding, sampling and beam search, over the `start` and `step` of any model."""

from keras_tfm.common import lazy

__getattr__, __dir__, __all__ = lazy.attach(__name__, __file__)
