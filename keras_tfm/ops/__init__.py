"""`keras.ops`, and what it lacks or does slowly. Use it in its place: `from keras_tfm import ops`.

`ops.dense`, `ops.attention` and the other fields of `runtime.Runtime` are those of the runtime that a program is being
traced for: by default that of Keras' backend (`jax.py`, `tensorflow.py` or `torch.py`, with the definitions in
`plain.py`), in an export one of `keras_tfm.runtimes`.
"""

from keras.ops import *  # noqa: F403

from keras_tfm.ops.runtime import backend, current, projected_attention, take_each, using
from keras_tfm.ops.tensors import (
    additive_mask,
    group_heads,
    known_value,
    masked_softmax,
    static_reshape,
    swap_heads,
    without_mask,
)

crossentropy, random_bits, relu, to_numpy = backend.crossentropy, backend.random_bits, backend.relu, backend.to_numpy
del take, slice_update  # noqa: F821, Keras' own: a runtime may have others


def __getattr__(name):
    return getattr(current(), name)
