import keras
import numpy as np
import pytest
from conftest import array

from keras_tfm.layers import FeedForward, MultiHeadAttention
from keras_tfm.layers.base import as_matrices, fresh


@pytest.mark.parametrize(
    "options",
    [
        {"kernel_initializer": keras.initializers.TruncatedNormal(stddev=0.1)},
        {"bias_initializer": keras.initializers.Constant(2)},
        {"dtype": keras.DTypePolicy("mixed_bfloat16")},
    ],
    ids=lambda options: next(iter(options)),
)
@pytest.mark.parametrize("kind", [FeedForward, MultiHeadAttention])
def test_arguments_that_are_objects_are_saved(kind, options):
    config = kind(2, **options).get_config()
    assert kind.from_config(config).get_config() == config


def test_kernels_are_drawn_as_matrices():
    kernel = array(as_matrices(keras.initializers.Identity(), 2, 6, matrices=3)((3, 2, 6)))
    np.testing.assert_array_equal(kernel, np.stack([np.eye(2, 6)] * 3))


def test_each_kernel_is_drawn_again_unless_it_has_a_seed():
    def equal(initializer):
        first, second = (array(fresh(initializer)((4, 4))) for _ in range(2))
        return (first == second).all()

    assert not equal(keras.initializers.HeNormal()) and equal(keras.initializers.HeNormal(seed=1))
    assert equal(lambda shape, dtype=None: keras.ops.ones(shape, dtype))
