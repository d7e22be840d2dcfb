"""Functional models, built of the layers; each can also decode, step by step."""

from keras_tfm.models.transformer import SequenceModel, decoder_lm, encoder_classifier, transformer
from keras_tfm.recipes import PRESETS
