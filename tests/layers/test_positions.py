import keras
import numpy as np
import pytest
from conftest import (
    PRECISIONS,
    TOLERANCE,
    TRACED,
    array,
    assert_close,
    built,
    compiled,
    normal,
    once,
    parametrize_all,
    refused,
    run,
    spread,
)
from keras import ops

from keras_tfm.layers import (
    MultiHeadSelfAttention,
    PositionalEncoding,
    TransformerEncoder,
    TransformerEncoderBlock,
    masks,
    sinusoids,
)
from keras_tfm.layers.positions import SCHEMES, alibi_slopes, relative_buckets, rotate

KINDS = {"sinusoidal": {}, "learned": {"max_length": 20}, "index": {}}


@pytest.mark.parametrize("dim", [1, 2, 7, 16])
def test_sinusoids_are_the_curves_of_the_paper(dim):
    curves = array(run(sinusoids, np.arange(1000, 1010), dim))
    for column in range(dim):
        angle = np.arange(1000, 1010) / 10000 ** ((column - column % 2) / dim)
        assert_close(curves[:, column], np.cos(angle) if column % 2 else np.sin(angle), 1e-4)


@parametrize_all("kind, combine, dtype", list(KINDS), ["add", "concat"], PRECISIONS)
def test_a_start_or_given_positions_continue_the_full_pass(kind, combine, dtype):
    x = normal(2, 9, 6)
    layer = built(PositionalEncoding(kind, combine=combine, dtype=dtype, **KINDS[kind]), x)

    def outputs():
        parts = [{"start_index": 4}, {"start_index": np.int64(4)}, {"position_ids": np.array([[4, 5, 6]] * 2)}]
        joined, positions = np.concatenate([x[:, :3], x[:, :4]], axis=1), np.array([[0, 1, 2, 0, 1, 2, 3]] * 2)
        return layer(x), layer(joined, position_ids=positions), *(layer(x[:, 4:7], **part) for part in parts)

    full, packed, *parts = run(outputs)
    assert full.shape == layer.compute_output_shape(x.shape)
    assert keras.backend.standardize_dtype(full.dtype) == layer.compute_dtype
    full = array(full)
    for part in parts:
        assert_close(part, full[:, 4:7], TOLERANCE[dtype])
    assert_close(packed, np.concatenate([full[:, :3], full[:, :4]], axis=1), TOLERANCE[dtype])


def test_positions_are_added_or_concatenated():
    x = normal(2, 5, 7)
    learned = built(PositionalEncoding("learned", max_length=5), x)
    joining = PositionalEncoding(combine="concat", dim=3), PositionalEncoding("index", combine="concat")
    layers = PositionalEncoding(), PositionalEncoding("index"), learned, *joining
    added, indexed, by_table, joined, with_index = map(array, run(lambda: [layer(x) for layer in layers]))
    wide, narrow = map(array, run(lambda: [sinusoids(np.arange(5), dim) for dim in (7, 3)]))
    assert_close(added, x + wide)
    assert_close(joined, np.concatenate([x, np.broadcast_to(narrow, (2, 5, 3))], axis=-1))
    assert_close(with_index[..., -1], np.tile(np.arange(5), (2, 1)))
    assert_close(indexed, x + np.arange(5)[:, None])
    assert_close(by_table - x, np.broadcast_to(array(learned.table), x.shape))


def test_mask_passes_positional_encoding():
    ids = keras.Input((None,), dtype="int32")
    x = PositionalEncoding()(keras.layers.Embedding(9, 4, mask_zero=True)(ids))
    pooled = keras.Model(ids, keras.layers.GlobalAveragePooling1D()(x))
    assert_close(*run(lambda: [pooled(np.array(ids)) for ids in ([[3, 4, 0, 0]], [[3, 4]])]))


@parametrize_all("kind, scheme", [None, *KINDS], list(SCHEMES))
def test_only_without_positions_is_the_encoder_permutation_equivariant(kind, scheme):
    x, order = normal(2, 6, 8), np.array([3, 0, 5, 1, 4, 2])
    block = built(TransformerEncoderBlock(num_heads=2, ff_dim=16, positions=scheme), x)
    encode = built(PositionalEncoding(kind, **KINDS[kind]), x) if kind else lambda x: x
    if scheme == "relative":  # its table starts small
        block.attention.position_weights["table"].assign(normal(32, 2))
    plain, permuted = np.split(array(run(lambda: block(encode(np.concatenate([x, x[:, order]]))))), 2)
    difference = np.abs(permuted - plain[:, order]).max()
    assert difference < 1e-5 if kind is None and scheme is None else difference > 1e-3


@parametrize_all("kind, scheme, causal", [None, *KINDS], list(SCHEMES), [False, True])
def test_packed_equals_unpacked(kind, scheme, causal):
    first, second = normal(2, 3, 8), normal(2, 4, 8, seed=1)
    block = built(TransformerEncoderBlock(num_heads=2, ff_dim=16, positions=scheme, causal=causal), first)
    layer = built(PositionalEncoding(kind, **KINDS[kind]), first) if kind else lambda x, position_ids=None: x
    positions, segments = np.array([[0, 1, 2, 0, 1, 2, 3]] * 2), np.array([[1, 1, 1, 2, 2, 2, 2]] * 2)

    def packed():
        x = layer(np.concatenate([first, second], axis=1), position_ids=positions)
        return block(x, attention_mask=masks.segments(segments))

    def unpacked():
        return ops.concatenate([block(layer(x)) for x in (first, second)], axis=1)

    assert_close(*run(lambda: (packed(), unpacked())))


