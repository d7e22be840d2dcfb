"""Layers to import into your own Keras models."""

from keras_tfm.layers import masks
from keras_tfm.layers.attention import MultiHeadAttention, MultiHeadSelfAttention
from keras_tfm.layers.blocks import FeedForward, TransformerDecoderBlock, TransformerEncoderBlock
from keras_tfm.layers.positions import PositionalEncoding, sinusoids
from keras_tfm.layers.recording import attention_maps, record_attention
from keras_tfm.layers.scores import SCORES, attend, self_attention
from keras_tfm.layers.stacks import TransformerDecoder, TransformerEncoder
