"""Tokenizers: text to token ids and back, in plain Python and inside a TensorFlow graph."""

from keras_tfm.text.base import (
    END,
    LINE_END,
    PAD,
    SENTENCE_END,
    SPECIALS,
    START,
    UNKNOWN,
    Tokenizer,
    longest_translation,
    register_tokenizer,
    truncated,
)
from keras_tfm.text.byte import ByteTokenizer
from keras_tfm.text.hub import KerasHubTokenizer
from keras_tfm.text.marian import MarianTokenizer
from keras_tfm.text.saving import fingerprint, is_tokenizer, load_tokenizer, save_tokenizer
from keras_tfm.text.subwords import KINDS, Kind, SentencePieceTokenizer, train_tokenizer
