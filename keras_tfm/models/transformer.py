"""Transformers as functional models: an encoder-decoder, a classifier, a language model."""

import json
import math
import threading

import keras
from keras import ops

from keras_tfm import kernels, recording
from keras_tfm.arguments import one_of, positive, rate
from keras_tfm.backend.tensors import without_mask
from keras_tfm.layers import PositionalEncoding, TransformerDecoderBlock, TransformerEncoderBlock, masks
from keras_tfm.layers.blocks import NORMS
from keras_tfm.layers.positions import SCHEMES
from keras_tfm.recipes import PRESETS  # noqa: F401, for the examples

ENCODINGS = ("sinusoidal", "learned", "index")


@keras.saving.register_keras_serializable(package="keras_tfm")
class TokenEmbedding(keras.layers.ReversibleEmbedding):
    """Embeddings times √dim, as in the paper, with a mask where the id is 0; `reverse=True` gives logits."""

    def call(self, inputs, reverse=False):
        if reverse:
            return self.logits(inputs)
        return kernels.current().lookups.get(self, self.lookup)(inputs) * math.sqrt(self.output_dim)

    def logits(self, x):
        if self.tie_weights:
            return kernels.current().logits(x, self.embeddings)
        return super().call(x, reverse=True)

    def lookup(self, ids):
        return super().call(ids)

    def compute_mask(self, inputs, mask=None):  # Keras' own layer hangs its mask on a tensor that `call` leaves behind
        if not kernels.current().padded or "int" not in keras.backend.standardize_dtype(inputs.dtype):
            return None
        return ops.not_equal(inputs, 0)


def _embedding(vocab_size, dim, tied, name, dtype):
    """Features of unit size come out, and logits of unit size from features of unit size."""
    initializer = keras.initializers.RandomNormal(stddev=dim**-0.5)
    vocab_size = positive("vocab_size", vocab_size)
    return TokenEmbedding(vocab_size, dim, tied, initializer, mask_zero=True, name=name, dtype=dtype)


def _policy_name(dtype):
    """What a model is saved with, so that it loads with the precision that it was built with."""
    name = keras.dtype_policies.get(dtype).name
    keras.dtype_policies.get(name)  # an error for policies that a name cannot bring back
    return name


class Stack:
    """Blocks on top of each other: what encoders and decoders have in common.

    It holds layers and owns no weights: a functional model is built by calling it, and decoding calls it again.

    Args:
        name, block: of the layers, "encoder" or "decoder" and the class of the blocks.
        num_layers, model_dim, num_heads, ff_dim: number and sizes of the blocks.
        dropout: rate of dropout on sublayers and on the input.
        positions: "sinusoidal", "learned", "index", or inside self-attention "rotary", "relative", "alibi"; or None.
        positions_in: where the first three enter: "input", or "every_layer".
        positions_combine: how they do: "add", or "concat", and back to `model_dim` by a dense layer.
        max_length: how many learned positions there are.
        dtype: the precision of all layers, such as "mixed_bfloat16"; by default Keras' global policy.
        **options: any other option of the blocks: `norm_first`, `norm`, `activation`, `score`, `heads`, `num_kv_heads`,
            `mixing`, `window` (of self-attention), `attention_dropout`, `use_bias`, `kernel_initializer`,
            `bias_initializer`.
    """

    def __init__(
        self,
        name,
        block,
        num_layers=6,
        model_dim=512,
        num_heads=8,
        ff_dim=2048,
        dropout=0.1,
        positions="sinusoidal",
        positions_in="input",
        positions_combine="add",
        max_length=512,
        dtype=None,
        **options,
    ):
        self.model_dim = positive("model_dim", model_dim)
        one_of("positions", positions, (*ENCODINGS, *SCHEMES))
        one_of("positions_in", positions_in, ("input", "every_layer"))
        self.dropout = keras.layers.Dropout(rate("dropout", dropout), name=f"{name}_dropout", dtype=dtype)
        self.blocks = [
            block(
                num_heads,
                ff_dim,
                dropout=dropout,
                positions=positions if positions in SCHEMES else None,
                name=f"{name}_{number}",
                dtype=dtype,
                **options,
            )
            for number in range(positive("num_layers", num_layers))
        ]
        self.encodings = []  # the positions of the first blocks: of none, one, or all of them
        if positions in ENCODINGS:
            limit = positive("max_length", max_length) if positions == "learned" else None
            for number in range(num_layers if positions_in == "every_layer" else 1):
                encoding = PositionalEncoding(
                    positions, positions_combine, limit, name=f"{name}_positions_{number}", dtype=dtype
                )
                back = keras.layers.Dense(model_dim, name=f"{name}_positions_dense_{number}", dtype=dtype)
                self.encodings.append((encoding, back if positions_combine == "concat" else lambda x: x))
        self.norm = lambda x: x
        if options.get("norm_first"):  # then nothing has normalised what leaves the last block
            self.norm = NORMS[options.get("norm", "layer")](name=f"{name}_norm", dtype=dtype)
            self.norm.supports_masking = True

    def __call__(self, x, memory=None, cache=None, start=0, positions=None, **masks):
        """Features (batch, length, model_dim) → the same shape; with a cache, and the new cache."""
        new_cache = []
        for number, block in enumerate(self.blocks):
            if number < len(self.encodings):
                encoding, back = self.encodings[number]
                x = back(encoding(x, start=start) if positions is None else encoding(x, positions=positions))
            x = self.dropout(x) if number == 0 else x
            if cache is not None:
                x, new = block(x, cache=cache[number], start=start)
                new_cache.append(new)
            else:
                x = block(x, **masks) if memory is None else block(x, memory, **masks)
        return self.norm(x) if cache is None else (self.norm(x), new_cache)

    def make_cache(self, batch_size, max_length, memory=None):
        """Of all blocks, for tokens alone: what follows the end of a hypothesis may be anything."""
        return [block.make_cache(batch_size, max_length, memory, masked=False) for block in self.blocks]


