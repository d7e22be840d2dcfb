import keras
import numpy as np
import pytest
from conftest import PRECISIONS, TOLERANCE, TRACED, array, assert_close, compiled, normal, quick, spread
from keras import ops

from keras_tfm.layers import MultiHeadSelfAttention, PositionalEncoding, TransformerEncoderBlock, masks, sinusoids
from keras_tfm.layers.positions import SCHEMES, alibi_slopes, relative_buckets, rotate

KINDS = {"sinusoidal": {}, "learned": {"max_length": 20}, "index": {}}


@pytest.mark.parametrize("dim", [1, 2, 7, 16])
def test_sinusoids_are_the_curves_of_the_paper(dim):
    curves = array(sinusoids(np.arange(1000, 1010), dim))
    for column in range(dim):
        angle = np.arange(1000, 1010) / 10000 ** ((column - column % 2) / dim)
        assert_close(curves[:, column], np.cos(angle) if column % 2 else np.sin(angle), 1e-4)


@pytest.mark.parametrize("combine", ["add", "concat"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", PRECISIONS)
def test_a_start_or_given_positions_continue_the_full_pass(kind, combine, dtype):
    layer = PositionalEncoding(kind, combine, dtype=dtype, **KINDS[kind])
    x = normal(2, 9, 6)
    full = layer(x)
    assert full.shape == layer.compute_output_shape(x.shape)
    assert keras.backend.standardize_dtype(full.dtype) == layer.compute_dtype
    assert_close(layer(x[:, 4:7], start=4), full[:, 4:7], TOLERANCE[dtype])
    assert_close(layer(x[:, 4:7], start=np.int64(4)), full[:, 4:7], TOLERANCE[dtype])
    assert_close(layer(x[:, 4:7], positions=np.array([[4, 5, 6]] * 2)), full[:, 4:7], TOLERANCE[dtype])
    packed = layer(np.concatenate([x[:, :3], x[:, :4]], axis=1), positions=np.array([[0, 1, 2, 0, 1, 2, 3]] * 2))
    assert_close(packed, np.concatenate([array(full[:, :3]), array(full[:, :4])], axis=1), TOLERANCE[dtype])


def test_what_is_combined():
    x = normal(2, 5, 7)
    assert_close(PositionalEncoding()(x), x + array(sinusoids(np.arange(5), 7)))
    joined = array(PositionalEncoding(combine="concat", dim=3)(x))
    assert_close(joined, np.concatenate([x, np.broadcast_to(array(sinusoids(np.arange(5), 3)), (2, 5, 3))], axis=-1))
    assert_close(PositionalEncoding("index", "concat")(x)[..., -1], np.tile(np.arange(5), (2, 1)))
    assert_close(PositionalEncoding("index")(x), x + np.arange(5)[:, None])
    learned = PositionalEncoding("learned", max_length=5)
    assert_close(array(learned(x)) - x, np.broadcast_to(array(learned.table), x.shape))


def test_mask_passes_positional_encoding():
    ids = keras.Input((None,), dtype="int32")
    x = PositionalEncoding()(keras.layers.Embedding(9, 4, mask_zero=True)(ids))
    pooled = keras.Model(ids, keras.layers.GlobalAveragePooling1D()(x))
    assert_close(pooled(np.array([[3, 4, 0, 0]])), pooled(np.array([[3, 4]])))


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("kind", [None, *KINDS])
def test_only_without_positions_is_the_encoder_permutation_equivariant(kind, scheme):
    block = TransformerEncoderBlock(2, 16, positions=scheme)
    encode = PositionalEncoding(kind, **KINDS[kind]) if kind else lambda x: x
    x, order = normal(2, 6, 8), np.array([3, 0, 5, 1, 4, 2])
    if scheme == "relative":  # its table starts small
        block.build(x.shape)
        block.attention.position_weights["table"].assign(normal(32, 2))
    difference = np.abs(array(block(encode(x[:, order]))) - array(block(encode(x)))[:, order]).max()
    assert difference < 1e-5 if kind is None and scheme is None else difference > 1e-3


@pytest.mark.parametrize("scheme, causal", [*((scheme, False) for scheme in SCHEMES), (None, True), ("relative", True)])
@pytest.mark.parametrize("kind", [None, *KINDS])
def test_packed_equals_unpacked(kind, scheme, causal):
    block = TransformerEncoderBlock(2, 16, positions=scheme, causal=causal)
    layer = PositionalEncoding(kind, **KINDS[kind]) if kind else lambda x, positions=None: x
    first, second = normal(2, 3, 8), normal(2, 4, 8, seed=1)
    positions, segments = np.array([[0, 1, 2, 0, 1, 2, 3]] * 2), np.array([[1, 1, 1, 2, 2, 2, 2]] * 2)
    block.build(first.shape)
    if kind:
        layer.build(first.shape)

    def packed():
        x = layer(np.concatenate([first, second], axis=1), positions=positions)
        return block(x, attention_mask=masks.segments(segments))

    def unpacked():
        return ops.concatenate([block(layer(x)) for x in (first, second)], axis=1)

    assert_close(quick(packed)(), quick(unpacked)())


def test_positions_may_enter_at_every_layer():
    x = keras.Input((None, 8))
    y = x
    for _ in range(3):
        y = TransformerEncoderBlock(2, 16)(PositionalEncoding()(y))
    assert keras.Model(x, y)(normal(2, 5, 8)).shape == (2, 5, 8)


@pytest.mark.parametrize("scheme", ["rotary", "relative", "alibi"])
@pytest.mark.parametrize("causal", [False, True])
def test_schemes_depend_on_distance_only(scheme, causal):
    layer = MultiHeadSelfAttention(2, positions=scheme, causal=causal)
    layer.build((None, None, 8))
    x = normal(1, 4, 8)
    spread(layer, 0.3)
    twice, mask = np.concatenate([x, x], axis=1), np.repeat([False, True], 4)[None]
    assert_close(array(layer(twice, mask=mask))[:, 4:], layer(x), 1e-5)


def test_rotation_keeps_length_and_turns_products_with_distance():
    q, k = (ops.convert_to_tensor(normal(1, 1, 1, 8, seed=seed)) for seed in (0, 1))

    def product(i, j):
        return array(ops.sum(rotate(q, np.array([i])) * rotate(k, np.array([j]))))

    assert_close(np.linalg.norm(array(rotate(q, np.array([17])))), np.linalg.norm(array(q)))
    assert_close(product(3, 1), product(503, 501), 1e-4)
    assert abs(product(3, 1) - product(3, 2)) > 1e-3


def test_alibi_slopes_of_eight_heads_are_those_of_the_paper():
    assert alibi_slopes(8) == [2**-n for n in range(1, 9)]
    assert alibi_slopes(1) == [2**-8]
    assert len(set(alibi_slopes(12))) == 12 and set(alibi_slopes(8)) < set(alibi_slopes(12))


def test_relative_buckets_are_monotone_and_tell_past_from_future():
    distance = np.arange(-300, 301)
    both = array(relative_buckets(ops.convert_to_tensor(distance), causal=False))
    past = array(relative_buckets(ops.convert_to_tensor(distance), causal=True))
    assert (np.diff(both[300:]) >= 0).all() and (np.diff(both[:300]) <= 0).all()
    assert not set(both[:300]) & set(both[300:])
    assert both.min() == 0 and both.max() == 31 and past.max() == 31
    assert (past[:301] == 0).all() and past[300:316].tolist() == list(range(16))


def test_learned_positions_past_the_table_are_an_error():
    layer = PositionalEncoding("learned", max_length=4)
    layer(normal(1, 4, 6))
    with pytest.raises(ValueError, match="`max_length` must exceed.*max_length=4, last position=4"):
        layer(normal(1, 5, 6))
    with pytest.raises(ValueError, match="max_length=4, last position=6"):
        layer(normal(1, 1, 6), start=6)
    with pytest.raises(ValueError, match="max_length=4, last position=9"):
        layer(normal(1, 2, 6), positions=np.array([[0, 9]]))


@TRACED
def test_learned_positions_past_the_table_that_only_a_run_can_know_are_never_a_wrong_row():
    layer = PositionalEncoding("learned", max_length=4)
    layer(normal(1, 4, 6))
    late = compiled(lambda x, start: layer(x, start=start))(ops.ones((1, 3, 6)), ops.convert_to_tensor(2))
    assert np.isfinite(array(late)[:, :2]).all() and np.isnan(array(late)[:, 2]).all()


@pytest.mark.parametrize(
    "options, words",
    [
        ({"kind": "polar"}, ["kind", "sinusoidal", "'polar'"]),
        ({"combine": "multiply"}, ["combine", "concat", "'multiply'"]),
        ({"kind": "learned"}, ["max_length", "positive", "None"]),
        ({"kind": "learned", "max_length": 0}, ["max_length", "positive", "0"]),
        ({"max_length": 9}, ["max_length", "sinusoidal", "9"]),
        ({"dim": 4}, ["dim", "add", "4"]),
        ({"kind": "index", "combine": "concat", "dim": 4}, ["dim", "index", "4"]),
        ({"combine": "concat", "dim": -1}, ["dim", "positive", "-1"]),
    ],
)
def test_bad_arguments(options, words):
    with pytest.raises(ValueError) as error:
        PositionalEncoding(**options)
    assert all(word in str(error.value) for word in words), str(error.value)
