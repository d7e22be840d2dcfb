"""Export: a trained translator as something to ship.

    saved_model(translator, folder)    strings → strings, for `tf.saved_model.load` and TensorFlow Serving; so are
                                       saved_classifier and saved_language_model for the other models
    litert(translator, folder)         ids → ids by builtin operators, for `keras_tfm.litert` and for phones
    ctranslate2(translator, folder)    weights for CTranslate2, which serves on processors
    onnx(translator, folder)           encoder and decoder step, for ONNX Runtime

All but CTranslate2's write TensorFlow graphs, so they need the TensorFlow backend. A model that was trained on JAX is
saved there and loaded here.
"""

import contextlib
import functools
import inspect
import json
import os
import pathlib
import shutil
import statistics
import tempfile
import time
import typing
import warnings

import keras
import numpy as np

from keras_tfm import backend, decoding, text
from keras_tfm.arguments import one_of, positive
from keras_tfm.layers import MultiHeadSelfAttention, masks
from keras_tfm.litert import LiteRTTranslator
from keras_tfm.models.transformer import TokenEmbedding
from keras_tfm.text import END, PAD, START
from keras_tfm.translator import Translator


def saved_model(translator, folder, n_best=None, max_length=None, compare_on=None):
    """Writes a translator as a SavedModel, with its tokenizers and its search inside.

    It loads with `tensorflow` and `tensorflow_text` alone. Beams, penalties and constraints are those of the
    translator. Batches may have any size, none too. Each text is one sentence; of what is longer than `max_length` the
    end is cut off.

    Signatures, their inputs and outputs:
        serving_default: texts (batch,) → translation (batch,).
        translate: texts (batch,) → translations (batch, n), scores (batch, n) and lengths (batch, n), best first; cut
            (batch,), how many tokens of the source were cut off. Of a greedy translator n is 1, and scores are zero.
        tokens: ids (batch, length), each row with its end token, zeros behind → ids (batch, length) of the best.
        encode: texts (batch,) → embeddings (batch, length, model_dim) of the encoder and mask (batch, length).

    Args:
        translator: a `Translator`; of several models, `encode` takes the first.
        folder: where to write; an earlier export is replaced, once all is written.
        n_best: how many hypotheses `translate` gives, by default all of the beam.
        max_length: tokens of the longest source, by default that of the translator, or 128 if that is less.
        compare_on: sentences that are translated by what was written and by the translator, before it stays.

    Returns:
        What the comparison found, a `Verdict`; None without one.
    """
    tf, place = _tensorflow(), Replaced(folder)
    source, target = translator.source_tokenizer.in_graph(), translator.target_tokenizer.in_graph()
    max_length = min(positive("max_length", max_length or 128), translator.max_length)
    n_best = min(positive("n_best", n_best or translator.beams), translator.beams)

    def tokenized(texts):
        """Ids (batch, length) of texts, each row with its end token, and how many tokens of each were cut off."""
        rows, cut = _tokenized(source, texts, max_length - 1)
        ends = tf.fill([tf.size(texts), 1], END)
        return tf.concat([rows, ends], axis=1).to_tensor(PAD), cut

    # functions of the graph, so that it has each search once
    def search(n):
        return _graph(
            lambda sources: translator.search(sources[:, :max_length], max_length, n), ([None, None], "int32")
        )

    best = search(None if translator.beams == 1 else 1)
    several = best if n_best == 1 else search(n_best)

    def strings(ids, texts):
        """Ids (batch, n, length) → (batch, n) strings; what was blank stays empty."""
        shape = tf.shape(ids)
        found = tf.reshape(target.detokenize(tf.reshape(ids, (shape[0] * shape[1], shape[2]))), shape[:2])
        return tf.where(tf.strings.strip(texts)[:, None] == "", "", found)

    def serving_default(texts):
        return {"translation": strings(best(tokenized(texts)[0])[0][:, :1], texts)[:, 0]}

    def translate(texts):
        sources, cut = tokenized(texts)
        ids, scores = several(sources)
        lengths = tf.reduce_sum(tf.cast(ids != PAD, "int32"), axis=-1)
        lengths = tf.where(tf.strings.strip(texts)[:, None] == "", 0, lengths)
        return {"translations": strings(ids, texts), "scores": scores, "lengths": lengths, "cut": cut}

    def tokens(ids):
        return {"ids": best(ids)[0][:, 0]}

    def encode(texts):
        sources = tokenized(texts)[0]
        return {"embeddings": translator.models[0].encode(sources), "mask": sources != PAD}

    with place as new:
        _save(new, translator.models, [source, target], serving_default, translate, tokens, encode)
        if compare_on is None:
            return None
        run = tf.saved_model.load(str(new)).signatures["serving_default"]
        return compare(
            new, lambda string: run(tf.constant([string]))["translation"].numpy()[0].decode(), translator, compare_on
        )


