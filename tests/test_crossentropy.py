import numpy as np
from conftest import TOLERANCE, array, assert_close, gradients, normal, parametrize_all
from keras import ops

from keras_tfm.backend.crossentropy import smoothed_crossentropy

LABELS = np.array([[1, 4, 0], [6, 2, 2]])
DTYPES = {"float32": "float32", "bfloat16": "mixed_bfloat16"}


def with_smoothed_targets(labels, logits, smoothing):
    targets = np.eye(7, dtype="float32")[labels] * (1 - smoothing) + smoothing / 7
    return -ops.sum(targets * ops.log_softmax(ops.cast(logits, "float32")), axis=-1)


@parametrize_all("smoothing, dtype", [0.0, 0.1], list(DTYPES))
def test_losses_and_gradients_are_those_of_the_formula(smoothing, dtype):
    logits, upstream, tolerance = 3 * normal(2, 3, 7), normal(2, 3, seed=1), TOLERANCE[DTYPES[dtype]]

    def of(losses):
        return lambda x: losses(LABELS, ops.cast(x, dtype), smoothing) * upstream

    found, expected = of(smoothed_crossentropy), of(with_smoothed_targets)
    assert_close(found(logits), expected(logits), tolerance)
    assert_close(*gradients(found, logits), *gradients(expected, logits), tolerance)


def test_large_logits_are_finite():
    logits = np.array([[[1e4, -1e4, 0.0]]], "float32")

    def losses(logits):
        return smoothed_crossentropy(np.array([[1]]), logits, 0.1)

    for found in (losses(logits), *gradients(losses, logits)):
        assert np.isfinite(array(found)).all()
