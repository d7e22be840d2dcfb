"""ONNX: encoder and decoder step as two files, written by Keras' exporter.

`keras_tfm.export.runners.ONNXTranslator` runs the search around them. Source ids end with the end token:
    encoder.onnx: ids (batch, length) → cache_00, cache_01, …, the cache of a decoder that has not seen a token yet.
    step.onnx: tokens (batch, 1), position (1,), cache_00, … → logits (batch, vocabulary), next_cache_00, …
"""

import functools
import warnings

import keras
import numpy as np
import tensorflow as tf

from keras_tfm import artifacts, ops
from keras_tfm.common import extras
from keras_tfm.common.arguments import check
from keras_tfm.runtimes.onnx import ONNX
from keras_tfm.text import END


def write(translator, folder, settings):
    """Writes the two files; see `keras_tfm.export.export`."""
    extras.require("onnxruntime", "tf2onnx")
    check("coverage_penalty", settings["coverage_penalty"], not settings["coverage_penalty"], "0 for ONNX")
    encoder, longest = _Encoder(translator, settings["longest"]), settings["longest"]
    # Sizes that change with batch size and source length are left open.
    caches = [encoder.prefill(np.full((n, n), END, "int32"), longest) for n in (1, 2)]
    inputs = {"tokens": ((None, 1), "int32"), "position": ((1,), "int32")}
    for number, (x, y) in enumerate(zip(*map(keras.tree.flatten, caches), strict=True)):
        shape = tuple(size if size == same else None for size, same in zip(x.shape, y.shape, strict=True))
        inputs[f"cache_{number:02}"] = shape, x.dtype.name
    with ops.using(ONNX):
        encoder.write(folder / artifacts.ENCODER, {"ids": ((None, None), "int32")})
        _Step(translator, longest, caches[0]).write(folder / artifacts.FORMATS["onnx"].main, inputs)


class _Encoder(keras.Model):
    """`prefill` of a translator as a model, which is what Keras exports."""

    def __init__(self, translator, longest, structure=None):
        super().__init__(name="function")
        self.models, self.longest, self.built = translator.models, longest, True
        self.packed = functools.partial(keras.tree.pack_sequence_as, structure)  # Keras would wrap a dict
        self.prefill, self.step = translator.steps()

    def call(self, inputs):
        return _named("cache", self.prefill(inputs["ids"], self.longest))

    def write(self, path, inputs):
        signature = {name: tf.TensorSpec(shape, dtype, name) for name, (shape, dtype) in inputs.items()}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # NumPy's, because Keras uses `np.object`
            self.export(str(path), format="onnx", input_signature=[signature], verbose=False)


class _Step(_Encoder):
    """`step` of a translator as a model."""

    def call(self, inputs):
        names = sorted(name for name in inputs if name.startswith("cache"))
        cache = [inputs[name] for name in names]
        logits, cache = self.step(inputs["tokens"], inputs["position"][0], self.packed(cache))
        return {"logits": logits[:, -1], **_named("next_cache", cache)}


def _named(prefix, cache):
    return {f"{prefix}_{number:02}": x for number, x in enumerate(keras.tree.flatten(cache))}
