import numpy as np
import pytest
from conftest import IN_TENSORFLOW, SIZES, array, assert_close, normal, spread
from keras import ops

from keras_tfm import decoding, kernels
from keras_tfm.export.lean import LITERT
from keras_tfm.models import transformer


@IN_TENSORFLOW
@pytest.mark.parametrize("options", [{}, {"norm_first": True, "num_kv_heads": 1}, {"heads": "narrow"}], ids=str)
def test_a_model_computes_the_same(options):
    model = spread(transformer(50, **SIZES, **options), 0.2)
    inputs = {name: np.random.default_rng(0).integers(3, 50, (1, 9)) for name in ("source", "target")}
    expected = array(model(inputs))
    with kernels.using(LITERT):
        assert_close(model(inputs), expected)


@IN_TENSORFLOW
@pytest.mark.parametrize("size", [9, 64, 997, 1003])  # few, in chunks, and some that chunks do not divide
@pytest.mark.parametrize("options", [{}, {"forbidden": (3, 5)}, {"min_length": 3}], ids=str)
def test_the_most_probable_tokens_are_those_of_every_search(options, size):
    logits, constrain = 3 * normal(6, size), decoding.Constraints(8, **options)
    logits[1:, [0, 1, 3, 5]] += 3 * np.arange(5)[:, None]  # what is forbidden is among the highest
    logits = ops.convert_to_tensor(logits)
    expected = constrain.most_probable(logits, 4, 1, None)
    with kernels.using(LITERT):
        found = constrain.most_probable(logits, 4, 1, None)
    assert_close(found[0], expected[0])
    assert array(found[1]).tolist() == array(expected[1]).tolist()
