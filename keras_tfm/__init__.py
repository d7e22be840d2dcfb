"""Transformers for Keras: layers to import, models that train with `fit`, one call from texts to a translator.

>>> import keras_tfm
>>> "Translator" in dir(keras_tfm) and "layers" in dir(keras_tfm)
True
"""

import importlib

from keras_tfm.registration import register_with_keras

__version__ = "0.1.0"

# Public names → modules that define them.
_NAMES = {
    "Recipe": "recipes",
    "Translator": "translator",
    "decoder_lm": "models",
    "distributed": "backend.devices",
    "encoder_classifier": "models",
    "join_processes": "backend.devices",
    "record_attention": "recording",
    "train": "pipeline",
    "transformer": "models",
}
_MODULES = ("batches", "data", "decoding", "evaluation", "export", "exported", "files", "layers", "models", "pipeline")
_MODULES += ("plots", "recipes", "recording", "runs", "serving", "tasks", "text", "training", "translator")


def __getattr__(name):
    """Imports on first use, so that importing keras_tfm is quick and Keras' backend can still be chosen after it."""
    if name in _NAMES:
        return getattr(importlib.import_module(f"keras_tfm.{_NAMES[name]}"), name)
    if name in _MODULES:
        return importlib.import_module(f"keras_tfm.{name}")
    raise AttributeError(f"module 'keras_tfm' has no attribute {name!r}")


def __dir__():
    return sorted(["__version__", *_NAMES, *_MODULES])


register_with_keras()