@keras.saving.register_keras_serializable(package="keras_tfm")
class SequenceModel(keras.Model):
    """A functional model that also encodes and decodes, by the same layers, and is saved as the call of its builder.

    Attributes:
        metadata: a dict of JSON values that is saved with the model, such as fingerprints of its tokenizers.
        running: the lock of `fit`, `evaluate` and `predict`: other threads wait, since Keras on JAX takes the weights
            out of the model meanwhile.
        quantization: None, or the config that `quantize` was called with, as JSON values.

    Methods:
        encode(ids): features of ids (batch, length), from the layers below the output: of a classifier those of each
            text (batch, model_dim), else of each token (batch, length, model_dim), of the source if there is one.

    Methods of a model with a decoder, None of others:
        start(sources, max_length): the cache of a decoder that has yet to see a token, for ids (batch, source length).
        step(tokens, position, cache): logits (batch, n, vocab_size) for ids (batch, n) that stand at `position …`, and
            the new cache, which takes all of them for tokens, padding too. The batch may be a multiple of that of the
            sources: several hypotheses about each.
        step_and_attention(tokens, position, cache): those, and how much the last token attends to each place of the
            source, (batch, source length); None for a model without an encoder.
    """

    def __init__(self, builder, arguments, inputs, outputs, encode, start=None, step=None, step_and_attention=None):
        super().__init__(inputs=inputs, outputs=outputs, name=arguments["name"] or builder)
        self.running = threading.RLock()
        self.dtype_policy = arguments["dtype"]  # which Keras asks whether to scale the loss
        self.builder, self.arguments, self.metadata, self.quantization = builder, arguments, {}, None
        self.encode, self.start, self.step, self.step_and_attention = encode, start, step, step_and_attention

    def fit(self, *args, **kwargs):
        with self.running:
            return super().fit(*args, **kwargs)

    def evaluate(self, *args, **kwargs):
        with self.running:
            return super().evaluate(*args, **kwargs)

    def predict(self, *args, **kwargs):
        with self.running:
            return super().predict(*args, **kwargs)

    def get_config(self):
        try:
            metadata = json.loads(json.dumps(self.metadata))
        except (TypeError, ValueError) as error:
            raise ValueError(f"`metadata` must hold JSON values. Received: {self.metadata}") from error
        kept = {"metadata": metadata, "quantization": self.quantization}
        return {"builder": self.builder, **kept, **self.arguments}

    @classmethod
    def from_config(cls, config, custom_objects=None):
        arguments = dict(config)
        builder = BUILDERS[arguments.pop("builder")]
        metadata, quantization = arguments.pop("metadata", {}), arguments.pop("quantization", None)
        model = builder(**arguments)
        model.metadata = metadata
        if quantization:  # the weights that follow are those of quantized layers
            model.quantize(config=keras.saving.deserialize_keras_object(quantization))
        return model

    def quantize(self, mode=None, config=None, filters=None):
        """Quantizes all dense layers, "int8" or "int4"; embeddings keep their precision."""
        one_of("mode", mode, ("int8", "int4"))
        if filters is not None:
            raise ValueError(f"`filters` must be None, since it would not be saved. Received: {filters=}")
        dense = keras.layers.Dense, keras.layers.EinsumDense  # Keras warns of others, one by one
        super().quantize(mode, config, filters=lambda layer: isinstance(layer, dense))
        self.quantization = keras.saving.serialize_keras_object(config)


