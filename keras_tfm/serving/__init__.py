"""Serves a translator over HTTP, with TensorFlow Serving's REST API.

    connections → api → a bounded queue of texts → batches → workers, each a process that holds the model

The process that speaks HTTP never loads the model, so it survives the death of a worker: the texts of that worker go to
another one, and a new worker takes its place.
"""

from keras_tfm.common.lazy import attach as _attach

__getattr__, __dir__, __all__ = _attach(__name__, __file__)
