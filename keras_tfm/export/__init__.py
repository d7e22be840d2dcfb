"""Exports to ship, and what runs them: `Translator.export(folder, format)`, then `runners.load(folder)`."""

from keras_tfm.common import lazy

__getattr__, __dir__, __all__ = lazy.attach(__name__, __file__)
