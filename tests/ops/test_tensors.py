import numpy as np
import pytest
from conftest import BACKEND

from keras_tfm import ops
from keras_tfm.runtimes import programs


def test_a_value_is_known_unless_it_is_traced():
    assert ops.known_value(3) == ops.known_value(ops.convert_to_tensor(3)) == 3
    actual = []
    if BACKEND != "torch":  # which traces nothing
        programs.compiled(lambda x, size: actual.append(ops.known_value(x)) or x, [])(ops.convert_to_tensor(3), 0)
        assert actual == [None]


@pytest.mark.parametrize("shape", [(6, 4), (2, 3, 4), (2, 12)])
def test_reshape_is_that_of_keras(shape):
    x = np.arange(24, dtype="float32").reshape(2, 3, 4)
    assert (ops.convert_to_numpy(ops.reshape(ops.convert_to_tensor(x), shape)) == x.reshape(shape)).all()
