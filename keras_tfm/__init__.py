"""Transformers for Keras: layers to import, models that train with `fit`, one call from texts to a translator.

>>> import keras_tfm
>>> "Translator" in dir(keras_tfm) and "layers" in dir(keras_tfm)
True
"""

from keras_tfm.common.lazy import attach as _attach

__version__ = "0.1.0"

__getattr__, __dir__, __all__ = _attach(__name__, __file__)
