"""What models with an encoder and a decoder share: embeddings, logits, and decoding step by step."""

import math
from typing import Any

import keras
import numpy as np

from keras_tfm import decoding, ops
from keras_tfm.common.arguments import UserError, check, positive
from keras_tfm.decoding.samplers import Greedy
from keras_tfm.layers import masks, recording
from keras_tfm.layers.base import unless_loading
from keras_tfm.models.sequence import SequenceModel
from keras_tfm.ops import without_mask
from keras_tfm.ops.private import get_keras_mask


@keras.saving.register_keras_serializable(package="keras_tfm")
class TokenEmbedding(keras.layers.ReversibleEmbedding):
    """Embeddings times √dim, as in the paper, with a mask where the id is 0; `reverse=True` computes logits.

    Args:
        *args, **kwargs: those of Keras' layer; `mask_zero` is True by default.
        scaled: whether to multiply by √dim.
        use_bias: whether to add a bias to the logits.
    """

    def __init__(self, *args: Any, scaled: bool = True, use_bias: bool = False, **kwargs: Any):
        super().__init__(*args, **{"mask_zero": True, **kwargs})
        self.scaled, self.use_bias = scaled, use_bias

    def build(self, input_shape=None):
        super().build(input_shape)
        if self.use_bias:
            self.bias = self.add_weight((self.input_dim,), "zeros", name="bias")

    def add_weight(self, shape=None, initializer=None, **options):
        return super().add_weight(shape, unless_loading(initializer), **options)

    @property
    def variable_serialization_spec(self):  # what Keras saves, if it exists
        return {mode: [*names, "bias"] for mode, names in super().variable_serialization_spec.items()}

    def call(self, inputs, reverse=False):
        if reverse:
            return self.logits(inputs)
        rows = ops.cast(ops.embed(self.embeddings, inputs), self.compute_dtype)
        return rows * math.sqrt(self.output_dim) if self.scaled else rows

    def logits(self, x):
        dtype = self.compute_dtype  # Keras does not cast the weights of an embedding in calls inside of other calls
        x, table = ops.cast(x, dtype), ops.cast(self.embeddings if self.tie_weights else self.reverse_embeddings, dtype)
        logits = ops.logits(x, table) if self.tie_weights else ops.matmul(x, table)
        return logits + ops.cast(self.bias, dtype) if self.use_bias else logits

    def get_config(self):
        return super().get_config() | {"scaled": self.scaled, "use_bias": self.use_bias}

    def compute_mask(self, inputs, mask=None):  # Keras would attach its mask to a tensor that `call` does not return
        """That of ids; for features, their own, so that losses and metrics of Keras leave padding out."""
        return ops.not_equal(inputs, 0) if "int" in keras.backend.standardize_dtype(inputs.dtype) else mask


def embedding(arguments, side, name, vocab_size, tied=True, **options):
    """The layer for a side of a model with these arguments: the caller's own if there is one and it suits the model.

    Otherwise a `TokenEmbedding` whose outputs, and whose logits of unit-variance features, start with unit variance.
    """
    width, own = positive("model_dim", arguments["model_dim"]), arguments.get(f"{side}_embedding")
    if own is None:
        normal, vocab_size = keras.initializers.RandomNormal(stddev=width**-0.5), positive("vocab_size", vocab_size)
        return TokenEmbedding(vocab_size, width, tied, normal, name=name, dtype=arguments["dtype"], **options)
    name, sizes = f"{side}_embedding", {"input_dim": vocab_size, "output_dim": width}
    check(name, own, isinstance(own, keras.layers.Layer), "a Keras layer, from ids to features")
    fine = all(getattr(own, size, wanted) == wanted for size, wanted in sizes.items())
    check(name, own, fine, f"a layer with {sizes}, as the model's vocabulary and `model_dim`")
    masked = get_keras_mask(own(id_input("ids"))) is not None
    return check(name, own, masked, "a layer that masks padding, such as an `Embedding` with mask_zero=True")


def embeddings(arguments):
    """The layers for source and target; one if they are shared."""
    source_size, target_size = arguments["vocab_size"], arguments["target_vocab_size"]
    scaled = {"scaled": arguments.get("scaled_embeddings", True)}
    output = {"tied": arguments["tied_output"], "use_bias": arguments.get("output_bias", False), **scaled}
    if target_size is None and arguments.get("target_embedding") is None:
        both = embedding(arguments, "source", "embedding", source_size, **output)
        return both, both
    source = embedding(arguments, "source", "source_embedding", source_size, **scaled)
    return source, embedding(arguments, "target", "target_embedding", target_size or source_size, **output)


