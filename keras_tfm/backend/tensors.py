"""Small helpers for tensors whose shape or value may not be known yet."""

import keras
import numpy as np
from keras import ops

from keras_tfm.backend.private import set_keras_mask


def without_mask(x):
    """`x`, after removing its Keras mask."""
    set_keras_mask(x, None)
    return x


def reshape(x, shape):
    """`ops.reshape`, but a graph need not compute the one size that it does not know."""
    known = [size for size in shape if isinstance(size, int)]
    if len(known) == len(shape) - 1 and all(known):
        shape = [size if isinstance(size, int) else -1 for size in shape]
    return ops.reshape(x, shape)


def whole(name, value):
    """`value` as an int or an int32 tensor; other types raise an error."""
    if isinstance(value, int):
        return value
    value = ops.convert_to_tensor(value)
    if "int" not in keras.backend.standardize_dtype(value.dtype):
        raise ValueError(f"`{name}` must be an integer. Received: {name} of dtype {value.dtype}")
    return ops.cast(value, "int32")


def known(value):
    """`value` as an int, or None if it is only known when a graph runs."""
    try:
        return int(value)
    except (TypeError, NotImplementedError):  # raised by JAX and TensorFlow for symbolic tensors
        return None


def to_numpy(variables):
    """NumPy arrays of a list of variables. On JAX, all are on their way from the device at the same time."""
    if keras.backend.backend() != "jax":
        return [ops.convert_to_numpy(variable) for variable in variables]
    for variable in variables:
        for shard in variable.value.addressable_shards:
            shard.data.copy_to_host_async()
    return [_whole_array(variable.value) for variable in variables]


def _whole_array(value):
    """The array of a JAX value, of which other processes may hold copies, but no part that this one does not have."""
    if value.is_fully_addressable or value.is_fully_replicated:
        return ops.convert_to_numpy(value)
    parts = [(shard.index, ops.convert_to_numpy(shard.data)) for shard in value.addressable_shards]
    array = np.empty(value.shape, parts[0][1].dtype)
    for index, part in parts:
        array[index] = part
    return array
