"""Pairs of texts: read from files, encoded into token files, put into batches; and tasks that need no files."""

from keras_tfm.common import lazy

__getattr__, __dir__, __all__ = lazy.attach(__name__, __file__)