def transformer(
    vocab_size,
    target_vocab_size=None,
    num_decoder_layers=None,
    tied_output=True,
    packed=False,
    dtype=None,
    name=None,
    **options,
):
    """The encoder-decoder of https://arxiv.org/abs/1706.03762.

    Args:
        vocab_size: number of tokens, of source and target together unless there is a `target_vocab_size`.
        target_vocab_size: number of target tokens, which then have embeddings of their own.
        num_decoder_layers: number of the decoder's blocks, if it is not that of the encoder's.
        tied_output: whether the logits use the embeddings of the target.
        packed: whether rows hold several pairs; there are more inputs then, all (batch, length): `source_segments`,
            `source_positions`, `target_segments`, `target_positions`.
        dtype, name: precision of all layers, Keras' global policy by default, and name of the model.
        **options: sizes and choices of both stacks, see `Stack`; or a preset, `**PRESETS["base"]`.

    Returns:
        `SequenceModel`, from ids `{"source": (batch, source length), "target": (batch, target length)}`, in which 0 is
        padding, to logits (batch, target length, vocabulary).

    >>> model = transformer(vocab_size=100, **PRESETS["tiny"])
    >>> ids = {"source": ops.ones((2, 7), dtype="int32"), "target": ops.ones((2, 5), dtype="int32")}
    >>> print(model(ids).shape)
    (2, 5, 100)
    """
    dtype = _policy_name(dtype)
    encoder = Stack("encoder", TransformerEncoderBlock, dtype=dtype, **options)
    decoder_layers = {"num_layers": num_decoder_layers} if num_decoder_layers else {}
    decoder = Stack("decoder", TransformerDecoderBlock, dtype=dtype, **{**options, **decoder_layers})
    if target_vocab_size is None:
        embed = embed_target = _embedding(vocab_size, encoder.model_dim, tied_output, "embedding", dtype)
    else:
        embed = _embedding(vocab_size, encoder.model_dim, True, "source_embedding", dtype)
        embed_target = _embedding(target_vocab_size, encoder.model_dim, tied_output, "target_embedding", dtype)

    extra = [f"{side}_{what}" for side in ("source", "target") for what in ("segments", "positions")] if packed else []
    inputs = {name: keras.Input((None,), dtype="int32", name=name) for name in ("source", "target", *extra)}
    of_source, of_target = {}, {}
    if packed:
        source_segments, target_segments = inputs["source_segments"], inputs["target_segments"]
        of_source = {"positions": inputs["source_positions"], "attention_mask": masks.segments(source_segments)}
        of_target = {"positions": inputs["target_positions"], "attention_mask": masks.segments(target_segments)}
        of_target["memory_mask"] = masks.segments(target_segments, source_segments)
    memory = encoder(embed(inputs["source"]), **of_source)
    logits = embed_target(decoder(embed_target(inputs["target"]), memory, **of_target), reverse=True)

    def encode(sources):
        return encoder(embed(sources))

    def start(sources, max_length):
        return decoder.make_cache(ops.shape(sources)[0], max_length, encode(sources))

    def step(tokens, position, cache):
        x, cache = decoder(without_mask(embed_target(tokens)), cache=cache, start=position)
        return embed_target(x, reverse=True), cache

    def step_and_attention(tokens, position, cache):
        with recording.capture_attention() as maps:
            logits, cache = step(tokens, position, cache)
        (weights,) = maps[decoder.blocks[-1].memory_attention.path]  # (sources, heads, hypotheses · n, source length)
        weights = ops.reshape(ops.mean(weights, axis=1), (*ops.shape(tokens), ops.shape(weights)[-1]))
        return logits, cache, weights[:, -1]

    arguments = {"vocab_size": vocab_size, "target_vocab_size": target_vocab_size, "packed": packed}
    arguments |= {"num_decoder_layers": num_decoder_layers, "tied_output": tied_output, "dtype": dtype, "name": name}
    arguments |= options
    return SequenceModel("transformer", arguments, inputs, logits, encode, start, step, step_and_attention)


