"""ONNX: encoder and decoder step as two files, written by Keras' exporter.

`keras_tfm.exported.ONNXTranslator` runs the search around them. Source ids end with the end token:
    encoder.onnx: ids (batch, length) → cache_00, cache_01, …, the cache of a decoder that has not seen a token yet.
    step.onnx: tokens (batch, 1), position (1,), cache_00, … → logits (batch, vocabulary), next_cache_00, …
"""

import functools
import warnings

import keras
import numpy as np
from keras import ops

from keras_tfm import extras, kernels
from keras_tfm.arguments import check
from keras_tfm.export.common import tensorflow
from keras_tfm.text import END


def write(translator, folder, settings):
    """Writes the two files; see `keras_tfm.export.export`."""
    tensorflow()
    extras.require("onnxruntime", "tf2onnx")
    check("coverage_penalty", settings["coverage_penalty"], not settings["coverage_penalty"], "0 for ONNX")
    encoder, longest = _Encoder(translator, settings["longest"]), settings["longest"]
    # Sizes that change with batch size and source length are left open.
    caches = [encoder.start(np.full((n, n), END, "int32"), longest) for n in (1, 2)]
    inputs = {"tokens": ((None, 1), "int32"), "position": ((1,), "int32")}
    for number, (x, y) in enumerate(zip(*map(keras.tree.flatten, caches), strict=True)):
        shape = tuple(size if size == same else None for size, same in zip(x.shape, y.shape, strict=True))
        inputs[f"cache_{number:02}"] = shape, x.dtype.name
    with kernels.using(ONNX):
        encoder.write(folder / "encoder.onnx", {"ids": ((None, None), "int32")})
        _Step(translator, longest, caches[0]).write(folder / "step.onnx", inputs)


class _Encoder(keras.Model):
    """`start` of a translator as a model, which is what Keras exports."""

    def __init__(self, translator, longest, structure=None):
        super().__init__(name="function")
        self.models, self.longest, self.built = translator.models, longest, True
        self.packed = functools.partial(keras.tree.pack_sequence_as, structure)  # Keras would wrap a dict
        self.start, self.step = translator.steps()

    def call(self, inputs):
        return _named("cache", self.start(inputs["ids"], self.longest))

    def write(self, path, inputs):
        import tensorflow as tf

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


def _slice_update(x, starts, updates):
    """`ops.slice_update` at one place along one axis, by operators that every runtime has."""
    (axis,) = (axis for axis, start in enumerate(starts) if not isinstance(start, int))
    places = ops.reshape(ops.arange(ops.shape(x)[axis]), [-1 if n == axis else 1 for n in range(len(starts))])
    return ops.where(places == starts[axis], updates, x)


def _dense(x, *layers):
    """`kernels.dense` without flattened rows: tf2onnx would join their reshape wrongly with a later one of one head."""
    return kernels.joined_dense(ops.matmul, x, layers)


ONNX = kernels.FORWARD._replace(slice_update=_slice_update, dense=_dense)
