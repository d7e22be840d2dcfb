"""Transformers for Keras: layers to import, models that train with `fit`, exports that ship."""

__version__ = "0.1.0"
