import itertools
from typing import NamedTuple

import keras
import numpy as np
import pytest
from conftest import BACKEND, IN_TENSORFLOW, array, assert_close, gradients, quick

from keras_tfm import ops
from keras_tfm.layers.dropout import Dropout

SHAPE = 300, 201
DRAWN = pytest.mark.skipif(BACKEND == "torch", reason="PyTorch drops by Keras' own layer")


class Fixed(NamedTuple):
    """A `SeedGenerator` that always gives the same state."""

    state: object

    def next(self):
        return self.state


def dropped(rate=0.1, seed=0, shape=SHAPE):
    return array(Dropout(rate, seed=seed)(ops.ones(shape), training=True))


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_a_share_is_dropped_and_the_mean_is_kept(rate):
    actual = dropped(rate)
    deviation = np.sqrt(rate * (1 - rate) / actual.size)
    assert abs((actual == 0).mean() - rate) < 5 * deviation
    assert_close(actual[actual > 0], np.full((actual > 0).sum(), 1 / (1 - rate)), 1e-3)  # the rate is rounded


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


@DRAWN
def test_draws_with_nearby_seeds_have_nothing_in_common():
    """Layers whose seeds are close, and consecutive steps, get other numbers, not the same ones in another order."""
    seeds = [12_345 + n for n in range(8)] + [12_345 ^ 1 << bit for bit in range(4, 31)]
    pairs = [(seed, 3) for seed in seeds] + [(12_345, n) for n in (0, 1, 2, *(1 << bit for bit in range(2, 31)))]
    draw = quick(lambda seed: ops.random_bits((64, 64), Fixed(seed)))
    numbers = np.stack([array(draw(ops.convert_to_tensor(pair, "uint32"))).reshape(-1) for pair in pairs])
    assert len({row.tobytes() for row in np.sort(numbers)}) == len(pairs)
    for rate in (0.1, 0.5):
        kept = ((numbers >= rate * 65536) - (1 - rate)) / np.sqrt(rate * (1 - rate))
        correlations = kept @ kept.T / kept.shape[1]
        assert abs(correlations[np.triu_indices(len(pairs), 1)]).max() < 5.5 / np.sqrt(kept.shape[1])


@pytest.mark.skipif(BACKEND != "jax", reason="the numbers of the other backends are those of their generators")
def test_keys_are_as_many_as_seeds():
    from keras_tfm.ops.jax import mixed_keys

    seeds = np.array([*itertools.product([0, 1, 2, 77, 2**31, 2**32 - 1], range(200))], "uint32")
    assert len({*zip(*(np.asarray(key).tolist() for key in mixed_keys(*seeds.T)), strict=True)}) == len(seeds)


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