def saved_classifier(model, tokenizer, folder, labels=None, max_length=128):
    """Writes an `encoder_classifier` as a SavedModel, with its tokenizer inside.

    Signatures, their inputs and outputs; a text without a token is read as its end:
        serving_default: texts (batch,) → label (batch,) and probabilities (batch, classes).
        tokens: ids (batch, length) → probabilities (batch, classes).
        encode: texts (batch,) → embeddings (batch, model_dim).

    Args:
        model: an `encoder_classifier`.
        tokenizer: what its ids came from.
        folder: where to write; an earlier export is replaced, once all is written.
        labels: names of the classes, by default their numbers.
        max_length: tokens of the longest text; the end of others is cut off.
    """
    tf, place = _tensorflow(), Replaced(folder)
    _check(model, "encoder_classifier", tokenizer)
    source = tokenizer.in_graph()
    classes = model.output_shape[-1]
    names = tf.constant([str(label) for label in (range(classes) if labels is None else labels)])
    if len(names) != classes:
        raise ValueError(f"`labels` must name each of the {classes} classes. Received: {labels=}")

    def tokenized(texts):
        rows, _ = _tokenized(source, texts, positive("max_length", max_length))
        ends = tf.RaggedTensor.from_row_lengths(
            tf.fill([tf.reduce_sum(tf.cast(rows.row_lengths() == 0, "int32"))], END),
            tf.cast(rows.row_lengths() == 0, "int64"),
        )
        return tf.concat([rows, ends], axis=1).to_tensor(PAD)

    def tokens(ids):
        return {"probabilities": tf.nn.softmax(model(ids[:, :max_length]))}

    def serving_default(texts):
        probabilities = tokens(tokenized(texts))["probabilities"]
        return {"label": tf.gather(names, tf.argmax(probabilities, axis=-1)), "probabilities": probabilities}

    def encode(texts):
        return {"embeddings": model.encode(tokenized(texts))}

    with place as new:
        _save(new, [model], [source], serving_default, tokens, encode)


def saved_language_model(model, tokenizer, folder, max_length=128, **constraints):
    """Writes a `decoder_lm` as a SavedModel that goes on with texts, greedily, with its tokenizer inside.

    Signatures, their inputs and outputs:
        serving_default: texts (batch,) → text (batch,), each with what the model says behind it.
        tokens: ids (batch, length), zeros behind → ids (batch, max_length), zeros behind the end token.
        encode: texts (batch,) → embeddings (batch, length, model_dim) and mask (batch, length).

    Args:
        model: a `decoder_lm`.
        tokenizer: what its ids came from.
        folder: where to write; an earlier export is replaced, once all is written.
        max_length: tokens of the longest text, with what is said behind it; what is longer is cut off before that.
        **constraints: `no_repeat_ngram`, `forbidden`, … as of `keras_tfm.decoding.Constraints`.
    """
    tf, place = _tensorflow(), Replaced(folder)
    _check(model, "decoder_lm", tokenizer)
    graph = tokenizer.in_graph()
    decoding.Constraints(max_length, **constraints)  # or an error before all the work

    def tokenized(texts):
        return _tokenized(graph, texts, max_length - 1)[0].to_tensor(PAD)

    def tokens(ids):
        room = tf.maximum(max_length - tf.shape(ids)[1], 0)
        prefix = tf.ensure_shape(tf.pad(ids[:, :max_length], [(0, 0), (0, room)]), [None, max_length])
        return {"ids": decoding.greedy(model.start, model.step, ids, max_length, prefix=prefix, **constraints)}

    def serving_default(texts):
        return {"text": graph.detokenize(tokens(tokenized(texts))["ids"])}

    def encode(texts):
        ids = tokenized(texts)
        return {"embeddings": model.encode(ids), "mask": ids != PAD}

    with place as new:
        _save(new, [model], [graph], serving_default, tokens, encode)


