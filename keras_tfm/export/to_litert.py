"""LiteRT files: ids → ids by builtin operators, with the whole search inside.

Signatures of `model.tflite`, for one sentence at a time. Ids end with the end token and have no padding; ids outside
the vocabulary are an error:
    translate: ids (1, length) → ids (1, longest), zeros after the end token.
    encode: ids (1, length) → cache_0, cache_1, …, the cache of a decoder that has not seen a token yet.
    decode_step: tokens (1, 1), position (1,), cache_0, … → logits (1, vocabulary), cache_0, …
"""

import contextlib
import tempfile

import keras
import numpy as np
import tensorflow as tf

from keras_tfm import artifacts, ops
from keras_tfm.export.common import graph_of
from keras_tfm.runtimes.litert import LITERT
from keras_tfm.text import END

# Precision → types of the weights for the converter; no types: int8 weights, and activations quantized at run time.
PRECISIONS = {"float32": None, "float16": ["float16"], "int8": []}


def write(translator, folder, settings):
    """Writes a LiteRT file; see `keras_tfm.export.export`."""
    graphs = Graphs(translator, settings)
    ids = ([1, None], "int32", "ids")
    signatures = {"translate": graph_of(graphs.translate, ids), "encode": graph_of(graphs.encode, ids)}
    outputs = signatures["encode"].get_concrete_function().structured_outputs
    caches = [(x.shape, x.dtype, name) for name, x in sorted(outputs.items(), key=lambda item: int(item[0][6:]))]
    step_inputs = ([1, 1], "int32", "tokens"), ([1], "int32", "position"), *caches
    signatures["decode_step"] = graph_of(graphs.decode_step, *step_inputs)
    (folder / artifacts.FORMATS["litert"].main).write_bytes(converted(signatures, settings["precision"]))


def converted(signatures, precision):
    """The content of a LiteRT file with these signatures, {name: graph}."""
    with tempfile.TemporaryDirectory() as saved:
        tf.saved_model.save(tf.Module(), saved, signatures=signatures)
        converter = tf.lite.TFLiteConverter.from_saved_model(saved, signature_keys=list(signatures))
        if (types := PRECISIONS[precision]) is not None:
            converter.optimizations = [tf.lite.Optimize.DEFAULT]
            converter.target_spec.supported_types = [getattr(tf, word) for word in types]
        return _without_duplicates(converter.convert())


class Graphs:
    """The functions behind the signatures. Weights are constants: Keras variables would be left out of the file."""

    def __init__(self, translator, settings):
        self.translator, self.settings = translator, settings
        self.prefill, self.step = translator.steps(padded=False)
        self.constants, tables = [], _EightBitTables()
        for model in translator.models:
            embeddings = {id(layer.embeddings) for layer in model.layers if hasattr(layer, "embeddings")}
            for variable in model.variables:
                value = variable.numpy()
                if settings["precision"] == "int8" and id(variable) in embeddings:
                    value = tables.add(variable, value)
                self.constants.append((variable, tf.constant(value)))
        self.runtime = LITERT._replace(embed=tables.rows)
        with self.tracing():
            self.structure = self.prefill(tf.constant([[END]]), settings["longest"])

    @contextlib.contextmanager
    def tracing(self):
        with keras.StatelessScope(state_mapping=self.constants), ops.using(self.runtime):
            yield

    def translate(self, ids):
        with self.tracing():
            ids, _ = self.translator.search(not_negative(ids), self.settings["max_length"], padded=False)
            return {"ids": ids[:, 0]}

    def encode(self, ids):
        with self.tracing():
            return _named(self.prefill(not_negative(ids), self.settings["longest"]))

    def decode_step(self, tokens, position, *cache):
        with self.tracing():
            cache = keras.tree.pack_sequence_as(self.structure, list(cache))
            logits, cache = self.step(not_negative(tokens), position[0], cache)
            return {"logits": logits[:, -1], **_named(cache)}


def _named(cache):
    return {f"cache_{number}": x for number, x in enumerate(keras.tree.flatten(cache))}


def not_negative(ids):
    """Ids with negative ones replaced by a number that is too high: the runtime checks only that end of a table."""
    return ops.where(ids < 0, 2**31 - 1, ids)


class _EightBitTables:
    """Embedding tables as int8 rows, with the rounding that the converter uses for the logits.

    The converter quantizes the tables of products, but not those of look-ups.
    """

    def __init__(self):
        self.tables = {}

    def add(self, variable, table):
        """Returns the table (n, dim) after rounding."""
        scales = np.maximum(np.abs(table).max(axis=1, keepdims=True), 1e-20) / 127
        rows = np.round(table / scales).astype("int8")
        # scales are stored as integers, or the converter would round them to eight bits, too
        self.tables[id(variable)] = tf.constant(rows), tf.constant(scales.view("int32"))
        return rows * scales

    def rows(self, table, ids):
        if id(table) not in self.tables:
            return LITERT.embed(table, ids)
        rows, scales = self.tables[id(table)]
        return tf.cast(tf.gather(rows, ids), "float32") * tf.bitcast(tf.gather(scales, ids), "float32")


def _without_duplicates(content):
    """The LiteRT file with each buffer, and the scales of each, stored once: the converter writes them for each use."""
    from tensorflow.lite.python import schema_py_generated as schema
    from tensorflow.lite.tools import flatbuffer_utils

    model = schema.ModelT.InitFromObj(schema.Model.GetRootAs(content, 0))
    first, scales = {}, {}
    places = [
        first.setdefault(bytes(buffer.data), number) if buffer.data is not None else number
        for number, buffer in enumerate(model.buffers)
    ]
    for graph in model.subgraphs:
        for tensor in graph.tensors:
            tensor.buffer = places[tensor.buffer]
            if tensor.quantization is not None:
                fields = repr([np.asarray(value).tolist() for value in vars(tensor.quantization).values()])
                tensor.quantization = scales.setdefault(fields, _Once(tensor.quantization))
    for number, place in enumerate(places):
        if place != number:
            model.buffers[number].data = None
    return bytes(flatbuffer_utils.convert_object_to_bytearray(model))


class _Once:
    """A table of a LiteRT file that is written once, however many others refer to it."""

    def __init__(self, table):
        self.table, self.place = table, None

    def Pack(self, builder):  # as the classes of the schema call it
        self.place = self.table.Pack(builder) if self.place is None else self.place
        return self.place
