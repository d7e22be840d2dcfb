import keras
import numpy as np
import pytest
from conftest import array, assert_close, normal, refused

from keras_tfm.layers import FeedForward, MultiHeadAttention, TransformerDecoderBlock, TransformerEncoderBlock
from keras_tfm.layers.base import as_integer, as_matrices, clone


@pytest.mark.parametrize(
    "options",
    [
        {"kernel_initializer": keras.initializers.TruncatedNormal(stddev=0.1)},
        {"bias_initializer": keras.initializers.Constant(2)},
        {"dtype": keras.DTypePolicy("mixed_bfloat16")},
    ],
    ids=lambda options: next(iter(options)),
)
@pytest.mark.parametrize("kind", [FeedForward, MultiHeadAttention])
def test_arguments_that_are_objects_are_saved(kind, options):
    config = kind(2, **options).get_config()
    assert kind.from_config(config).get_config() == config


class Adapted(TransformerEncoderBlock):
    """A block of fixed sizes, with arguments of its own, one of them a layer, and without a `get_config`."""

    def __init__(self, adapter, scale=2.0, **kwargs):
        super().__init__(num_heads=2, ff_dim=8, **kwargs)
        self.adapter, self.scale = adapter, scale

    def call(self, inputs, *, mask=None):
        return super().call(inputs, mask=mask) + self.scale * self.adapter(inputs)


class Configured(TransformerDecoderBlock):
    """A block that writes its config as is usual in Keras."""

    def __init__(self, adapter, **kwargs):
        super().__init__(**kwargs)
        self.adapter = adapter

    def call(self, inputs, memory=None, *, mask=None, memory_mask=None):
        return self.adapter(super().call(inputs, memory, mask=mask, memory_mask=memory_mask))

    def get_config(self):
        return {**super().get_config(), "adapter": keras.saving.serialize_keras_object(self.adapter)}


def test_subclasses_with_arguments_of_their_own_survive_their_config():
    first, second = keras.layers.Dense(8, "tanh"), keras.layers.Dense(8, kernel_initializer="ones")
    sizes, inputs = {"num_heads": 2, "ff_dim": 8}, (normal(2, 5, 8), normal(2, 3, 6, seed=1))
    layers = {Adapted(first, window=3, name="mine"): 1, Configured(adapter=second, **sizes, norm_first=True): 2}
    for layer, count in layers.items():
        twin = type(layer).from_config(layer.get_config())
        assert twin.get_config() == layer.get_config() and twin.name == layer.name
        y, _ = (one(*inputs[:count]) for one in (layer, twin))  # builds them
        assert type(twin.adapter) is keras.layers.Dense and len(twin.weights) == len(layer.weights)
        twin.set_weights(layer.get_weights())
        assert_close(twin(*inputs[:count]), y)
    assert sizes.items() <= Configured(second, **sizes).get_config().items()


def test_configs_have_defaults():
    config = TransformerEncoderBlock(num_heads=2, ff_dim=8).get_config()
    assert (config["dropout"], config["score"], config["window"]) == (0.1, "scaled_dot", None)


def test_kernels_are_drawn_as_matrices():
    kernel = array(as_matrices(keras.initializers.Identity(), 2, 6, matrices=3)((3, 2, 6)))
    np.testing.assert_array_equal(kernel, np.stack([np.eye(2, 6)] * 3))


def test_each_kernel_is_drawn_again_unless_it_has_a_seed():
    def equal(initializer):
        first, second = (array(clone(initializer)((4, 4))) for _ in range(2))
        return (first == second).all()

    assert not equal(keras.initializers.HeNormal()) and equal(keras.initializers.HeNormal(seed=1))
    assert equal(lambda shape, dtype=None: keras.ops.ones(shape, dtype))


def test_integers_are_kept_and_other_numbers_refused():
    assert as_integer("start", 3) == 3
    assert int(as_integer("start", np.int64(3))) == int(as_integer("start", keras.ops.convert_to_tensor(3))) == 3
    with refused("start"):
        as_integer("start", np.float32(3))


def test_matrices_of_a_seeded_initializer_differ():
    draw = as_matrices(keras.initializers.GlorotUniform(seed=1), 4, 3, matrices=2)
    first, second = array(draw((2, 4, 3)))
    assert not np.allclose(first, second) and np.allclose(array(draw((2, 4, 3)))[0], first)
