import numpy as np
import pytest
from conftest import assert_close, gradients, normal

from keras_tfm.backend.products import product, product_with_rows

X, KERNEL, UPSTREAM = normal(5, 4), normal(4, 3, seed=1), normal(5, 3, seed=2)


@pytest.mark.parametrize("of_rows", [False, True])
def test_values_and_gradients_are_those_of_the_formula(of_rows):
    multiply, factor = (product_with_rows, KERNEL.T) if of_rows else (product, KERNEL)
    assert_close(multiply(X, factor), X @ KERNEL)
    to_x, to_factor = gradients(lambda x, factor: multiply(x, factor) * UPSTREAM, X, np.ascontiguousarray(factor))
    assert_close(to_x, UPSTREAM @ KERNEL.T)
    assert_close(to_factor, UPSTREAM.T @ X if of_rows else X.T @ UPSTREAM)
