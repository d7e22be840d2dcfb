import numpy as np
import pytest

from keras_tfm.data import reverse


def test_reverse_is_reproducible_and_leaves_zero_to_padding():
    sources, targets = reverse(500, length=7, num_symbols=5, seed=3)
    np.testing.assert_array_equal(sources, targets[:, ::-1])
    np.testing.assert_array_equal(sources, reverse(500, length=7, num_symbols=5, seed=3)[0])
    assert (sources != reverse(500, length=7, num_symbols=5, seed=4)[0]).any()
    assert sources.shape == (500, 7) and set(np.unique(sources)) == {1, 2, 3, 4, 5}


@pytest.mark.parametrize("sizes", [(0, 5, 5), (5, 0, 5), (5, 5, -1)])
def test_sizes_must_be_positive(sizes):
    with pytest.raises(ValueError, match="must be positive. Received"):
        reverse(*sizes)
