import keras
import numpy as np
import pytest
from conftest import BACKEND, array, normal

from keras_tfm.runtimes import machine


def test_the_settings_can_be_used_by_keras():
    here = machine.current()
    assert here.accelerated in (False, True) and here.shapes > 0 and here.jit_compile in (False, True, "auto")


@pytest.mark.skipif(BACKEND != "torch", reason="other backends keep the seeds of dropout in its layers")
def test_dropout_repeats_from_a_random_state():
    dropout, state = keras.layers.Dropout(0.5), machine.random_state()
    first, second = (array(dropout(normal(4, 8), training=True)) for _ in range(2))
    machine.random_state(state)
    np.testing.assert_array_equal(array(dropout(normal(4, 8), training=True)), first)
    assert (first != second).any()
