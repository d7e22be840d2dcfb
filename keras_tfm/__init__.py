"""Transformers for Keras: layers to import, models that train with `fit`, exports that ship."""

from keras_tfm import layers

__version__ = "0.1.0"