def _check(model, builder, tokenizer):
    if getattr(model, "builder", None) != builder:
        raise ValueError(f"`model` must be a `{builder}`. Received: {getattr(model, 'builder', type(model).__name__)}")
    if model.arguments["vocab_size"] < tokenizer.vocab_size:
        raise ValueError(
            f"`tokenizer` must have no more tokens than the model, {model.arguments['vocab_size']}. Received: "
            f"{tokenizer.vocab_size}"
        )


def _tokenized(tokenizer, texts, room):
    """Ragged ids of texts, at most `room` of each, and how many were cut off."""
    tf = _tensorflow()
    rows = tokenizer.tokenize(tf.strings.unicode_transcode(texts, "UTF-8", "UTF-8"))
    return rows[:, :room], tf.maximum(tf.cast(rows.row_lengths(), "int32") - room, 0)


def _save(folder, models, tokenizers, *functions):
    """Writes functions of `texts` (batch,) or `ids` (batch, length) as the signatures of a SavedModel."""
    tf = _tensorflow()
    inputs = {"texts": ([None], "string", "texts"), "ids": ([None, None], "int32", "ids")}
    signatures = {
        function.__name__: _graph(function, inputs[next(iter(inspect.signature(function).parameters))])
        for function in functions
    }
    module = tf.Module()
    module.weights = [variable.value for model in models for variable in model.variables]
    module.tokenizers = tokenizers
    with _replaced(backend, "slice_update", _slice_update):
        tf.saved_model.save(module, str(folder), signatures=signatures)


def _slice_update(x, starts, updates):
    """`ops.slice_update` by an operator that needs no XLA, which TensorFlow Serving disables."""
    tf = _tensorflow()
    begin = tf.stack([tf.cast(start, "int32") for start in starts])
    return tf.raw_ops.TensorStridedSliceUpdate(
        input=x,
        begin=begin,
        end=begin + tf.shape(updates),
        strides=tf.ones_like(begin),
        value=tf.cast(updates, x.dtype),
    )


# Word → what the converter is told.
PRECISIONS = {
    "float32": {},
    "float16": {"optimizations": ["DEFAULT"], "types": ["float16"]},
    "int8": {"optimizations": ["DEFAULT"]},  # weights in eight bits, activations when they come
}


