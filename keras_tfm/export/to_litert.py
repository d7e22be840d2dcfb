"""LiteRT files: ids → ids by builtin operators."""

import contextlib
import functools
import json
import tempfile

import keras
import numpy as np

from keras_tfm import backend, decoding
from keras_tfm.arguments import one_of, positive
from keras_tfm.export.common import NewFolder, compare, graph_of, replaced, save_tokenizers, tensorflow
from keras_tfm.layers import MultiHeadSelfAttention, masks
from keras_tfm.litert import LiteRTTranslator
from keras_tfm.models.transformer import TokenEmbedding
from keras_tfm.text import END

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
    tf, place = tensorflow(), NewFolder(folder)
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

    def frozen(function, check_room=False):
        """`function` with the weights as constants: variables of Keras would be left out of the file."""

        def run(*arguments):
            with keras.StatelessScope(state_mapping=constants), contextlib.ExitStack() as stack:
                for layer, lookup in lookups.items():
                    stack.enter_context(replaced(layer, "lookup", lookup))
                stack.enter_context(lean(check_room))
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
    signatures = {"translate": graph_of(frozen(translate), ids), "encode": graph_of(frozen(encode), ids)}
    structure = frozen(start)(tf.constant([[END]]), longest)
    outputs = signatures["encode"].get_concrete_function().structured_outputs
    caches = [(x.shape, x.dtype, name) for name, x in sorted(outputs.items(), key=lambda item: int(item[0][6:]))]
    step_inputs = ([1, 1], "int32", "tokens"), ([1], "int32", "position"), *caches
    signatures["decode_step"] = graph_of(frozen(decode_step, check_room=True), *step_inputs)

    with place as new, tempfile.TemporaryDirectory() as graphs:
        tf.saved_model.save(tf.Module(), graphs, signatures=signatures)
        converter = tf.lite.TFLiteConverter.from_saved_model(graphs, signature_keys=list(signatures))
        converter.optimizations = [getattr(tf.lite.Optimize, word) for word in options.get("optimizations", [])]
        converter.target_spec.supported_types = [getattr(tf, word) for word in options.get("types", [])]
        (new / "model.tflite").write_bytes(_shared_buffers(converter.convert()))
        save_tokenizers(translator, new)
        settings = {"max_length": max_length, "precision": precision, "beams": translator.beams}
        (new / "translator.json").write_text(json.dumps(settings, indent=1) + "\n")
        if compare_on is None:
            return None
        run = LiteRTTranslator(new)
        return compare(new, lambda string: run([string])[0], translator, compare_on)


@contextlib.contextmanager
def lean(check_room=False):
    """Leaves out of a graph what one sentence at a time does not need: padding, and a check that a search passes.

    For a while, all of the process has these other functions: no other thread may use the layers meanwhile.
    """
    causal, found = masks.causal, {}

    def one_for_all(query_len, key_len, start=0):  # layers, whose calls have one query, and caches of the same room
        if id(start) not in found:
            found[id(start)] = start, causal(query_len, key_len, start)
        return found[id(start)][1]

    others = [
        (TokenEmbedding, "compute_mask", lambda *_: None),
        (masks, "causal", one_for_all),
        (backend, "fused_attention", lambda *_: None),  # which moves heads to and fro
        (TokenEmbedding, "logits", _logits),
        (MultiHeadSelfAttention, "projections", _projections),
        (keras.layers.Dense, "call", _dense),
        (keras.layers.LayerNormalization, "call", _normalised),
        (decoding, "highest", _highest),
        (decoding, "most_probable", functools.partial(_most_probable, decoding.most_probable)),
        (keras.ops, "take", tensorflow().gather),  # without a look for negative places
    ]
    if not check_room:
        others.append((MultiHeadSelfAttention, "in_room", lambda self, q, *_: q))
    with contextlib.ExitStack() as stack:
        for other in others:
            stack.enter_context(replaced(*other))
        yield


def _logits(layer, x):
    """Logits by the embeddings; but for the maximum, the file would have a second table, times the scale of a norm."""
    ops = keras.ops
    kernel = ops.transpose(layer.embeddings) if layer.tie_weights else layer.reverse_embeddings
    flat = ops.reshape(x, (-1, x.shape[-1]))  # or the runtime would copy the logits, to reshape them
    return ops.reshape(ops.matmul(ops.maximum(flat, -3e38), kernel), (*ops.shape(x)[:-1], kernel.shape[-1]))


def _projections(layer, x):
    """Queries, keys and values by one product, where they have as many heads and those see all of the input."""
    ops, layers = keras.ops, (layer.query_dense, layer.key_dense, layer.value_dense)
    if layer.heads == "narrow" or layer.num_heads != layer.num_kv_heads:
        return [layer.project(dense, x) for dense in layers]
    kernel = ops.concatenate([ops.reshape(dense.kernel, (x.shape[-1], -1)) for dense in layers], axis=1)
    bias = ops.concatenate([ops.reshape(dense.bias, (-1,)) for dense in layers])
    parts = ops.split(ops.einsum("btc,cd->btd", x, kernel) + bias, 3, axis=-1)
    return [backend.reshape(part, (*ops.shape(x)[:2], layer.num_heads, layer.head_dim)) for part in parts]


def _dense(layer, x, training=None):
    """Keras' dense layer without shapes that are worked out at each run."""
    x = keras.ops.einsum("btc,cd->btd", x, layer.kernel)
    return layer.activation(x if layer.bias is None else x + layer.bias)


def _highest(x, k):
    """`decoding.highest`, by chunks that lie together: the runtime is quick to gather rows, not single values."""
    tf, (rows, size) = tensorflow(), x.shape
    count = decoding.chunks(size)
    if count <= k:
        return tf.math.top_k(x, k)
    width = -(-size // count)
    x = tf.pad(x, [(0, 0), (0, count * width - size)], constant_values=-np.inf) if count * width > size else x
    chunks = tf.reshape(x, (rows, count, width))
    best = tf.math.top_k(tf.reduce_max(chunks, axis=-1), k).indices
    values, places = tf.math.top_k(tf.reshape(tf.gather(chunks, best, batch_dims=1), (rows, k * width)), k)
    return values, tf.gather(best, places // width, batch_dims=1) * width + places % width


def _most_probable(most_probable, logits, k, constrain, position, written):
    """`decoding.most_probable` by fewer passes over the vocabulary: what is forbidden is sought, and then left out."""
    tf, more = tensorflow(), k + len(constrain.forbidden)
    if not constrain.only_forbids or more > min(16, logits.shape[1]):
        return most_probable(logits, k, constrain, position, written)
    values, ids = _highest(logits, more)
    # log Σ exp by the most probable token: the runtime's softmax takes one pass for what are three by `exp`
    normaliser = values[:, :1] - tf.math.log(tf.gather(tf.nn.softmax(logits), ids[:, :1], batch_dims=1))
    forbidden = tf.reduce_any(ids[..., None] == np.array(constrain.forbidden, "int32"), axis=-1)
    values, places = tf.math.top_k(tf.where(forbidden, decoding.NEVER, values), k)
    return tf.maximum(values - normaliser, decoding.NEVER), tf.gather(ids, places, batch_dims=1)


def _normalised(layer, x):
    """Keras' layer norm by fewer operators."""
    ops = keras.ops
    x = ops.cast(x, "float32")
    x = x - ops.mean(x, axis=-1, keepdims=True)
    scale = ops.rsqrt(ops.mean(ops.square(x), axis=-1, keepdims=True) + layer.epsilon)
    return ops.cast(x * scale * layer.gamma + layer.beta, layer.compute_dtype)


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
