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
from keras import ops

from keras_tfm import kernels
from keras_tfm.export.common import graph_of, tensorflow
from keras_tfm.text import END

# Precision → types of the weights for the converter; no types: int8 weights, and activations quantized at run time.
PRECISIONS = {"float32": None, "float16": ["float16"], "int8": []}
MOST_SOUGHT = 16  # up to this many, finding columns to drop takes less time than masking them


def write(translator, folder, settings):
    """Writes a LiteRT file; see `keras_tfm.export.export`."""
    graphs = Graphs(translator, settings)
    ids = ([1, None], "int32", "ids")
    signatures = {"translate": graph_of(graphs.translate, ids), "encode": graph_of(graphs.encode, ids)}
    outputs = signatures["encode"].get_concrete_function().structured_outputs
    caches = [(x.shape, x.dtype, name) for name, x in sorted(outputs.items(), key=lambda item: int(item[0][6:]))]
    step_inputs = ([1, 1], "int32", "tokens"), ([1], "int32", "position"), *caches
    signatures["decode_step"] = graph_of(graphs.decode_step, *step_inputs)
    (folder / "model.tflite").write_bytes(converted(signatures, settings["precision"]))


def converted(signatures, precision):
    """The content of a LiteRT file with these signatures, {name: graph}."""
    tf = tensorflow()
    with tempfile.TemporaryDirectory() as saved:
        tf.saved_model.save(tf.Module(), saved, signatures=signatures)
        converter = tf.lite.TFLiteConverter.from_saved_model(saved, signature_keys=list(signatures))
        if (types := PRECISIONS[precision]) is not None:
            converter.optimizations = [tf.lite.Optimize.DEFAULT]
            converter.target_spec.supported_types = [getattr(tf, word) for word in types]
        return _shared_buffers(converter.convert())


class Graphs:
    """The functions behind the signatures. Weights are constants: Keras variables would be left out of the file."""

    def __init__(self, translator, settings):
        tf, self.translator, self.settings = tensorflow(), translator, settings
        self.start, self.step = translator.steps(padded=False)
        self.constants, tables = [], _EightBitTables()
        for model in translator.models:
            embeddings = {id(layer.embeddings) for layer in model.layers if hasattr(layer, "embeddings")}
            for variable in model.variables:
                value = variable.numpy()
                if settings["precision"] == "int8" and id(variable) in embeddings:
                    value = tables.add(variable, value)
                self.constants.append((variable, tf.constant(value)))
        self.kernels = LITERT._replace(rows=tables.rows)
        with self.tracing():
            self.structure = self.start(tf.constant([[END]]), settings["longest"])

    @contextlib.contextmanager
    def tracing(self):
        with keras.StatelessScope(state_mapping=self.constants), kernels.using(self.kernels):
            yield

    def translate(self, ids):
        n, max_length = None if self.translator.beams == 1 else 1, self.settings["max_length"]
        with self.tracing():
            return {"ids": self.translator.search(not_negative(ids), max_length, n, padded=False)[0][:, 0]}

    def encode(self, ids):
        with self.tracing():
            return _named(self.start(not_negative(ids), self.settings["longest"]))

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
        tf = tensorflow()
        scales = np.maximum(np.abs(table).max(axis=1, keepdims=True), 1e-20) / 127
        rows = np.round(table / scales).astype("int8")
        # scales are stored as integers, or the converter would round them to eight bits, too
        self.tables[id(variable)] = tf.constant(rows), tf.constant(scales.view("int32"))
        return rows * scales

    def rows(self, table, ids):
        if id(table) not in self.tables:
            return LITERT.rows(table, ids)
        tf, (rows, scales) = tensorflow(), self.tables[id(table)]
        return tf.cast(tf.gather(rows, ids), "float32") * tf.bitcast(tf.gather(scales, ids), "float32")


def _shared_buffers(content):
    """The LiteRT file with each buffer stored once: the converter writes the embeddings for each use."""
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


