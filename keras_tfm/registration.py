"""Imports all that registers a class with Keras, so that `keras.saving.load_model` knows every class of this package.

Importing `keras_tfm.layers`, `.models` or `.training` imports this, and so does `keras_tfm.load_model`.
"""

from keras_tfm.models import builders  # noqa: F401, all models, and so all layers
from keras_tfm.training import losses  # noqa: F401
