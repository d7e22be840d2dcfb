"""The names of `keras_tfm.sizes.MODELS`, and the functions that build them."""

from keras_tfm.models.byte_net import bytenet
from keras_tfm.models.conv_s2s import conv
from keras_tfm.models.recurrent import gnmt, rnn, rnn_attention
from keras_tfm.models.transformers import transformer

BUILDERS = {build.__name__: build for build in (transformer, rnn, rnn_attention, gnmt, conv, bytenet)}
