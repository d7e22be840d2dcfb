"""LiteRT files: ids → ids by builtin operators."""

import functools
import tempfile

import keras
import numpy as np

from keras_tfm import kernels
from keras_tfm.arguments import one_of, positive
from keras_tfm.export.common import (
    check_not_quantized,
    compare,
    graph_of,
    longest_of,
    save_settings,
    save_tokenizers,
    tensorflow,
)
from keras_tfm.export.lean import lean
from keras_tfm.exported import LiteRTTranslator, NewFolder
from keras_tfm.text import END

# Word → what the converter is told.
PRECISIONS = {
    "float32": {},
    "float16": {"optimizations": ["DEFAULT"], "types": ["float16"]},
    "int8": {"optimizations": ["DEFAULT"]},  # weights in eight bits, activations when they come
}


def litert(translator, folder, precision="float32", max_length=None, compare_on=None):
    """Writes a translator as a LiteRT file of builtin operators, with its tokenizers and `translator.json` beside it.

    Signatures of `model.tflite`, for one sentence at a time; ids end with the end token, and have no padding. An id
    that no token has is an error:
        translate: ids (1, length) → ids (1, longest), zeros behind the end token, by the search of the translator.
        encode: ids (1, length) → cache_0, cache_1, … of a decoder that has yet to see a token.
        decode_step: tokens (1, 1), position (1,), cache_0, … → logits (1, vocabulary), cache_0, …

    Args:
        translator: a `Translator`.
        folder: where to write; an earlier export is replaced, once all is written.
        precision: a word of `PRECISIONS`.
        max_length, compare_on: as of `saved_model`, which says what is returned, too.
    """
    tf, place = tensorflow(), NewFolder(folder)
    check_not_quantized(translator)
    options = PRECISIONS[one_of("precision", precision, PRECISIONS)]
    max_length = min(positive("max_length", max_length or 128), translator.max_length)
    longest = longest_of(translator, max_length)
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

    def frozen(function, checks_room=False):
        """`function` with the weights as constants: variables of Keras would be left out of the file."""

        def run(*arguments):
            with keras.StatelessScope(state_mapping=constants), kernels.using(lean(lookups, checks_room)):
                return function(*arguments)

        return run

    def translate(ids):
        return {"ids": translator.search(_not_negative(ids), max_length, None if translator.beams == 1 else 1)[0][:, 0]}

    def encode(ids):
        return {f"cache_{n}": x for n, x in enumerate(keras.tree.flatten(start(_not_negative(ids), longest)))}

    def decode_step(tokens, position, *cache):
        logits, cache = step(_not_negative(tokens), position[0], keras.tree.pack_sequence_as(structure, list(cache)))
        return {"logits": logits[:, -1], **{f"cache_{n}": x for n, x in enumerate(keras.tree.flatten(cache))}}

    ids = ([1, None], "int32", "ids")
    signatures = {"translate": graph_of(frozen(translate), ids), "encode": graph_of(frozen(encode), ids)}
    structure = frozen(start)(tf.constant([[END]]), longest)
    outputs = signatures["encode"].get_concrete_function().structured_outputs
    caches = [(x.shape, x.dtype, name) for name, x in sorted(outputs.items(), key=lambda item: int(item[0][6:]))]
    step_inputs = ([1, 1], "int32", "tokens"), ([1], "int32", "position"), *caches
    signatures["decode_step"] = graph_of(frozen(decode_step, checks_room=True), *step_inputs)

    with place as new, tempfile.TemporaryDirectory() as graphs:
        tf.saved_model.save(tf.Module(), graphs, signatures=signatures)
        converter = tf.lite.TFLiteConverter.from_saved_model(graphs, signature_keys=list(signatures))
        converter.optimizations = [getattr(tf.lite.Optimize, word) for word in options.get("optimizations", [])]
        converter.target_spec.supported_types = [getattr(tf, word) for word in options.get("types", [])]
        (new / "model.tflite").write_bytes(_shared_buffers(converter.convert()))
        save_tokenizers(translator, new)
        save_settings(translator, new, format="litert", max_length=max_length, longest=longest, precision=precision)
        return None if compare_on is None else compare(new, LiteRTTranslator(new), translator, compare_on)


def _not_negative(ids):
    """Ids with a number that is too high for negative ones: the runtime refuses it, but reads in front of a table."""
    return keras.ops.where(ids < 0, 2**31 - 1, ids)


def _eight_bits(table):
    """A table as rows of eight-bit integers (n, dim) and the scale of each row (n, 1)."""
    scales = np.maximum(np.abs(table).max(axis=1, keepdims=True), 1e-20) / 127
    return np.round(table / scales).astype("int8"), scales


def _look_up(rows, scales, ids):
    tf = tensorflow()
    return tf.cast(tf.gather(rows, ids), "float32") * tf.bitcast(tf.gather(scales, ids), "float32")


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
