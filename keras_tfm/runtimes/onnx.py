"""ONNX, by operators that every runtime has and tf2onnx writes correctly."""

import functools

from keras import ops

from keras_tfm.ops.runtime import INFERENCE, affine, joined_dense


def _slice_update(x, starts, updates):
    """`ops.slice_update` at one place along one axis."""
    (axis,) = (axis for axis, start in enumerate(starts) if not isinstance(start, int))
    places = ops.reshape(ops.arange(ops.shape(x)[axis]), [-1 if n == axis else 1 for n in range(len(starts))])
    return ops.where(places == starts[axis], updates, x)


# without flattened rows: tf2onnx would join their reshape wrongly with a later one of one head
_dense = functools.partial(joined_dense, affine=functools.partial(affine, matmul=ops.matmul))
ONNX = INFERENCE._replace(slice_update=_slice_update, dense=_dense)