@once
def test_positions_may_enter_at_every_layer():
    x = keras.Input((None, 8))
    y = x
    for _ in range(3):
        y = TransformerEncoderBlock(num_heads=2, ff_dim=16)(PositionalEncoding()(y))
    assert keras.Model(x, y)(normal(2, 5, 8)).shape == (2, 5, 8)


@parametrize_all("scheme, causal", ["rotary", "relative", "alibi"], [False, True])
def test_schemes_depend_on_distance_only(scheme, causal):
    layer = MultiHeadSelfAttention(2, positions=scheme, causal=causal)
    layer.build((None, None, 8))
    x = normal(1, 4, 8)
    spread(layer, 0.3)
    twice, mask = np.concatenate([x, x], axis=1), np.repeat([False, True], 4)[None]
    assert_close(array(run(layer, twice, mask=mask))[:, 4:], run(layer, x), 1e-5)


def test_rotation_keeps_length_and_turns_products_with_distance():
    q, k = (ops.convert_to_tensor(normal(1, 1, 1, 8, seed=seed)) for seed in (0, 1))

    def product(i, j):
        return ops.sum(rotate(q, np.array([i])) * rotate(k, np.array([j])))

    assert_close(np.linalg.norm(array(run(rotate, q, np.array([17])))), np.linalg.norm(array(q)))
    near, far, other = map(array, run(lambda: (product(3, 1), product(503, 501), product(3, 2))))
    assert_close(near, far, 1e-4)
    assert abs(near - other) > 1e-3


def test_alibi_slopes_of_eight_heads_are_those_of_the_paper():
    assert alibi_slopes(8) == [2**-n for n in range(1, 9)]
    assert alibi_slopes(1) == [2**-8]
    assert len(set(alibi_slopes(12))) == 12 and set(alibi_slopes(8)) < set(alibi_slopes(12))


def test_relative_buckets_are_monotone_and_tell_past_from_future():
    distance = np.arange(-300, 301)
    both, past = (
        array(run(relative_buckets, ops.convert_to_tensor(distance), causal=causal)) for causal in (False, True)
    )
    assert (np.diff(both[300:]) >= 0).all() and (np.diff(both[:300]) <= 0).all()
    assert not set(both[:300]) & set(both[300:])
    assert both.min() == 0 and both.max() == 31 and past.max() == 31
    assert (past[:301] == 0).all() and past[300:316].tolist() == list(range(16))


def test_learned_positions_past_the_table_are_an_error():
    layer = built(PositionalEncoding("learned", max_length=4), normal(1, 4, 6))
    with refused("max_length"):
        layer(normal(1, 5, 6))
    with pytest.raises(ValueError, match="max_length=4, last position=6"):
        layer(normal(1, 1, 6), start_index=6)
    with pytest.raises(ValueError, match="max_length=4, last position=9"):
        layer(normal(1, 2, 6), position_ids=np.array([[0, 9]]))


@TRACED
def test_learned_positions_past_the_table_give_nan_in_a_compiled_program():
    layer = built(PositionalEncoding("learned", max_length=4), normal(1, 4, 6))
    late = compiled(lambda x, start: layer(x, start_index=start))(ops.ones((1, 3, 6)), ops.convert_to_tensor(2))
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


def test_the_base_of_the_wavelengths_is_an_option():
    x, places = ops.convert_to_tensor(normal(1, 5, 8)), np.arange(5.0)
    curve = np.array(run(lambda: sinusoids(places, 8, max_wavelength=100)))[:, 2]
    assert_close(curve, np.sin(places / 100 ** (2 / 8)))
    layer, stack = PositionalEncoding(max_wavelength=100), TransformerEncoder(num_layers=1, max_wavelength=100)
    added, stacked = run(lambda: (layer(x) - x, stack.before_block(0, x) - x))
    assert_close(added[0, :, 2], curve, 1e-5)
    assert_close(stacked, added)
    q = normal(1, 5, 2, 4)
    layer = MultiHeadSelfAttention(2, positions="rotary", max_wavelength=100)
    turned, default = run(lambda: (layer.scheme.rotate(q, places), rotate(q, places)))
    angle = places[None, :, None] / 100**0.5
    assert_close(array(turned)[..., 1], q[..., 1] * np.cos(angle) - q[..., 3] * np.sin(angle), 1e-5)
    assert np.abs(array(turned) - array(default)).max() > 1e-2
    with refused("max_wavelength"):
        PositionalEncoding(max_wavelength=0)


def test_a_single_row_is_refused():
    with pytest.raises(
        ValueError, match=r"`inputs` must be \(batch, length, features\). Received: inputs.shape=\(3, 4\)"
    ):
        PositionalEncoding()(ops.ones((3, 4)))
