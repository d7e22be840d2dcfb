"""Transformers as functional models: an encoder-decoder, a classifier and a language model."""

from typing import Any

import keras

from keras_tfm import ops
from keras_tfm.common.arguments import one_of, positive
from keras_tfm.decoding import Prompted
from keras_tfm.layers import TransformerDecoder, TransformerEncoder, masks
from keras_tfm.layers.base import options_of
from keras_tfm.models.encoder_decoder import (
    EncoderDecoder,
    StepModel,
    embedded,
    embedding,
    id_input,
    logits_of,
    output_layer,
)
from keras_tfm.models.sequence import SequenceModel
from keras_tfm.sizes import sizes


@keras.saving.register_keras_serializable(package="keras_tfm")
class Transformer(EncoderDecoder):
    """The encoder-decoder of https://arxiv.org/abs/1706.03762.

    It maps ids `{"source": (batch, source length), "target": (batch, target length)}`, where 0 is padding, to logits
    (batch, target length, target vocabulary).

    Args:
        vocab_size: number of tokens, shared by source and target; with a `target_vocab_size`, number of source tokens.
        target_vocab_size: number of target tokens, if source and target do not share their embeddings.
        model_dim: width of embeddings, encoder and decoder.
        num_decoder_layers: number of blocks of the decoder, if it differs from `num_layers`.
        tied_output: whether the logits are computed with the target embeddings.
        scaled_embeddings: whether embeddings are multiplied by √model_dim.
        output_bias: whether a bias is added to the logits.
        source_embedding, target_embedding: layers of your own, from ids (batch, length) to (batch, length, model_dim),
            with a mask where the id is 0. With one vocabulary, the target shares that of the source unless it has its
            own. Unless the one of the target is a `TokenEmbedding`, `tied_output` must be False.
        packed: whether each row may contain several pairs. The model then has four more inputs (batch, length):
            `source_segments`, `source_positions`, `target_segments`, `target_positions`.
        dtype, name: precision of all layers, by default Keras' global policy, and name of the model.
        **options: options of `TransformerEncoder`, for encoder and decoder.
    """

    def __init__(
        self,
        vocab_size: int,
        target_vocab_size: int | None = None,
        model_dim: int = 512,
        num_decoder_layers: int | None = None,
        tied_output: bool = True,
        scaled_embeddings: bool = True,
        output_bias: bool = False,
        source_embedding: keras.Layer | None = None,
        target_embedding: keras.Layer | None = None,
        packed: bool = False,
        dtype: str | keras.DTypePolicy | None = None,
        name: str | None = None,
        **options: Any,
    ):
        encoder = TransformerEncoder(**options, dtype=dtype, name="encoder")
        decoder_layers = {"num_layers": num_decoder_layers} if num_decoder_layers else {}
        decoder = TransformerDecoder(**options | decoder_layers, dtype=dtype, name="decoder")
        arguments = options_of(Transformer, locals()) | decoder.get_options()
        arguments |= {"num_layers": encoder.num_layers, "name": name or "transformer"}
        if target_embedding is source_embedding:
            arguments["target_embedding"] = None  # or it would be saved twice
        inputs, of_source, of_target = {}, {}, {}
        if packed:
            names = ("source_segments", "source_positions", "target_segments", "target_positions")
            inputs = {name: id_input(name) for name in names}
            source, target = inputs["source_segments"], inputs["target_segments"]
            of_source = {"attention_mask": masks.segments(source)}
            of_target = {"attention_mask": masks.segments(target)}
            if encoder.encodings:  # other schemes depend on distances alone, which are those within a segment
                of_source["position_ids"] = inputs["source_positions"]
                of_target["position_ids"] = inputs["target_positions"]
            of_target["memory_mask"] = masks.segments(target, source)
        super().__init__(arguments, encoder, decoder, inputs, of_source, of_target)


@keras.saving.register_keras_serializable(package="keras_tfm")
class DecoderLM(StepModel):
    """A decoder-only language model: ids (batch, length), 0 is padding → logits (batch, length, vocab_size).

    Args:
        vocab_size: number of tokens.
        tied_output: whether the logits are computed with the embeddings.
        target_embedding, model_dim, dtype, name: as for `Transformer`.
        **options: options of `TransformerDecoder`.
    """

    continues_prompts = True

    def __init__(
        self,
        vocab_size: int,
        tied_output: bool = True,
        model_dim: int = 512,
        target_embedding: keras.Layer | None = None,
        dtype: str | keras.DTypePolicy | None = None,
        name: str | None = None,
        **options: Any,
    ):
        decoder = TransformerDecoder(**options, dtype=dtype, name="decoder")
        arguments = options_of(DecoderLM, locals()) | decoder.get_options() | {"name": name or "decoder_lm"}
        embed = embedding(arguments, "target", "embedding", vocab_size, tied_output)
        target, output = id_input("target"), output_layer(embed, vocab_size, arguments)
        super().__init__(target, logits_of(decoder(embed(target)), embed, output), arguments)
        self.target_embedding, self.decoder, self.output_layer = embed, decoder, output

    def encode(self, ids: Any, padded: bool = True) -> Any:
        """Features of ids (batch, length): (batch, length, model_dim). With `padded=False`, no id may be 0."""
        return self.decoder(embedded(self.target_embedding, ids, padded))

    def prefill(self, sources: Any, max_length: int, padded: bool = True) -> Prompted:
        """An empty cache for at least `max_length` tokens, and `sources` as the prompts (batch, n) of a search."""
        rows, length = ops.shape(sources)
        maximum = ops.maximum if ops.is_tensor(length) or ops.is_tensor(max_length) else max
        return Prompted(self.decoder.init_cache(rows, maximum(max_length, length), masked=False), sources)


