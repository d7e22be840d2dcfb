import keras
import numpy as np
import pytest
from conftest import BACKEND, TOLERANCE, assert_close, built, compiled, gradients, normal, parametrize_all, run

from keras_tfm import ops
from keras_tfm.layers import MultiHeadSelfAttention, attend, masks
from keras_tfm.ops.runtime import DEFAULT, backend

LENGTH = 6
MASK = np.array([[1, 1, 1, 1, 0, 0], [0, 1, 0, 1, 1, 1]], bool)
X = normal(2, LENGTH, 16)


@pytest.fixture
def calls_of_attention():
    calls = []

    def counted(*arguments):
        calls.append(arguments)
        return backend.attention(*arguments)

    with ops.using(DEFAULT._replace(attention=counted)):
        yield calls


@parametrize_all("causal, num_kv_heads", [False, True], [1, 2, 4])
def test_the_fast_path_is_taken_and_exact(causal, num_kv_heads, calls_of_attention):
    layer = built(MultiHeadSelfAttention(4, causal=causal, num_kv_heads=num_kv_heads, positions="rotary"), X)
    y = run(layer, X)
    assert len(calls_of_attention) == 1
    assert_close(y, run(layer, X, attention_mask=np.ones((1, LENGTH, LENGTH), bool)))
    assert len(calls_of_attention) == 1


@pytest.mark.parametrize(
    "options, call",
    [
        ({"attention_dropout": 0.5}, {"training": True}),
        ({"positions": "alibi"}, {}),
        ({"positions": "relative"}, {}),
        ({"window": 2}, {}),
        ({"mixing": "hard"}, {}),
        ({"score": "cosine"}, {}),
        ({}, {"attention_mask": MASK[:, None, :]}),
    ],
)
def test_the_fast_path_is_not_taken_where_it_would_drop_something(options, call, calls_of_attention):
    layer = built(MultiHeadSelfAttention(4, **options), X)
    with keras.StatelessScope():  # the seeds of dropout are not kept
        run(layer, X, **call)
    assert not calls_of_attention


def test_dropout_that_is_off_leaves_the_fast_path_open(calls_of_attention):
    run(built(MultiHeadSelfAttention(4, attention_dropout=0.5), X), X, training=False)
    assert len(calls_of_attention) == 1


@pytest.mark.skipif(BACKEND != "jax", reason="cuDNN's kernel is reached through JAX")
def test_cudnn_path_is_exact_for_any_mask():
    import jax

    if jax.default_backend() != "gpu":
        pytest.skip("needs a CUDA GPU with cuDNN")
    q, k, v = (ops.cast(normal(4, 64, 8, 64, seed=seed), "bfloat16") for seed in range(3))
    mask = np.random.default_rng(0).random((4, 64)) > 0.4
    mask[0], mask[1] = False, np.arange(64) < 40
    for causal in (False, True):
        past = masks.causal(64, 64) if causal else None
        shown = mask[:, :, None, None] if causal else True

        def exact(q, k, v):
            return ops.where(shown, attend(q, k, v, mask=masks.combine(mask, past))[0], 0)  # noqa: B023

        def kernel(q, k, v):
            context = backend.attention(q, k, v, ops.convert_to_tensor(mask), causal)  # noqa: B023
            return ops.where(shown, context, 0)  # noqa: B023

        assert_close(compiled(kernel)(q, k, v), compiled(exact)(q, k, v), TOLERANCE["mixed_bfloat16"])
        for ours, theirs in zip(gradients(kernel, q, k, v), gradients(exact, q, k, v), strict=True):
            assert_close(ours, theirs, TOLERANCE["mixed_bfloat16"])
