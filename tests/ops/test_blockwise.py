import numpy as np
import pytest
from conftest import IN_TENSORFLOW, assert_close, gradients, normal, parametrize_all

from keras_tfm.layers import attend, masks

pytestmark = IN_TENSORFLOW
blockwise = pytest.importorskip("keras_tfm.ops.blockwise", reason="needs TensorFlow")


@parametrize_all("causal, masked, kv_heads, lengths", [False, True], [False, True], [1, 2, 4], [(7, 7), (3, 9), (8, 4)])
def test_blocks_are_exact_forwards_and_backwards(causal, masked, kv_heads, lengths, monkeypatch):
    monkeypatch.setattr(blockwise, "BLOCK", 4)
    q, (k, v) = normal(2, lengths[0], 4, 8), (normal(2, lengths[1], kv_heads, 8, seed=seed) for seed in (1, 2))
    key_mask = np.arange(lengths[1]) < np.array([[lengths[1] - 1], [0]]) if masked else None
    whole = masks.combine(key_mask, masks.causal(*lengths) if causal else None)
    upstream = normal(*q.shape, seed=3)

    def plain(q, k, v):
        return attend(q, k, v, mask=whole)[0] * upstream

    def in_blocks(q, k, v):
        return blockwise.blockwise_attention(q, k, v, key_mask, causal) * upstream

    assert_close(in_blocks(q, k, v), plain(q, k, v))
    for actual, expected in zip(gradients(in_blocks, q, k, v), gradients(plain, q, k, v), strict=True):
        assert_close(actual, expected)


@pytest.mark.parametrize("jit_compile", [False, True])
def test_lengths_may_be_unknown(jit_compile, monkeypatch):
    import tensorflow as tf

    monkeypatch.setattr(blockwise, "BLOCK", 4)
    spec = tf.TensorSpec([None, None, 2, 8])
    program = tf.function(blockwise.blockwise_attention, jit_compile=jit_compile)
    program = program if jit_compile else tf.function(blockwise.blockwise_attention, input_signature=[spec] * 3)
    for length in (3, 9):
        q, k, v = (normal(2, length, 2, 8, seed=seed) for seed in range(3))
        assert_close(program(*map(tf.constant, (q, k, v))), attend(q, k, v)[0])
