import keras
import numpy as np
import pytest
from conftest import BACKEND
from keras import ops

from keras_tfm.backend import compiling, tensors


def test_whole_numbers_stay_and_others_are_refused():
    assert tensors.whole("start", 3) == 3
    assert int(tensors.whole("start", np.int64(3))) == int(tensors.whole("start", ops.convert_to_tensor(3))) == 3
    with pytest.raises(ValueError, match="`start` must be an integer. Received: start of dtype .*float32"):
        tensors.whole("start", np.float32(3))


def test_a_value_is_known_unless_it_is_traced():
    assert tensors.known(3) == tensors.known(ops.convert_to_tensor(3)) == 3
    found = []
    if BACKEND != "torch":  # which traces nothing
        compiling.compiled(lambda x, size: found.append(tensors.known(x)) or x, [])(ops.convert_to_tensor(3), 0)
        assert found == [None]


@pytest.mark.parametrize("shape", [(6, 4), (2, 3, 4), (2, 12)])
def test_reshape_is_that_of_keras(shape):
    x = np.arange(24, dtype="float32").reshape(2, 3, 4)
    assert (ops.convert_to_numpy(tensors.reshape(ops.convert_to_tensor(x), shape)) == x.reshape(shape)).all()


def test_arrays_of_variables_are_their_values():
    values = [np.arange(3, dtype="float32"), np.ones((2, 2), "int32")]
    variables = [keras.Variable(value, dtype=value.dtype.name) for value in values]
    for array, value in zip(tensors.to_numpy(variables), values, strict=True):
        assert array.dtype == value.dtype and (array == value).all()
