import keras
import pytest
from conftest import PRECISIONS, TOLERANCE, assert_close, gradients, normal, spread
from keras import ops

from keras_tfm.backend.norm import layer_norm

X = 3 * normal(2, 5, 8) + 1


def make(**options):
    layer = keras.layers.LayerNormalization(**options)
    layer.build(X.shape)
    return spread(layer)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("options", [{}, {"epsilon": 0.1}, {"axis": [-1]}, {"axis": 1}, {"center": False}])
def test_values_and_gradients_are_those_of_keras(options, precision):
    layer, upstream = make(dtype=precision, **options), normal(*X.shape, seed=1)
    weights = [ops.convert_to_numpy(weight) for weight in layer.trainable_weights]

    def of(norm):
        def function(x, *values):
            with keras.StatelessScope(state_mapping=list(zip(layer.trainable_weights, values, strict=True))):
                return ops.cast(norm(layer, ops.cast(x, layer.compute_dtype)), "float32") * upstream

        return function

    ours, theirs = of(layer_norm), of(keras.layers.LayerNormalization.call)
    assert_close(ours(X, *weights), theirs(X, *weights), TOLERANCE[precision])
    for found, expected in zip(gradients(ours, X, *weights), gradients(theirs, X, *weights), strict=True):
        assert_close(found, expected, 10 * TOLERANCE[precision])