def litert(translator, folder, precision="float32", max_length=None, compare_on=None):
    """Writes a translator as a LiteRT file of builtin operators, with its tokenizers and `translator.json` beside it.

    Signatures of `model.tflite`, for one sentence at a time; ids end with the end token, and have no padding:
        translate: ids (1, length) → ids (1, longest), zeros behind the end token, by the search of the translator.
        encode: ids (1, length) → cache_0, cache_1, … of a decoder that has yet to see a token.
        decode_step: tokens (1, 1), position (1,), cache_0, … → logits (1, vocabulary), cache_0, …

    Args:
        translator: a `Translator`.
        folder: where to write; an earlier export is replaced, once all is written.
        precision: a word of `PRECISIONS`.
        max_length, compare_on: as of `saved_model`, which says what is returned, too.
    """
    tf, place = _tensorflow(), Replaced(folder)
    options = PRECISIONS[one_of("precision", precision, PRECISIONS)]
    max_length = min(positive("max_length", max_length or 128), translator.max_length)
    longest = min(2 * max_length + 16, translator.max_length)
    start, step = translator.steps()
    variables, lookups = [variable for model in translator.models for variable in model.variables], {}
    values = {id(variable): variable.numpy() for variable in variables}
    if precision == "int8":  # rows of eight-bit integers, the same that the converter finds for the logits
        for layer in (layer for model in translator.models for layer in model.layers if hasattr(layer, "lookup")):
            rows, scales = _eight_bits(values[id(layer.embeddings)])
            values[id(layer.embeddings)] = rows * scales
            # as integers, or the converter would round the scales to eight bits, too
            lookups[layer] = functools.partial(_look_up, tf.constant(rows), tf.constant(scales.view("int32")))
    constants = [(variable, tf.constant(values[id(variable)])) for variable in variables]

    def frozen(function):
        """`function` with the weights as constants: variables of Keras would be left out of the file."""

        def run(*arguments):
            with keras.StatelessScope(state_mapping=constants), contextlib.ExitStack() as stack:
                for layer, lookup in lookups.items():
                    stack.enter_context(_replaced(layer, "lookup", lookup))
                stack.enter_context(_lean())
                return function(*arguments)

        return run

    def translate(ids):
        return {"ids": translator.search(ids, max_length, None if translator.beams == 1 else 1)[0][:, 0]}

    def encode(ids):
        return {f"cache_{n}": x for n, x in enumerate(keras.tree.flatten(start(ids, longest)))}

    def decode_step(tokens, position, *cache):
        logits, cache = step(tokens, position[0], keras.tree.pack_sequence_as(structure, list(cache)))
        return {"logits": logits[:, -1], **{f"cache_{n}": x for n, x in enumerate(keras.tree.flatten(cache))}}

    ids = ([1, None], "int32", "ids")
    signatures = {"translate": _graph(frozen(translate), ids), "encode": _graph(frozen(encode), ids)}
    structure = frozen(start)(tf.constant([[END]]), longest)
    outputs = signatures["encode"].get_concrete_function().structured_outputs
    caches = [(x.shape, x.dtype, name) for name, x in sorted(outputs.items(), key=lambda item: int(item[0][6:]))]
    step_inputs = ([1, 1], "int32", "tokens"), ([1], "int32", "position"), *caches
    signatures["decode_step"] = _graph(frozen(decode_step), *step_inputs)

    with place as new, tempfile.TemporaryDirectory() as graphs:
        tf.saved_model.save(tf.Module(), graphs, signatures=signatures)
        converter = tf.lite.TFLiteConverter.from_saved_model(graphs, signature_keys=list(signatures))
        converter.optimizations = [getattr(tf.lite.Optimize, word) for word in options.get("optimizations", [])]
        converter.target_spec.supported_types = [getattr(tf, word) for word in options.get("types", [])]
        (new / "model.tflite").write_bytes(_shared_buffers(converter.convert()))
        _save_tokenizers(translator, new)
        settings = {"max_length": max_length, "precision": precision, "beams": translator.beams}
        (new / "translator.json").write_text(json.dumps(settings, indent=1) + "\n")
        if compare_on is None:
            return None
        run = LiteRTTranslator(new)
        return compare(new, lambda string: run([string])[0], translator, compare_on)


@contextlib.contextmanager
def _lean():
    """Leaves out of a graph what one sentence at a time does not need: padding, and checks that a search passes."""
    causal, found = masks.causal, {}

    def one_for_all(query_len, key_len, start=0):  # layers, whose caches have the same room
        if id(start) not in found:
            found[id(start)] = start, causal(query_len, key_len, start)
        return found[id(start)][1]

    with contextlib.ExitStack() as stack:
        for thing, name, value in (
            (TokenEmbedding, "compute_mask", lambda *_: None),
            (MultiHeadSelfAttention, "in_room", lambda self, q, *_: q),
            (masks, "causal", one_for_all),
            (backend, "fused_attention", lambda *_: None),
            (keras.layers.LayerNormalization, "call", _normalised),
            (keras.ops, "take", _tensorflow().gather),  # without a look for negative places
        ):
            stack.enter_context(_replaced(thing, name, value))
        yield


