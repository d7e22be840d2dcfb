"""Exports to ship, and what runs them: `Translator.export(folder, format)`, then `keras_tfm.load(folder)`."""

from keras_tfm.common.lazy import attach as _attach

__getattr__, __dir__, __all__ = _attach(__name__, __file__)
