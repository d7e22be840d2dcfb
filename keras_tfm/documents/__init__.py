"""Files of localisers and writers: the texts in them, and their translations spliced into the same bytes."""

from keras_tfm.common.lazy import attach as _attach

__getattr__, __dir__, __all__ = _attach(__name__, __file__)
