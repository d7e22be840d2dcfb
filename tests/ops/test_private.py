"""These fail when Keras changes what `keras_tfm.ops.private` imports from it."""

import pathlib
import re

import keras
import numpy as np
from keras import ops

import keras_tfm
from keras_tfm.ops.private import get_keras_mask, set_keras_mask
from keras_tfm.runtimes.feeding import Feed

PACKAGE = pathlib.Path(keras_tfm.__file__).parent


def test_a_mask_can_be_attached_read_and_removed():
    x, mask = ops.ones((2, 3)), ops.ones((2,), dtype="bool")
    assert get_keras_mask(x) is None, "get_keras_mask finds a mask on a new tensor"
    set_keras_mask(x, mask)
    assert get_keras_mask(x) is mask, "get_keras_mask does not return what set_keras_mask attached"
    set_keras_mask(x, None)
    assert get_keras_mask(x) is None, "set_keras_mask(x, None) does not remove the mask"


class TwoLengths(Feed):
    num_batches = 2

    def one_pass(self):
        for length in (3, 5):
            yield np.ones((2, length, 1), "float32"), np.ones((2, 1), "float32")


def test_fit_takes_batches_of_different_lengths_from_a_data_adapter():
    inputs = keras.Input((None, 1))
    model = keras.Model(inputs, keras.layers.Dense(1)(keras.layers.GlobalAveragePooling1D()(inputs)))
    model.compile("sgd", "mse")
    history = model.fit(TwoLengths(), epochs=2, verbose=0)
    assert len(history.history["loss"]) == 2 and np.isfinite(history.history["loss"]).all()
    assert np.isfinite(model.evaluate(TwoLengths(), verbose=0))


def test_only_one_module_imports_private_names():
    users = [
        path.name
        for path in PACKAGE.rglob("*.py")
        if re.search(r"import.*keras\.src|from keras\.src", path.read_text())
    ]
    assert users == ["private.py"]
