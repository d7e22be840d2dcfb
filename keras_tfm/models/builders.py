"""The names of `keras_tfm.models.sizes.MODELS`, and the functions that build them."""

from keras_tfm.models.convolutional import bytenet, conv
from keras_tfm.models.recurrent import gnmt, rnn, rnn_attention
from keras_tfm.models.transformers import transformer

BUILDERS = {build.__name__: build for build in (transformer, rnn, rnn_attention, gnmt, conv, bytenet)}
