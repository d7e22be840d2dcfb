import keras
import numpy as np
import pytest
from conftest import IN_TENSORFLOW, array, assert_close, gradients
from keras import ops

from keras_tfm.backend.dropout import Dropout

SHAPE = 300, 201


def dropped(rate=0.1, seed=0, shape=SHAPE):
    return array(Dropout(rate, seed=seed)(ops.ones(shape), training=True))


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_a_share_is_dropped_and_the_mean_is_kept(rate):
    found = dropped(rate)
    deviation = np.sqrt(rate * (1 - rate) / found.size)
    assert abs((found == 0).mean() - rate) < 5 * deviation
    assert_close(found[found > 0], np.full((found > 0).sum(), 1 / (1 - rate)), 1e-3)  # the rate is rounded


def test_values_are_dropped_independently():
    kept = dropped(0.5) > 0
    for near in (kept[:, 1:] == kept[:, :-1], kept[1:] == kept[:-1], kept[1:, 1:] == kept[:-1, :-1]):
        assert abs(near.mean() - 0.5) < 5 * 0.5 / np.sqrt(near.size)
    for means in (kept.mean(axis=0), kept.mean(axis=1)):  # no column or row is special
        assert abs(means - 0.5).max() < 5 * 0.5 / np.sqrt(200)


def test_calls_differ_and_a_seed_repeats_them():
    layer, again, x = Dropout(0.5, seed=1), Dropout(0.5, seed=1), ops.ones(SHAPE)
    first, second = (array(layer(x, training=True)) for _ in range(2))
    assert (first != second).mean() > 0.4 and (first != dropped(0.5, seed=2)).mean() > 0.4
    assert_close(array(again(x, training=True)), first, 0)


def test_only_training_drops():
    layer = Dropout(0.5)
    assert_close(layer(ops.ones(SHAPE)), np.ones(SHAPE), 0)
    assert_close(Dropout(0.0)(ops.ones(SHAPE), training=True), np.ones(SHAPE), 0)
    assert not array(Dropout(1.0)(ops.ones(SHAPE), training=True)).any()


def test_the_gradient_is_that_of_the_kept_values():
    layer = Dropout(0.5, seed=3)

    def function(x):
        with keras.StatelessScope():  # so that all calls drop the same values
            return layer(x, training=True)

    assert_close(*gradients(function, np.ones(SHAPE, "float32")), array(function(ops.ones(SHAPE))), 0)


def test_the_type_of_the_input_stays():
    x = ops.ones((4, 4), dtype="bfloat16")
    assert keras.backend.standardize_dtype(Dropout(0.1, dtype="bfloat16")(x, training=True).dtype) == "bfloat16"


@IN_TENSORFLOW
@pytest.mark.parametrize("shape", [(None, None, 3), (None, None, None)])
def test_shapes_may_be_unknown(shape):
    import tensorflow as tf

    layer = Dropout(0.5, seed=0)
    program = tf.function(lambda x: layer(x, training=True), input_signature=[tf.TensorSpec(shape)])
    assert 0.4 < (program(tf.ones((50, 40, 3))).numpy() == 0).mean() < 0.6