def _normalised(layer, x):
    """Keras' layer norm by fewer operators."""
    ops = keras.ops
    x = x - ops.mean(x, axis=-1, keepdims=True)
    scale = ops.rsqrt(ops.mean(ops.square(x), axis=-1, keepdims=True) + layer.epsilon)
    return x * scale * layer.gamma + layer.beta


def _save_tokenizers(translator, folder):
    text.save_tokenizer(translator.source_tokenizer, folder / "source_tokenizer")
    text.save_tokenizer(translator.target_tokenizer, folder / "target_tokenizer")


def _eight_bits(table):
    """A table as rows of eight-bit integers (n, dim) and the scale of each row (n, 1)."""
    scales = np.maximum(np.abs(table).max(axis=1, keepdims=True), 1e-20) / 127
    return np.round(table / scales).astype("int8"), scales


def _look_up(rows, scales, ids):
    tf = _tensorflow()
    return tf.cast(tf.gather(rows, ids), "float32") * tf.bitcast(tf.gather(scales, ids), "float32")


@contextlib.contextmanager
def _replaced(thing, name, value):
    """Gives a thing another attribute, for a while."""
    own = vars(thing).get(name)
    setattr(thing, name, value)
    try:
        yield
    finally:
        delattr(thing, name) if own is None else setattr(thing, name, own)


def _shared_buffers(content):
    """A LiteRT file in which what is the same is there once: the converter writes the embeddings for each use."""
    from tensorflow.lite.python import schema_py_generated as schema
    from tensorflow.lite.tools import flatbuffer_utils

    model = schema.ModelT.InitFromObj(schema.Model.GetRootAs(content, 0))
    first = {}
    places = [
        first.setdefault(bytes(buffer.data), number) if buffer.data is not None else number
        for number, buffer in enumerate(model.buffers)
    ]
    for graph in model.subgraphs:
        for tensor in graph.tensors:
            tensor.buffer = places[tensor.buffer]
    for number, place in enumerate(places):
        if place != number:
            model.buffers[number].data = None
    return bytes(flatbuffer_utils.convert_object_to_bytearray(model))


# Options of `transformer` that CTranslate2 can compute, the default first; sizes and pre- or post-norm are free.
CTRANSLATE2 = {
    "positions": ("sinusoidal", "learned"),
    "positions_in": ("input",),
    "positions_combine": ("add",),
    "score": ("scaled_dot",),
    "heads": ("standard",),
    "mixing": ("soft",),
    "norm": ("layer",),
    "activation": ("relu", "gelu", "swish"),
    "window": (None,),
    "num_kv_heads": (None,),
    "tied_output": (True,),
}


def ctranslate2(translator, folder, quantization=None, compare_on=None):
    """Writes a translator for CTranslate2 (https://github.com/OpenNMT/CTranslate2), with its tokenizers beside.

    Args:
        translator: a `Translator` of one model, with the options of `CTRANSLATE2`.
        folder, compare_on: as of `saved_model`, which says what is returned, too.
        quantization: of CTranslate2, such as "int8" or "float16"; None keeps float32.
    """
    place, runtime = Replaced(folder), _ctranslate2()
    if len(translator.models) != 1:
        raise ValueError(f"`translator` must have one model. Received: {len(translator.models)} models")
    spec = _ctranslate2_spec(translator.models[0], runtime.specs)
    spec.register_source_vocabulary(vocabulary(translator.source_tokenizer))
    spec.register_target_vocabulary(vocabulary(translator.target_tokenizer))
    spec.config.add_source_eos = True
    spec.validate()
    spec.optimize(quantization=quantization)
    with place as new:
        spec.save(str(new))
        _save_tokenizers(translator, new)
        if compare_on is None:
            return None
        return compare(new, run_ctranslate2(new, translator), translator, compare_on)


