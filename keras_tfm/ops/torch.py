"""PyTorch: Keras' fused attention."""

from keras_tfm.ops.plain import *  # noqa: F403
from keras_tfm.ops.plain import keras_attention

attention = short_attention = keras_attention
