"""Recurrent translators: with one vector for the source, with attention, and GNMT."""

from typing import Any

import keras

from keras_tfm import ops  # noqa: F401, for the examples
from keras_tfm.common.arguments import one_of
from keras_tfm.layers.base import options_of
from keras_tfm.models.encoder_decoder import EncoderDecoder
from keras_tfm.models.recurrent_layers import DECODERS, RecurrentEncoder
from keras_tfm.sizes import sizes


@keras.saving.register_keras_serializable(package="keras_tfm")
class Recurrent(EncoderDecoder):
    """A recurrent encoder-decoder, with the inputs, outputs and methods of `Transformer`.

    Args:
        vocab_size, target_vocab_size, model_dim, tied_output, dtype, name: as for `Transformer`; `model_dim` is the
            width of the embeddings.
        units: width of the layers, by default `model_dim`.
        num_decoder_layers: number of layers of the decoder, if it differs from `num_layers`.
        attention: None (the encoder returns a vector of fixed size), "bahdanau" or "luong" (with input feeding).
        num_heads, score: of attention, as for `MultiHeadAttention`.
        cell, num_layers, bidirectional_layers, residual, dropout: as for `RecurrentEncoder`.
    """

    def __init__(
        self,
        vocab_size: int,
        target_vocab_size: int | None = None,
        model_dim: int = 512,
        units: int | None = None,
        cell: str = "lstm",
        num_layers: int = 1,
        num_decoder_layers: int | None = None,
        bidirectional_layers: int = 0,
        residual: bool = False,
        attention: str | None = None,
        num_heads: int = 1,
        score: str = "additive",
        dropout: float = 0.1,
        tied_output: bool = True,
        dtype: str | keras.DTypePolicy | None = None,
        name: str = "recurrent",
    ):
        arguments = options_of(Recurrent, locals())
        options = arguments | {"units": units or model_dim, "summary": attention is None}
        encoder = RecurrentEncoder(**options_of(RecurrentEncoder, options), dtype=dtype, name="encoder")
        decoder = DECODERS[one_of("attention", attention, DECODERS)]
        options = options_of(decoder, options | {"num_layers": num_decoder_layers or num_layers})
        super().__init__(arguments, encoder, decoder(**options, dtype=dtype, name="decoder"))


def rnn(vocab_size: int, size: str | None = None, **options: Any) -> Recurrent:
    """An encoder-decoder whose encoder returns one vector, the bottleneck (https://arxiv.org/abs/1406.1078).

    Args:
        vocab_size: number of tokens.
        size: a name in `SIZES`; by default one LSTM layer of width 512 for each side.
        **options: arguments of `Recurrent`; they override those of the size.

    >>> model = rnn(vocab_size=100, size="tiny", cell="gru")
    >>> ids = {"source": ops.ones((2, 7), dtype="int32"), "target": ops.ones((2, 5), dtype="int32")}
    >>> print(model(ids).shape)
    (2, 5, 100)
    """
    return Recurrent(vocab_size, **sizes("rnn", size) | options)


def rnn_attention(vocab_size: int, size: str | None = None, **options: Any) -> Recurrent:
    """An encoder-decoder with attention (https://arxiv.org/abs/1409.0473); the arguments are like those of `rnn`.

    >>> model = rnn_attention(vocab_size=100, size="tiny", attention="luong", score="bilinear")
    >>> ids = {"source": ops.ones((2, 7), dtype="int32"), "target": ops.ones((2, 5), dtype="int32")}
    >>> print(model(ids).shape)
    (2, 5, 100)
    """
    return Recurrent(vocab_size, **sizes("rnn_attention", size) | options)


def gnmt(vocab_size: int, size: str | None = None, **options: Any) -> Recurrent:
    """Google's deep recurrent translator (https://arxiv.org/abs/1609.08144); the arguments are like those of `rnn`.

    The first layer of the encoder is bidirectional, the others have residual connections, and all layers of the
    decoder read what its first layer attends to. By default, 8 layers of width 1024.

    >>> model = gnmt(vocab_size=100, size="tiny", num_layers=3)
    >>> ids = {"source": ops.ones((2, 7), dtype="int32"), "target": ops.ones((2, 5), dtype="int32")}
    >>> print(model(ids).shape)
    (2, 5, 100)
    """
    return Recurrent(vocab_size, **sizes("gnmt", size) | options)