def run_ctranslate2(folder, translator, num_threads=1):
    """A function string → string, by CTranslate2 and the tokenizers, beams and length penalty of a translator."""
    served = _ctranslate2().Translator(str(folder), intra_threads=num_threads)
    names = vocabulary(translator.source_tokenizer)
    ids = {name: number for number, name in enumerate(vocabulary(translator.target_tokenizer))}
    options = {"beam_size": translator.beams, "length_penalty": translator.options.get("length_penalty", 0.6)}

    def run(string):
        (row,) = translator.source_tokenizer.encode([string])
        (found,) = served.translate_batch([[names[number] for number in row]], **options)
        return translator.target_tokenizer.decode([[ids[name] for name in found.hypotheses[0]]])[0]

    return run


def _ctranslate2_spec(model, specs):
    """The weights of a `transformer` where CTranslate2 looks for them."""
    options = {
        name: one_of(name, model.arguments.get(name, allowed[0]), allowed) for name, allowed in CTRANSLATE2.items()
    }
    norm_first, layers = bool(model.arguments.get("norm_first")), model.arguments.get("num_layers", 6)
    counts = {"encoder": layers, "decoder": model.arguments.get("num_decoder_layers") or layers}
    spec = specs.TransformerSpec.from_config(
        tuple(counts.values()),
        model.get_layer("encoder_0").attention.num_heads,
        pre_norm=norm_first,
        activation=getattr(specs.common_spec.Activation, options["activation"].upper()),
    )

    def linear(to, *layers):  # side by side, where one product makes several outputs
        inputs = to_inputs(layers[0])
        to.weight = np.concatenate([_array(layer.kernel).reshape(inputs, -1).T for layer in layers])
        to.bias = np.concatenate([_array(layer.bias).reshape(-1) for layer in layers])

    def to_inputs(layer):
        """How many features come in: the output of attention takes heads and features of each."""
        shape = layer.kernel.shape
        return shape[0] * shape[1] if layer.name == "output" else shape[0]

    def norm(to, layer):
        to.gamma, to.beta = _array(layer.gamma), _array(layer.beta)

    for side, count in counts.items():
        to, separate = getattr(spec, side), {"encoder": "source_embedding", "decoder": "target_embedding"}[side]
        name = separate if model.arguments.get("target_vocab_size") else "embedding"
        table = _array(model.get_layer(name).embeddings)
        embeddings = to.embeddings[0] if side == "encoder" else to.embeddings
        embeddings.weight = table
        positions = model.get_layer(f"{side}_positions_0")
        length = positions.max_length or 1024
        to.position_encodings.encodings = _array(positions(np.zeros((1, length, table.shape[1]), "float32")))[0]
        if norm_first:
            norm(to.layer_norm, model.get_layer(f"{side}_norm"))
        for number in range(count):
            block, layer = model.get_layer(f"{side}_{number}"), to.layer[number]
            own = block.attention
            linear(layer.self_attention.linear[0], own.query_dense, own.key_dense, own.value_dense)
            linear(layer.self_attention.linear[1], own.output_dense)
            norm(layer.self_attention.layer_norm, block.attention_residual.norm)
            if side == "decoder":
                other = block.memory_attention
                linear(layer.attention.linear[0], other.query_dense)
                linear(layer.attention.linear[1], other.key_dense, other.value_dense)
                linear(layer.attention.linear[2], other.output_dense)
                norm(layer.attention.layer_norm, block.memory_residual.norm)
            linear(layer.ffn.linear_0, block.feed_forward.inner)
            linear(layer.ffn.linear_1, block.feed_forward.outer)
            norm(layer.ffn.layer_norm, block.feed_forward_residual.norm)
    spec.decoder.projection.weight = table
    spec.decoder.projection.bias = np.where(np.isin(np.arange(len(table)), [PAD, START]), -1e9, 0).astype("float32")
    return spec


