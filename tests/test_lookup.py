import numpy as np
import pytest
from conftest import assert_close, gradients, normal
from keras import ops

from keras_tfm.backend.lookup import rows_of

TABLE = normal(6, 4)


@pytest.mark.parametrize("ids", [[[0, 0, 5], [3, 0, 5]], [2], [[[1]]]])
def test_rows_and_gradient_are_those_of_take(ids):
    ids = np.array(ids)
    upstream = normal(*ids.shape, 4, seed=1)
    assert_close(rows_of(TABLE, ids), TABLE[ids], 0)
    expected = np.zeros_like(TABLE)
    np.add.at(expected, ids, upstream)
    assert_close(*gradients(lambda table: rows_of(table, ids) * upstream, TABLE), expected)


def test_a_gradient_adds_up_in_float32():
    ids = np.zeros(1000, int)
    (found,) = gradients(lambda table: ops.cast(rows_of(ops.cast(table, "bfloat16"), ids), "float32"), TABLE)
    assert_close(found[0], np.full(4, 1000.0), 4)
