"""The values behind every step of a translation, for the page that shows them.

Signatures of `explain.tflite`, for a source of s and a target of t tokens, with l layers of h heads; shapes are fixed.
Switches (l, h) multiply the output of each head: 1 leaves it as it is, 0 switches it off.
    encode: ids (1, s), positions (1,), which is 0 to give all tokens the same position, heads (l, h) →
        embeddings (s, d), states (l + 1, s, d), the input of the first block and the output of each,
        query (l, s, h, head_dim), key and value (l, s, kv_heads, head_dim), scores and weights (l, h, s, s), and
        memory_cache (2 · l, kv_heads, s, head_dim), keys and values of each layer of the decoder
    decode: source (1, s), memory (1, s, d), the last of the states, target (1, t), which begins with the start token,
        heads (2 · l, h), first those of self-attention → logits (t, v), self_scores and self_weights (l, h, t, t),
        memory_scores and memory_weights (l, h, t, s)
    step: tokens (n, 1), position (1,), parents (n,), which rows of the cache continue, heads (2 · l, h), source (1, s),
        memory_cache, self_cache (2 · l, n, kv_heads, t, head_dim), at first zeros → logits (n, v), self_cache
"""

import contextlib

from keras_tfm import ops
from keras_tfm.common.arguments import check
from keras_tfm.export import to_litert
from keras_tfm.export.common import graph_of
from keras_tfm.layers import masks, recording
from keras_tfm.layers.scores import SCORES
from keras_tfm.models import Transformer
from keras_tfm.models.encoder_decoder import logits_of
from keras_tfm.runtimes.litert import LITERT

MAX_LENGTH = 48  # maximum number of tokens of a source and of a translation that the page shows
MAX_BEAMS = 4  # maximum number of hypotheses of its beam


def write(translator, path, settings):
    """Writes `explain.tflite`, and returns what the page has to know about it."""
    model = check_model(translator)
    length = min(MAX_LENGTH, settings["max_length"], settings["longest"])
    graphs = Graphs(translator, settings, length)
    precision = "float32" if settings["precision"] == "float32" else "float16"  # int8 would show other numbers
    path.write_bytes(to_litert.converted(graphs.signatures(), precision))
    encoder = model.encoder
    return {
        "length": length,
        "beams": MAX_BEAMS,
        "layers": [len(encoder.blocks), len(model.decoder.blocks)],
        "heads": encoder.num_heads,
        "positions": encoder.positions,
        "window": encoder.window,
        "score": encoder.score,
        "precision": precision,
        "self_cache": graphs.self_cache,
    }


def check_model(translator):
    """The model of the translator, or an error if the page cannot show it."""
    model, coverage = translator.models[0], getattr(translator.sampler, "coverage_penalty", 0)
    check("explain", True, len(translator.models) == 1, "False for an ensemble")
    check("explain", True, isinstance(model, Transformer), f"False for a {type(model).__name__}")
    check("explain", True, model.encoder.heads != "narrow", "False for narrow heads")
    check("explain", True, not coverage, f"False for a search with coverage_penalty={coverage}")
    return model