# Name → features of a text from those of its tokens: x (batch, length, dim), mask (batch, length) → (batch, dim).
POOLINGS = {
    "mean": masks.mean_of,
    "max": lambda x, mask: ops.max(ops.where(mask[:, :, None], x, -1e30), axis=1),
    "first": lambda x, mask: x[:, 0],
}


@keras.saving.register_keras_serializable(package="keras_tfm")
class EncoderClassifier(SequenceModel):
    """An encoder that classifies texts: ids (batch, length), 0 is padding → float32 logits (batch, num_classes).

    Args:
        vocab_size, num_classes: number of tokens and of classes.
        pooling: features of a text: the "mean" or "max" of those of its tokens, or those of the "first" token; zeros
            for a text without tokens.
        source_embedding, model_dim, dtype, name: as for `Transformer`.
        **options: options of `TransformerEncoder`.
    """

    def __init__(
        self,
        vocab_size: int,
        num_classes: int,
        pooling: str = "mean",
        model_dim: int = 512,
        source_embedding: keras.Layer | None = None,
        dtype: str | keras.DTypePolicy | None = None,
        name: str | None = None,
        **options: Any,
    ):
        one_of("pooling", pooling, POOLINGS)
        encoder = TransformerEncoder(**options, dtype=dtype, name="encoder")
        arguments = options_of(EncoderClassifier, locals()) | encoder.get_options()
        arguments["name"] = name or "encoder_classifier"
        embed = embedding(arguments, "source", "embedding", vocab_size)
        classes = keras.layers.Dense(positive("num_classes", num_classes), dtype="float32", name="classes")
        source = id_input("source")
        text = pooled(pooling, encoder(embed(source)), source)
        super().__init__(source, classes(text), arguments)
        self.source_embedding, self.encoder, self.classes = embed, encoder, classes

    def encode(self, ids: Any, padded: bool = True) -> Any:
        """Features of texts (batch, model_dim), for ids (batch, length). With `padded=False`, no id may be 0."""
        return pooled(self.pooling, self.encoder(embedded(self.source_embedding, ids, padded)), ids)


def pooled(pooling, x, ids):
    """Float32 features of texts, for those of their tokens x (batch, length, dim); zeros if there are no tokens."""
    mask = ops.not_equal(ids, 0)
    features = POOLINGS[pooling](ops.cast(x, "float32"), mask)
    return ops.where(ops.any(mask, axis=1, keepdims=True), features, 0)


def transformer(vocab_size: int, size: str | None = None, **options: Any) -> Transformer:
    """A `Transformer`, by default with the sizes of the paper's base model.

    Args:
        vocab_size: number of tokens.
        size: a name in `SIZES`, for other sizes.
        **options: arguments of `Transformer` and `TransformerEncoder`; they override those of the size.

    >>> model = transformer(vocab_size=100, size="tiny", num_layers=2)
    >>> ids = {"source": ops.ones((2, 7), dtype="int32"), "target": ops.ones((2, 5), dtype="int32")}
    >>> print(model(ids).shape)
    (2, 5, 100)
    """
    return Transformer(vocab_size, **sizes("transformer", size) | options)


def encoder_classifier(vocab_size: int, num_classes: int, size: str | None = None, **options: Any) -> EncoderClassifier:
    """An `EncoderClassifier`; the arguments are like those of `transformer`.

    >>> model = encoder_classifier(vocab_size=100, num_classes=3, size="tiny")
    >>> print(model(ops.ones((2, 7), dtype="int32")).shape)
    (2, 3)
    """
    return EncoderClassifier(vocab_size, num_classes, **_without_decoder(size) | options)


def decoder_lm(vocab_size: int, size: str | None = None, **options: Any) -> DecoderLM:
    """A `DecoderLM`; the arguments are like those of `transformer`.

    >>> model = decoder_lm(vocab_size=100, size="tiny")
    >>> print(model(ops.ones((2, 7), dtype="int32")).shape)
    (2, 7, 100)
    """
    return DecoderLM(vocab_size, **_without_decoder(size) | options)


def _without_decoder(size):
    """The options of a size for a model with one stack of blocks."""
    options = sizes("transformer", size)
    return {name: options[name] for name in options if name not in ("name", "num_decoder_layers")}