def output_layer(embed, vocab_size, arguments):
    """The layer for the logits, or None if the embedding computes them."""
    if isinstance(embed, TokenEmbedding):
        return None
    tied, rule = arguments["tied_output"], "False: only a `TokenEmbedding` computes logits, too"
    check("tied_output", tied, not tied, rule)
    return keras.layers.Dense(vocab_size, dtype=arguments["dtype"], name="logits")


def logits_of(x, embed, output):
    """Logits (batch, length, vocabulary) of features x (batch, length, model_dim)."""
    return embed(x, reverse=True) if output is None else output(x)


def id_input(name):
    """An input of a functional model: ids (batch, length)."""
    return keras.Input((None,), dtype="int32", name=name)


def embedded(layer, ids, padded):
    """Embeddings of ids, with a mask only if they are padded."""
    return layer(ids) if padded else without_mask(layer(ids))


class Decoder(masks.MaskedLayer):
    """A decoder that reads token after token, from a state: the same code for all of them and for the next one.

    Subclasses define `run(x, cache, start)`, the output for x, whose tokens come before its padding, and the new state;
    and `new_cache(batch_size, memory, mask)`, the "state" before the first token and what is read of the "memory".

    Call arguments:
        inputs, memory, memory_mask: (batch, length, features), (batch, memory length, any features) and its mask.
        mask: (batch, length); only where it is True, `inputs` are read. None in a call with a cache.
        cache, cache_position: a cache from `init_cache`, instead of `memory`; `inputs` start at this position.

    Returns:
        (batch, length, features), zeros where the mask is False; with a cache, a tuple of that and the new cache.
    """

    def call(self, inputs, memory=None, *, mask=None, memory_mask=None, cache=None, cache_position=0):
        if cache is None:
            new = self.init_cache(ops.shape(inputs)[0], None, memory, memory_mask)
            return masks.over_tokens(lambda x: self.run(x, new, cache_position)[0], inputs, mask)
        for name, value in {"memory": memory, "mask": mask, "memory_mask": memory_mask}.items():
            if value is not None:
                rule = "which contains the memory, and to which only tokens are added"
                raise UserError(f"`{name}` must be None in a call with a `cache`, {rule}. Received: a {name}")
        x, state = self.run(inputs, cache, cache_position)
        return x, {**cache, "state": state}

    def init_cache(self, batch_size, max_length, memory, memory_mask=None, masked=True):
        """The cache before the first token; `max_length` and `masked` have no effect."""
        self.check_built("init_cache")
        mask = masks.of_memory(memory, memory_mask)
        memory = ops.cast(memory, self.compute_dtype)  # as in a call, or a step would change the type of the cache
        return self.new_cache(batch_size, memory, mask)


class StepModel(SequenceModel):
    """A model that decodes step by step: with `prefill`, `target_embedding`, `decoder` and `output_layer`."""

    continues_prompts = False  # whether `generate` continues its ids, or translates them

    def step(self, tokens: Any, position: Any, cache: Any) -> tuple[Any, Any]:
        """Decodes the next tokens.

        Args:
            tokens: ids (batch, n); a 0 counts as a token too. The batch may be a multiple of that of the sources:
                several consecutive hypotheses for each source.
            position: position of the first of them.
            cache: the cache of `prefill` or of the previous step.

        Returns:
            logits (batch, n, vocabulary) and the new cache.
        """
        x, cache = self._features(tokens, position, cache)
        return logits_of(x, self.target_embedding, self.output_layer), cache

    def _features(self, tokens, position, cache):
        """What `step` computes the logits from, (batch, n, model_dim), and the new cache."""
        return self.decoder(embedded(self.target_embedding, tokens, padded=False), cache=cache, cache_position=position)

    def generate(self, ids: Any, max_length: int = 64, sampler: Greedy | None = None) -> np.ndarray:
        """Decodes with a compiled search; a program is compiled for each shape, `max_length` and sampler.

        Args:
            ids: source ids (batch, length), each row with its end token; for a language model prompts without a start
                token. Both are padded with zeros after the tokens.
            max_length: maximum number of tokens, including the end token and those of a prompt.
            sampler: `Greedy()`, the default, `Sample()` or `Beam()` of `keras_tfm.decoding`.

        Returns:
            ids (batch, max_length), a NumPy array with zeros after the end token; each prompt and what follows.

        >>> from keras_tfm.models import decoder_lm
        >>> model = decoder_lm(vocab_size=100, size="tiny", num_layers=1)
        >>> model.generate([[7, 8], [9, 0]], max_length=5)[0, :2].tolist()
        [7, 8]
        """
        sampler, ids = decoding.with_options(sampler or Greedy()), self._checked_ids(ids, max_length)
        key = sampler, *map(id, self.variables)  # there are others after `quantize` or `enable_lora`
        with self.running:
            if key not in self.programs:
                program = decoding.compiled(sampler, self.prefill, self.step, self.variables, [self.running])
                self.programs[key] = program
        return self.programs[key](ids, max_length, uniforms=sampler.uniforms(len(ids), max_length))

    def _checked_ids(self, ids, max_length):
        """Ids for `generate` as an array; an error if it cannot read them."""
        size, rule = self.vocab_size, "(batch, length) integers, the ids of tokens, with zeros after those of a row"
        try:
            array = np.asarray(ids)
        except ValueError:  # rows of different lengths
            array = np.zeros(0)
        fine = array.ndim == 2 and array.dtype.kind in "iu" and (array >= 0).all() and (array < size).all()
        check("ids", ids, fine, f"{rule}; the vocabulary has {size} tokens")
        if self.continues_prompts:
            check("ids", array.shape, array.shape[1] <= max_length, f"at most {max_length=} tokens long")
            check("ids", ids, not ((array[:, :-1] == 0) & (array[:, 1:] > 0)).any(), rule)
        return array.astype("int32")