def onnx(translator, folder, max_length=None, compare_on=None):
    """Writes encoder and decoder step of a translator as ONNX files, by Keras' exporter, with its tokenizers beside.

    `run_onnx` shows how to search with them; ids end with the end token:
        encoder.onnx: ids (batch, length) → cache_00, cache_01, … of a decoder that has yet to see a token.
        step.onnx: tokens (batch, 1), position (1,), cache_00, … → logits (batch, vocabulary), next_cache_00, …

    Args:
        translator: a `Translator`.
        folder, max_length: as of `saved_model`.
        compare_on: sentences that are translated greedily by what was written and by the model, before it stays.

    Returns:
        What the comparison found, a `Verdict`; None without one.
    """
    _tensorflow()
    _onnx_packages()
    place, max_length = Replaced(folder), min(positive("max_length", max_length or 128), translator.max_length)
    start, step = translator.steps()
    structure = start(np.array([[END, END, END]], "int32"), max_length)
    names = [f"cache_{number:02}" for number in range(len(keras.tree.flatten(structure)))]

    def encode(inputs):
        return dict(zip(names, keras.tree.flatten(start(inputs["ids"], max_length)), strict=True))

    def decode_step(inputs):
        cache = keras.tree.pack_sequence_as(structure, [inputs[name] for name in names])
        logits, cache = step(inputs["tokens"], inputs["position"][0], cache)
        next_names = (f"next_{name}" for name in names)
        return {"logits": logits[:, -1], **dict(zip(next_names, keras.tree.flatten(cache), strict=True))}

    inputs = {"tokens": ((None, 1), "int32"), "position": ((1,), "int32")}
    for name, x in zip(names, keras.tree.flatten(structure), strict=True):  # 3 is the length of the source
        inputs[name] = (None, *(None if size == 3 else size for size in x.shape[1:])), x.dtype.name
    with place as new:
        with _replaced(backend, "slice_update", _select_update):
            _Function(encode, translator.models).write(new / "encoder.onnx", {"ids": ((None, None), "int32")})
            _Function(decode_step, translator.models).write(new / "step.onnx", inputs)
        _save_tokenizers(translator, new)
        (new / "translator.json").write_text(json.dumps({"max_length": max_length}, indent=1) + "\n")
        if compare_on is None:
            return None
        tokenizers = translator.source_tokenizer, translator.target_tokenizer
        greedy = Translator(translator.models, *tokenizers, beams=1, max_length=translator.max_length)
        return compare(new, run_onnx(new, translator), greedy, compare_on)


class _Function(keras.Model):
    """A function of a dict of tensors as a model, which is what Keras exports."""

    def __init__(self, function, models):
        super().__init__(name="function")
        self.function, self.models, self.built = function, models, True

    def call(self, inputs):
        return self.function(inputs)

    def write(self, path, inputs):
        import tensorflow as tf

        signature = {name: tf.TensorSpec(shape, dtype, name) for name, (shape, dtype) in inputs.items()}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # of NumPy, about how Keras asks for `np.object`
            self.export(str(path), format="onnx", input_signature=[signature], verbose=False)


def _select_update(x, starts, updates):
    """`ops.slice_update` of one place along one axis, by operators that every runtime has."""
    (axis,) = (axis for axis, start in enumerate(starts) if not isinstance(start, int))
    places = keras.ops.reshape(
        keras.ops.arange(keras.ops.shape(x)[axis]), [-1 if n == axis else 1 for n in range(len(starts))]
    )
    return keras.ops.where(places == starts[axis], updates, x)


def run_onnx(folder, translator):
    """A function string → string, greedy, by ONNX Runtime and the tokenizers of a translator."""
    runtime, folder = _onnx_packages(), pathlib.Path(folder)
    max_length = json.loads((folder / "translator.json").read_text())["max_length"]
    encoder, step = (
        runtime.InferenceSession(str(folder / name), providers=["CPUExecutionProvider"])
        for name in ("encoder.onnx", "step.onnx")
    )
    names = [x.name for x in step.get_inputs() if x.name.startswith("cache_")]

    def run(string):
        (row,) = translator.source_tokenizer.encode([string])
        if not string.strip():
            return ""
        ids = np.array([[*row[: max_length - 1], END]], "int32")
        cache = dict(zip(names, encoder.run(names, {"ids": ids}), strict=True))
        tokens, written = np.array([[START]], "int32"), []
        while len(written) < min(2 * ids.shape[1] + 16, max_length):
            place = {"tokens": tokens, "position": np.array([len(written)], "int32")}
            logits, *caches = step.run(["logits", *(f"next_{name}" for name in names)], place | cache)
            cache = dict(zip(names, caches, strict=True))
            logits[:, [PAD, START]] = decoding.NEVER
            tokens = logits.argmax(-1, keepdims=True).astype("int32")
            if tokens[0, 0] == END:
                break
            written.append(int(tokens[0, 0]))
        return translator.target_tokenizer.decode([written])[0]

    return run