def encoder_classifier(vocab_size, num_classes, pooling="mean", dtype=None, name=None, **options):
    """An encoder that sorts texts into classes: ids (batch, length) → logits (batch, num_classes).

    Args:
        vocab_size, num_classes: number of tokens and of classes.
        pooling: what stands for the text: the "mean" or the "max" of its tokens, or the "first" of them.
        dtype, name: as for `transformer`; the logits are float32.
        **options: sizes and choices of the encoder, see `Stack`; or a preset, `**PRESETS["base"]`.

    >>> model = encoder_classifier(vocab_size=100, num_classes=3, **PRESETS["tiny"])
    >>> print(model(ops.ones((2, 7), dtype="int32")).shape)
    (2, 3)
    """
    one_of("pooling", pooling, ("mean", "max", "first"))
    dtype = _policy_name(dtype)
    encoder = Stack("encoder", TransformerEncoderBlock, dtype=dtype, **options)
    embed = _embedding(vocab_size, encoder.model_dim, True, "embedding", dtype)
    mean = keras.layers.GlobalAveragePooling1D(name="pooling", dtype=dtype)

    def encode(source):
        x = encoder(embed(source))
        if pooling == "mean":
            return mean(x)  # the mask has come through
        if pooling == "max":
            return ops.max(ops.where(ops.not_equal(source, 0)[..., None], x, -1e4), axis=1)
        return x[:, 0]

    source = keras.Input((None,), dtype="int32", name="source")
    logits = keras.layers.Dense(positive("num_classes", num_classes), dtype="float32", name="classes")(encode(source))
    arguments = {
        "vocab_size": vocab_size,
        "num_classes": num_classes,
        "pooling": pooling,
        "dtype": dtype,
        "name": name,
        **options,
    }
    return SequenceModel("encoder_classifier", arguments, source, logits, encode)


def decoder_lm(vocab_size, tied_output=True, dtype=None, name=None, **options):
    """A decoder-only language model: ids (batch, length) → logits of the next token (batch, length, vocab_size).

    Args:
        vocab_size: number of tokens.
        tied_output: whether the logits use the embeddings.
        dtype, name: as for `transformer`.
        **options: sizes and choices of the decoder, see `Stack`; or a preset, `**PRESETS["base"]`.

    >>> model = decoder_lm(vocab_size=100, **PRESETS["tiny"])
    >>> print(model(ops.ones((2, 7), dtype="int32")).shape)
    (2, 7, 100)
    """
    dtype = _policy_name(dtype)
    decoder = Stack("decoder", TransformerDecoderBlock, dtype=dtype, **options)
    embed = _embedding(vocab_size, decoder.model_dim, tied_output, "embedding", dtype)
    target = keras.Input((None,), dtype="int32", name="target")

    def encode(tokens):
        return decoder(embed(tokens))

    logits = embed(encode(target), reverse=True)

    def start(sources, max_length):
        return decoder.make_cache(ops.shape(sources)[0], max_length)

    def step(tokens, position, cache):
        x, cache = decoder(without_mask(embed(tokens)), cache=cache, start=position)
        return embed(x, reverse=True), cache

    arguments = {"vocab_size": vocab_size, "tied_output": tied_output, "dtype": dtype, "name": name, **options}
    return SequenceModel("decoder_lm", arguments, target, logits, encode, start, step)


BUILDERS = {builder.__name__: builder for builder in (transformer, encoder_classifier, decoder_lm)}
