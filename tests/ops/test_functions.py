"""Every function of `keras_tfm.ops` against its plain definition, values and gradients."""

import keras
import numpy as np
import pytest
from conftest import BACKEND, PRECISIONS, TOLERANCE, array, assert_close, gradients, normal, parametrize_all, spread
from keras import ops

from keras_tfm.ops import plain
from keras_tfm.ops.runtime import backend

IDS = np.array([[0, 0, 5], [3, 0, 5]])
LABELS = np.array([[1, 4, 0], [6, 2, 2]])
KEY_MASK = np.array([[1, 1, 1, 0, 0, 0], [0, 1, 0, 1, 1, 1]], bool)


def norm(**options):
    """A norm layer with weights; its function is differentiated by x and the weights."""
    layer = keras.layers.LayerNormalization(**options)
    layer.build((3, 5, 8))
    spread(layer)

    def call(function, x, *values):
        with keras.StatelessScope(state_mapping=list(zip(layer.trainable_weights, values, strict=True))):
            return function(layer, x)

    return "layer_norm", [normal(3, 5, 8), *map(ops.convert_to_numpy, layer.trainable_weights)], call


def attention(kv_heads, *options):
    inputs = [normal(2, 6, heads, 8, seed=seed) for seed, heads in enumerate((4, kv_heads, kv_heads))]
    return "attention", inputs, lambda function, q, k, v: function(q, k, v, *options)


# Name → function, arrays that it is differentiated by, and how it is called with them.
CASES = {
    "matmul": ("matmul", [normal(3, 4), normal(4, 5, seed=1)], lambda f, x, y: f(x, y)),
    "matmul_transposed": ("matmul_transposed", [normal(3, 4), normal(5, 4, seed=1)], lambda f, x, y: f(x, y)),
    "relu": ("relu", [normal(3, 4)], lambda f, x: f(x)),
    "embed": ("embed", [normal(6, 4)], lambda f, table: f(table, IDS)),
    "embed one id": ("embed", [normal(6, 4)], lambda f, table: f(table, np.array([[[1]]]))),
    "crossentropy": ("crossentropy", [3 * normal(2, 3, 7)], lambda f, x: f(LABELS, x)),
    "smoothed crossentropy": ("crossentropy", [3 * normal(2, 3, 7)], lambda f, x: f(LABELS, x, 0.1)),
    "crossentropy of classes": ("crossentropy", [3 * normal(2, 7)], lambda f, x: f(LABELS[:, 0], x, 0.1)),
    "layer_norm": norm(),
    "layer_norm, large epsilon": norm(epsilon=0.1),
    "layer_norm, axis as a list": norm(axis=[-1]),
    "layer_norm without offset": norm(center=False),
    "attention": attention(4),
    "attention, one kv head": attention(1),
    "causal attention": attention(2, None, True),
    "masked attention": attention(2, KEY_MASK),
    "attention to nothing": attention(4, np.zeros((2, 6), bool)),
}
if BACKEND != "torch":  # on which Keras' own layer fails
    CASES["layer_norm of another axis"] = norm(axis=1)
FUNCTIONS = [name for name, value in vars(plain).items() if callable(value) and value.__module__ == plain.__name__]


@parametrize_all("name, dtype", list(CASES), PRECISIONS[:2])
def test_values_and_gradients_are_those_of_the_definition(name, dtype):
    function, inputs, call = CASES[name]
    dtype = dtype.removeprefix("mixed_")
    tolerance = TOLERANCE["float32" if dtype == "float32" else "mixed_bfloat16"]
    narrow = [ops.cast(x, dtype) for x in inputs]
    shape = call(getattr(plain, function), *narrow).shape
    upstream = normal(*shape, seed=9)

    def of(module):
        def weighted(*arrays):
            output = call(getattr(module, function), *(ops.cast(x, dtype) for x in arrays))
            return ops.cast(output, "float32") * ops.convert_to_tensor(upstream)

        return weighted

    assert_close(of(backend)(*inputs), of(plain)(*inputs), tolerance)
    for ours, theirs in zip(gradients(of(backend), *inputs), gradients(of(plain), *inputs), strict=True):
        assert_close(ours, theirs, 10 * tolerance)


def test_the_definitions_are_right():
    """By NumPy, where Keras has no function of its own."""
    logits = normal(2, 3, 7)
    targets = 0.9 * np.eye(7)[LABELS] + 0.1 / 7
    log_shares = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
    assert_close(plain.crossentropy(LABELS, logits, 0.1), -(targets * log_shares).sum(axis=-1))
    q, k, v = (normal(2, 6, 4, 8, seed=seed) for seed in range(3))
    scores = np.where(KEY_MASK[:, None, None], np.einsum("bqhd,bkhd->bhqk", q, k) / np.sqrt(8), -np.inf)
    weights = np.exp(scores) / np.exp(scores).sum(axis=-1, keepdims=True)
    assert_close(plain.attention(q, k, v, KEY_MASK), np.einsum("bhqk,bkhd->bqhd", weights, v))


def test_every_function_has_a_case():
    # these are tested by what uses them
    helpers = {"is_simple_norm", "keras_attention", "packs_attention", "random_bits", "to_numpy"}
    assert {function for function, *_ in CASES.values()} | helpers == {*FUNCTIONS}


@pytest.mark.skipif(BACKEND == "torch", reason="PyTorch adds up in the precision of the table")
def test_a_gradient_of_embeddings_adds_up_in_float32():
    ids = np.zeros(1000, int)
    (slope,) = gradients(
        lambda table: ops.cast(backend.embed(ops.cast(table, "bfloat16"), ids), "float32"), normal(6, 4)
    )
    assert_close(slope[0], np.full(4, 1000.0), 4)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_large_logits_have_finite_losses(smoothing):
    logits = np.array([[[1e4, -1e4, 0.0]]], "float32")

    def losses(logits):
        return backend.crossentropy(np.array([[1]]), logits, smoothing)

    for x in (losses(logits), *gradients(losses, logits)):
        assert np.isfinite(array(x)).all()


def test_arrays_of_variables_are_their_values():
    values = [np.arange(3, dtype="float32"), np.ones((2, 2), "int32")]
    variables = [keras.Variable(value, dtype=value.dtype.name, trainable=False) for value in values]
    for array_, value in zip(backend.to_numpy(variables), values, strict=True):
        assert array_.dtype == value.dtype and (array_ == value).all()