def _onnx_packages():
    try:
        import onnxruntime
        import tf2onnx  # noqa: F401, by which Keras converts
    except ImportError as error:
        raise ImportError("This export needs ONNX's packages: pip install 'keras_tfm[onnx]'") from error
    return onnxruntime


def vocabulary(tokenizer):
    """Names of all tokens: the pieces of SentencePiece, and numbers where it has none."""
    specials = ["<pad>", "<s>", "</s>", "<unk>"]
    processor = getattr(tokenizer, "processor", None)
    name = processor.id_to_piece if processor else str
    return specials + [name(number) for number in range(len(specials), tokenizer.vocab_size)]


def _array(variable):
    return np.array(keras.ops.convert_to_numpy(variable), "float32")


class Verdict(typing.NamedTuple):
    """How an exported translator compares with the one that it came from."""

    same: int
    texts: int
    megabytes: float
    milliseconds: float

    def __str__(self):
        return (
            f"{self.same} of {self.texts} sentences as the model translates them, {self.megabytes:.1f} MB, "
            f"{self.milliseconds:.1f} ms for a sentence"
        )


def compare(folder, run, translator, texts):
    """The `Verdict` about a folder and what it translates, by `run(string)`, beside the translator it came from."""
    found = [run(string) for string in texts]  # and warms up
    times = []
    for string in texts:
        start = time.perf_counter()
        run(string)
        times.append(time.perf_counter() - start)
    size = sum(file.stat().st_size for file in pathlib.Path(folder).rglob("*") if file.is_file())
    same = sum(a == b for a, b in zip(found, translator(texts), strict=True))
    return Verdict(same, len(texts), size / 2**20, 1000 * statistics.median(times))


def _graph(function, *specs):
    """`function` of tensors as a function of a TensorFlow graph; specs are shape, type and name of each."""
    tf = _tensorflow()
    return tf.function(function, input_signature=[tf.TensorSpec(*spec) for spec in specs], autograph=False)


class Replaced:
    """A new folder beside `folder`, which takes its place if all goes well."""

    def __init__(self, folder):
        self.folder = pathlib.Path(folder)
        if self.folder.exists() and not self.folder.is_dir():
            raise ValueError(f"`folder` must be new, empty or an earlier export. Received: {self.folder}, a file")
        files = {file.name for file in self.folder.iterdir()} if self.folder.exists() else set()
        if files and not files & {"saved_model.pb", "model.tflite", "model.bin", "step.onnx"}:
            raise ValueError(
                "`folder` must be new, empty or an earlier export. "
                f"Received: {self.folder}, with {', '.join(sorted(files))}"
            )

    def __enter__(self):
        self.new = self.folder.absolute().parent / f".{self.folder.name}.unfinished"
        shutil.rmtree(self.new, ignore_errors=True)  # of one that was killed
        self.new.mkdir(parents=True)
        return self.new

    def __exit__(self, error, *_):
        if error is None:
            shutil.rmtree(self.folder, ignore_errors=True)
            os.replace(self.new, self.folder)
        else:
            shutil.rmtree(self.new)


def _ctranslate2():
    try:
        import ctranslate2
        import ctranslate2.specs
    except ImportError as error:
        raise ImportError("This export needs CTranslate2: pip install 'keras_tfm[ctranslate2]'") from error
    return ctranslate2


def _tensorflow():
    if keras.backend.backend() != "tensorflow":
        raise RuntimeError(
            "Export needs Keras' TensorFlow backend: save the translator, and load it where KERAS_BACKEND=tensorflow. "
            f"Received: the {keras.backend.backend()} backend"
        )
    import tensorflow as tf

    return tf