# ── kernels: the same results, by operators that the runtime executes quickly ──


def _dense(x, *layers):
    return kernels.joined_dense(_product, x, layers)


def _product(x, kernel):
    return ops.einsum("btc,cd->btd", x, kernel)  # one operator, also if the length is unknown


def _logits(x, table):
    # Without the `maximum`, a no-op, the converter would fold the scale of a norm into a second copy of the table. The
    # rows have two axes, or the runtime would copy the logits to reshape them.
    rows = ops.maximum(ops.reshape(x, (-1, x.shape[-1])), -3e38)
    return ops.reshape(ops.matmul(rows, ops.transpose(table)), (*ops.shape(x)[:-1], table.shape[0]))


def _attention(q, k, v, key_mask, causal):
    return None  # Keras' fused attention transposes more


def _norm(layer, x):
    """Keras' layer norm with fewer operators."""
    x = ops.cast(x, "float32")
    x = x - ops.mean(x, axis=-1, keepdims=True)
    scale = ops.rsqrt(ops.mean(ops.square(x), axis=-1, keepdims=True) + layer.epsilon)
    return ops.cast(x * scale * layer.gamma + layer.beta, layer.compute_dtype)


def _top_k(x, k, without=()):
    """`kernels.chunked_top_k`; for a beam, those of `without` are found too, and then dropped: fewer passes over x."""
    tf, sought = tensorflow(), k + len(without)
    if k == 1 or sought > min(MOST_SOUGHT, x.shape[1]):
        return _contiguous_top_k(kernels.masked_columns(x, without), k)
    values, ids = _contiguous_top_k(x, sought)
    dropped = tf.reduce_any(ids[..., None] == np.array(without, "int32"), axis=-1)
    values, places = tf.math.top_k(tf.where(dropped, kernels.NEVER, values), k)
    return values, tf.gather(ids, places, batch_dims=1)


def _contiguous_top_k(x, k):
    """With chunks of contiguous columns: the runtime gathers rows quickly, single values slowly."""
    tf, (rows, size) = tensorflow(), x.shape
    count, width = kernels.chunk_sizes(size)
    if count <= k:
        return tf.math.top_k(x, k)
    chunks = tf.reshape(kernels.padded_to(x, count * width), (rows, count, width))
    best = tf.math.top_k(tf.reduce_max(chunks, axis=-1), k).indices
    values, places = tf.math.top_k(tf.reshape(tf.gather(chunks, best, batch_dims=1), (rows, k * width)), k)
    return values, tf.gather(best, places // width, batch_dims=1) * width + places % width


def _log_normaliser(logits, values, ids):
    # The runtime's softmax passes over the vocabulary fewer times than `logsumexp` does.
    tf = tensorflow()
    shares = tf.gather(tf.nn.softmax(logits), ids[:, :1], batch_dims=1)
    return values[:, :1] - tf.math.log(tf.maximum(shares, 1e-37))


def _rows(table, ids):
    return _take(table, ids, axis=0)


def _take(x, places, axis):
    return tensorflow().gather(x, places, axis=axis)  # without Keras' handling of negative places


def _recurrent(layer, x, states):
    """A loop over a buffer; with Keras' own, over a list of tensors, the runtime's answers vary from load to load."""
    length, kernel = ops.shape(x)[1], kernels.current()

    def step(place, states, outputs):
        y, states = layer.cell(kernel.take(x, place, axis=1), states)
        return place + 1, states, kernel.slice_update(outputs, (0, place, 0), y[:, None])

    before = ops.convert_to_tensor(0), states, ops.zeros((ops.shape(x)[0], length, layer.units))
    _, states, outputs = ops.while_loop(lambda place, *_: place < length, step, before)
    return outputs, states


LITERT = kernels.Kernels(
    _dense, _logits, _attention, _norm, _top_k, _log_normaliser, _rows, _take, recurrent=_recurrent
)
