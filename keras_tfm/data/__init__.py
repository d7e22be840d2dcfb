"""Pairs of texts: read from files, encoded into token files, put into batches; and tasks that need no files."""

from keras_tfm.common.lazy import attach as _attach

__getattr__, __dir__, __all__ = _attach(__name__, __file__)
