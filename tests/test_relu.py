import numpy as np
from conftest import assert_close, gradients

from keras_tfm.backend.relu import relu

X = np.array([[-2.0, -0.0, 0.0, 3.0]], "float32")


def test_values_and_gradient_are_those_of_the_rectifier():
    assert_close(relu(X), np.maximum(X, 0), 0)
    assert_close(*gradients(lambda x: relu(x) * np.array([[1.0, 2.0, 3.0, 4.0]], "float32"), X), [[0, 0, 0, 4]], 0)
