"""ONNX: encoder and decoder step by Keras' exporter."""

import warnings

import keras
import numpy as np

from keras_tfm import kernels
from keras_tfm.arguments import positive
from keras_tfm.export.common import compare, longest_of, save_settings, save_tokenizers, tensorflow
from keras_tfm.exported import NewFolder, ONNXTranslator
from keras_tfm.text import END


def onnx(translator, folder, max_length=None, compare_on=None):
    """Writes encoder and decoder step of a translator as ONNX files, by Keras' exporter, with its tokenizers beside.

    `keras_tfm.exported.ONNXTranslator` searches with them; ids end with the end token:
        encoder.onnx: ids (batch, length) → cache_00, cache_01, … of a decoder that has yet to see a token.
        step.onnx: tokens (batch, 1), position (1,), cache_00, … → logits (batch, vocabulary), next_cache_00, …

    Args:
        translator: a `Translator`.
        folder, max_length, compare_on: as of `saved_model`, which says what is returned, too.
    """
    tensorflow()
    _packages()
    place, max_length = NewFolder(folder), min(positive("max_length", max_length or 128), translator.max_length)
    longest = longest_of(translator, max_length)
    if translator.options.get("coverage_penalty"):
        raise ValueError(f"`coverage_penalty` must be 0. Received: {translator.options['coverage_penalty']}")
    start, step = translator.steps()
    # what changes with batch and source length is left open
    structure, other = (start(np.full((n, n), END, "int32"), longest) for n in (1, 2))
    names = [f"cache_{number:02}" for number in range(len(keras.tree.flatten(structure)))]

    def encode(inputs):
        return dict(zip(names, keras.tree.flatten(start(inputs["ids"], longest)), strict=True))

    def decode_step(inputs):
        cache = keras.tree.pack_sequence_as(structure, [inputs[name] for name in names])
        logits, cache = step(inputs["tokens"], inputs["position"][0], cache)
        next_names = (f"next_{name}" for name in names)
        return {"logits": logits[:, -1], **dict(zip(next_names, keras.tree.flatten(cache), strict=True))}

    inputs = {"tokens": ((None, 1), "int32"), "position": ((1,), "int32")}
    for name, x, y in zip(names, keras.tree.flatten(structure), keras.tree.flatten(other), strict=True):
        shape = tuple(size if size == same else None for size, same in zip(x.shape, y.shape, strict=True))
        inputs[name] = shape, x.dtype.name
    with place as new:
        with kernels.using(kernels.Kernels(slice_update=_select_update)):
            _Function(encode, translator.models).write(new / "encoder.onnx", {"ids": ((None, None), "int32")})
            _Function(decode_step, translator.models).write(new / "step.onnx", inputs)
        save_tokenizers(translator, new)
        save_settings(translator, new, format="onnx", max_length=max_length, longest=longest, precision="float32")
        return None if compare_on is None else compare(new, ONNXTranslator(new), translator, compare_on)


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


def _packages():
    try:
        import onnxruntime  # noqa: F401
        import tf2onnx  # noqa: F401, by which Keras converts
    except ImportError as error:
        raise ImportError("This export needs ONNX's packages: pip install 'keras_tfm[onnx]'") from error
