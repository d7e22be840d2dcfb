"""Greedy decoding, sampling and beam search, over the `prefill` and `step` of any model."""

from keras_tfm.common.lazy import attach as _attach

__getattr__, __dir__, __all__ = _attach(__name__, __file__)
