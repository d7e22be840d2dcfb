"""ONNX: encoder and decoder step by Keras' exporter, and a search that shows how to use them."""

import json
import pathlib
import warnings

import keras
import numpy as np

from keras_tfm import backend, decoding
from keras_tfm.arguments import positive
from keras_tfm.export.common import NewFolder, compare, replaced, save_tokenizers, tensorflow
from keras_tfm.text import END, PAD, START
from keras_tfm.translator import Translator, longest_translation


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
    tensorflow()
    _packages()
    place, max_length = NewFolder(folder), min(positive("max_length", max_length or 128), translator.max_length)
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
        with replaced(backend, "slice_update", _select_update):
            _Function(encode, translator.models).write(new / "encoder.onnx", {"ids": ((None, None), "int32")})
            _Function(decode_step, translator.models).write(new / "step.onnx", inputs)
        save_tokenizers(translator, new)
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
    runtime, folder = _packages(), pathlib.Path(folder)
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
        while len(written) < min(longest_translation(ids.shape[1]), max_length):
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


def _packages():
    try:
        import onnxruntime
        import tf2onnx  # noqa: F401, by which Keras converts
    except ImportError as error:
        raise ImportError("This export needs ONNX's packages: pip install 'keras_tfm[onnx]'") from error
    return onnxruntime
