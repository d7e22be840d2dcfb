"""Transformers for Keras: layers to import, models that train with `fit`."""

import importlib

__version__ = "0.1.0"


def __getattr__(name):
    """Modules are imported on first use, so that the command can still choose Keras' backend."""
    if name in (
        "batches",
        "data",
        "decoding",
        "evaluation",
        "layers",
        "minimum_risk",
        "models",
        "plots",
        "tasks",
        "text",
        "training",
        "translator",
    ):
        return importlib.import_module(f"keras_tfm.{name}")
    raise AttributeError(f"module 'keras_tfm' has no attribute {name!r}")
