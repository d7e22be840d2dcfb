"""Localization files and text documents: reads their texts, and splices translations into the same bytes."""

from keras_tfm.common.lazy import attach as _attach

__getattr__, __dir__, __all__ = _attach(__name__, __file__)