class Graphs(to_litert.Graphs):
    """The functions behind the signatures: the model's own layers, whose dense layers are observed and switched."""

    def __init__(self, translator, settings, length):
        super().__init__(translator, settings | {"precision": "float32", "longest": length})
        (self.model,), self.length = translator.models, length
        self.runtime = self.runtime._replace(dense=self._dense)
        self.switches, self.outputs = {}, {}  # by the identity of a dense layer
        attention = self.model.decoder.blocks[0].attention
        sizes = attention.num_kv_heads, length, attention.head_dim
        self.self_cache = [2 * len(self.model.decoder.blocks), MAX_BEAMS, *sizes]
        self.memory_cache = [2 * len(self.model.decoder.blocks), *sizes]

    def signatures(self):
        """Name → graph."""
        ids, encoder, decoder = [1, self.length], self.model.encoder, self.model.decoder
        memory = [*ids, self.model.arguments["model_dim"]], "float32", "memory"
        of_encoder = [len(encoder.blocks), encoder.num_heads], "float32", "heads"
        of_decoder = [2 * len(decoder.blocks), decoder.num_heads], "float32", "heads"
        source, target = (ids, "int32", "source"), (ids, "int32", "target")
        positions, position = ([1], "int32", "positions"), ([1], "int32", "position")
        tokens, parents = ([MAX_BEAMS, 1], "int32", "tokens"), ([MAX_BEAMS], "int32", "parents")
        caches = (self.memory_cache, "float32", "memory_cache"), (self.self_cache, "float32", "self_cache")
        return {
            "encode": graph_of(self.encode, (ids, "int32", "ids"), positions, of_encoder),
            "decode": graph_of(self.decode, source, memory, target, of_decoder),
            "step": graph_of(self.step_beams, tokens, position, parents, of_decoder, source, *caches),
        }

    def encode(self, ids, positions, heads):
        encoder, options = self.model.encoder, {"return_hidden_states": True}
        attentions = [block.attention for block in encoder.blocks]
        with self.observing(attentions, heads) as maps:
            if encoder.encodings:
                options["position_ids"] = ops.arange(self.length, dtype="int32")[None] * positions
            embeddings = self.model.source_embedding(ids)
            memory, states = encoder(embeddings, **options)
            outputs = {"embeddings": embeddings[0], "states": ops.concatenate(states, axis=0)}
            for name in ("query", "key", "value"):
                outputs[name] = ops.concatenate([self._projected(layer, name) for layer in attentions], axis=0)
            outputs |= self._attention("", attentions, maps)
            cache = self.model.decoder.init_cache(MAX_BEAMS, self.length, memory, masked=False)
            parts = [block["memory"][name] for block in cache for name in ("k", "v")]
            outputs["memory_cache"] = ops.concatenate(parts, axis=0)
        return _as_float32(outputs)

    def decode(self, source, memory, target, heads):
        decoder = self.model.decoder
        own = [block.attention for block in decoder.blocks]
        with self.observing([*own, *decoder.memory_attentions], heads) as maps:
            x = decoder(self.model.target_embedding(target), memory, memory_mask=source != 0)
            outputs = {"logits": logits_of(x, self.model.target_embedding, self.model.output_layer)[0]}
            outputs |= self._attention("self_", own, maps)
            outputs |= self._attention("memory_", decoder.memory_attentions, maps)
        return _as_float32(outputs)

    def step_beams(self, tokens, position, parents, heads, source, memory_cache, self_cache):
        decoder = self.model.decoder
        own, before = [block.attention for block in decoder.blocks], ops.take(self_cache, parents, axis=1)
        with self.observing([*own, *decoder.memory_attentions], heads):
            cache = []
            for first in range(0, 2 * len(own), 2):
                memory = {"k": memory_cache[first, None], "v": memory_cache[first + 1, None], "mask": source != 0}
                cache.append({"self": {"k": before[first], "v": before[first + 1]}, "memory": memory})
            logits, cache = self.model.step(tokens, position[0], cache)
            after = ops.stack([block["self"][name] for block in cache for name in ("k", "v")], axis=0)
        return _as_float32({"logits": logits[:, -1], "self_cache": after})

    # ── what the layers compute ──

    @contextlib.contextmanager
    def observing(self, attentions, switches):
        """Traces with a row of switches for each attention layer; gives the recorded weights by the layers' paths."""
        self.outputs = {}
        self.switches = {id(layer.output_dense): switches[number] for number, layer in enumerate(attentions)}
        with self.tracing(), recording.capture_attention() as maps:
            yield maps

    def _dense(self, x, *layers):
        """`ops.dense`, whose outputs are kept. The input of an attention's last layer has its heads side by side."""
        switch = self.switches.get(id(layers[0]))
        if switch is not None:
            width = x.shape[-1] // switch.shape[0]
            x = x * ops.reshape(ops.tile(switch[:, None], (1, width)), (-1,))
        outputs = LITERT.dense(x, *layers)
        self.outputs |= {id(layer): output for layer, output in zip(layers, outputs, strict=True)}
        return outputs

    def _projected(self, attention, name):
        """Queries, keys or values (1, length, heads, head_dim), with rotary positions where the layer has them."""
        x = self.outputs[id(getattr(attention, f"{name}_dense"))]
        return x if name == "value" else attention.scheme.rotate(x, ops.arange(x.shape[1], dtype="int32"))

    def _attention(self, prefix, attentions, maps):
        """Scores before the softmax, without the mask, and weights after it: (layers, heads, query, key) each."""
        parts = {"scores": map(self._scores, attentions), "weights": (maps[layer.path][0] for layer in attentions)}
        return {f"{prefix}{name}": ops.concatenate([*each], axis=0) for name, each in parts.items()}

    def _scores(self, attention):
        q, k = self._projected(attention, "query"), self._projected(attention, "key")
        scores = ops.cast(SCORES[attention.score][0](q, k, **attention.score_weights), "float32")
        if attention.scheme.bias is None:
            return scores
        distance = masks.distance(q.shape[1], k.shape[1], 0)
        return scores + attention.scheme.bias(
            distance, attention.num_heads, attention.causal, **attention.position_weights
        )


def _as_float32(outputs):
    return {name: ops.cast(x, "float32") for name, x in outputs.items()}
