"""Functional Keras models made of the layers; they can also encode and decode step by step."""

from keras_tfm.models.convolutional import ByteNet, ConvS2S, bytenet, conv
from keras_tfm.models.recurrent import Recurrent, gnmt, rnn, rnn_attention
from keras_tfm.models.sequence import SequenceModel
from keras_tfm.models.transformers import (
    DecoderLM,
    EncoderClassifier,
    Transformer,
    decoder_lm,
    encoder_classifier,
    transformer,
)
from keras_tfm.recipes import PRESETS

# The names of `keras_tfm.recipes.MODELS` → the functions that build them.
BUILDERS = {build.__name__: build for build in (transformer, rnn, rnn_attention, gnmt, conv, bytenet)}
