"""Functional Keras models made of the layers; they can also encode and decode step by step."""

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