class EncoderDecoder(StepModel):
    """Maps ids `{"source": (batch, source length), "target": (batch, target length)}`, 0 is padding, to logits.

    Args:
        arguments: those of the subclass' constructor; this class reads `vocab_size`, `target_vocab_size`, `model_dim`,
            `tied_output`, `dtype`, `name` and, where there are such, `scaled_embeddings`, `output_bias`,
            `source_embedding` and `target_embedding`.
        encoder: a layer from embeddings to the features that the decoder reads, the memory.
        decoder: a layer that is called as `TransformerDecoder` is, and has its `init_cache` and `memory_attentions`.
        inputs: more inputs of the model, by name.
        of_source, of_target: keyword arguments of the calls of encoder and decoder.
    """

    def __init__(
        self,
        arguments: dict[str, Any],
        encoder: keras.Layer,
        decoder: keras.Layer,
        inputs: Any = None,
        of_source: Any = None,
        of_target: Any = None,
    ):
        embed, embed_target = embeddings(arguments)
        output = output_layer(embed_target, arguments["target_vocab_size"] or arguments["vocab_size"], arguments)
        inputs = {name: id_input(name) for name in ("source", "target")} | (inputs or {})
        memory = encoder(embed(inputs["source"]), **of_source or {})
        x = decoder(embed_target(inputs["target"]), memory, **of_target or {})
        super().__init__(inputs, logits_of(x, embed_target, output), arguments)
        self.source_embedding, self.target_embedding, self.output_layer = embed, embed_target, output
        self.encoder, self.decoder = encoder, decoder

    def encode(self, ids: Any, padded: bool = True) -> Any:
        """What the encoder returns for source ids (batch, length). With `padded=False`, no id may be 0."""
        return self.encoder(embedded(self.source_embedding, ids, padded))

    def prefill(self, sources: Any, max_length: int, prompt: Any = None, padded: bool = True) -> Any:
        """The cache for decoding up to `max_length` tokens.

        Args:
            sources: ids (batch, length), each row with its end token.
            prompt: ids (batch, n), the start token first, that the decoder reads at once; the next position is n.
            padded: whether there may be padding in the sources.

        >>> from keras_tfm.models import transformer
        >>> model = transformer(vocab_size=100, size="tiny", num_layers=1)
        >>> sources, prompt, following = map(ops.convert_to_tensor, ([[5, 6, 2]], [[1, 7]], [[8]]))
        >>> cache = model.prefill(sources, max_length=8, prompt=prompt)
        >>> logits, cache = model.step(following, 2, cache)
        >>> print(logits.shape)
        (1, 1, 100)
        """
        memory = self.encode(sources, padded)
        cache = self.decoder.init_cache(ops.shape(sources)[0], max_length, memory, masked=False)
        return cache if prompt is None else self._features(prompt, 0, cache)[1]

    def step_and_attention(self, tokens, position, cache):
        """`step`, and how much the last token attends to each source token, (batch, source length)."""
        attentions = self.decoder.memory_attentions
        check("model", self.name, attentions, "a model with attention to the source, for the coverage penalty")
        with recording.capture_attention() as maps:
            logits, cache = self.step(tokens, position, cache)
        (weights,) = maps[attentions[-1].path]  # (sources, heads, hypotheses · n, length)
        weights = ops.reshape(ops.mean(weights, axis=1), (*ops.shape(tokens), ops.shape(weights)[-1]))
        return logits, cache, weights[:, -1]
