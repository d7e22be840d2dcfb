import functools
import itertools

import keras
import numpy as np
import pytest
from conftest import (
    BACKEND,
    PRECISIONS,
    TOLERANCE,
    TRACED,
    array,
    assert_close,
    compiled,
    gradients,
    largest_tensor,
    normal,
    once,
    parametrize_all,
    refused,
    run,
    spread,
)

from keras_tfm import ops
from keras_tfm.layers import (
    SCORES,
    MultiHeadAttention,
    MultiHeadSelfAttention,
    TransformerDecoderBlock,
    TransformerEncoderBlock,
    attend,
    masks,
    record_attention,
    self_attention,
)
from keras_tfm.layers.attention import HEADS
from keras_tfm.layers.positions import SCHEMES
from keras_tfm.layers.scores import MIXINGS, hard, local_attention, soft
from keras_tfm.runtimes import programs

BATCH, LENGTH, WIDTH = 2, 6, 16
MASK = np.array([[1, 1, 1, 1, 0, 0], [0, 1, 0, 1, 1, 1]], bool)
X = normal(BATCH, LENGTH, WIDTH)


EVERY_OPTION = parametrize_all(
    "score, heads, positions, dtype", list(SCORES), list(HEADS), list(SCHEMES), PRECISIONS, group=True
)


@pytest.fixture
def options(score, heads, positions, dtype):
    return {"score": score, "heads": heads, "positions": positions, "dtype": dtype}


@functools.cache
def cached_layer(**options):
    keras.utils.set_random_seed(3)
    layer = MultiHeadSelfAttention(4, **options)
    layer.build((None, None, WIDTH))
    # Scores of an unscaled product are some 10, and half precision knows them to 0.06 at best: smaller weights there.
    return spread(layer, 0.1 if layer.compute_dtype == "float32" else 0.05)


@EVERY_OPTION
def test_padding_changes_nothing(options):
    more = {} if options["dtype"] == "float32" else {"causal": True, "num_kv_heads": 2}  # a layer that others made
    layer, tolerance = cached_layer(**more, **options), TOLERANCE[options["dtype"]]
    other_content = np.where(MASK[..., None], X, 50 * X[::-1])
    begins = np.broadcast_to(np.arange(LENGTH) < 3, MASK.shape)
    # One call for each, since a row's last bits may depend on its place in the batch.
    expected, other, longer = (array(run(layer, x, mask=m)) for x, m in ((X, MASK), (other_content, MASK), (X, begins)))
    np.testing.assert_array_equal(other[MASK], expected[MASK])
    assert_close(longer[:, :3], run(layer, X[:, :3], mask=np.ones((BATCH, 3), bool)), tolerance)


@EVERY_OPTION
def test_the_future_changes_nothing_before_it(options):
    layer = cached_layer(causal=True, num_kv_heads=2, **options)
    futures = [np.concatenate([X[:, :t], -3 * X[:, t:]], axis=1) for t in (1, 4)]
    expected, *outputs = (array(run(layer, x)) for x in (X, *futures))
    for t, changed in zip((1, 4), outputs, strict=True):
        np.testing.assert_array_equal(changed[:, :t], expected[:, :t])
        assert np.abs(changed[:, t:] - expected[:, t:]).max() > 1e-3


@EVERY_OPTION
def test_rows_of_attention_sum_to_one_or_are_zero(options):
    layer = cached_layer(causal=True, num_kv_heads=2, **options)
    with record_attention() as maps:
        layer(X, attention_mask=MASK[:, None, :])
    (weights,) = maps[layer.path]
    visible = np.tril(np.ones((LENGTH, LENGTH), bool)) & MASK[:, None, None, :]
    assert weights.shape == (BATCH, 4, LENGTH, LENGTH) and weights.dtype == "float32"
    assert (weights[~np.broadcast_to(visible, weights.shape)] == 0).all()
    assert_close(weights.sum(-1), np.broadcast_to(visible.any(-1), weights.shape[:3]).astype("float32"))


@EVERY_OPTION
def test_cached_equals_full(options):
    layer, tolerance = cached_layer(causal=True, num_kv_heads=2, **options), TOLERANCE[options["dtype"]]

    def by_steps():
        first = 4 if options["dtype"] == "float32" else 5
        step, cache = layer(X[:, :first], mask=MASK[:, :first], cache=layer.init_cache(BATCH, LENGTH + 2))
        steps = [step]
        for t in range(first, LENGTH):
            step, cache = layer(
                X[:, t : t + 1], mask=MASK[:, t : t + 1], cache=cache, cache_position=ops.convert_to_tensor(t)
            )
            steps.append(step)
        return ops.concatenate(steps, axis=1)

    assert_close(run(by_steps), run(layer, X, mask=MASK), tolerance)


@parametrize_all("positions, window", list(SCHEMES), [None, 2])
def test_a_cache_without_padding_needs_no_mask(positions, window):
    layer = cached_layer(causal=True, positions=positions, window=window)

    def by_steps():
        first, cache = layer(X[:, :3], cache=layer.init_cache(BATCH, LENGTH + 2, masked=False))
        second, cache = layer(X[:, 3:], cache=cache, cache_position=ops.convert_to_tensor(3))
        return ops.concatenate([first, second], axis=1), cache

    outcome, cache = run(by_steps)
    assert set(cache) == {"k", "v"}
    assert_close(outcome, run(layer, X))
    with pytest.raises(ValueError, match="masked=False"):
        layer(X[:, :1], mask=MASK[:, :1], cache=cache, cache_position=LENGTH)


@parametrize_all(
    "kind, causal",
    [*((score, None) for score in SCORES), *(("scaled_dot", scheme) for scheme in SCHEMES if scheme)],
    [False, True],
)
def test_local_equals_full_with_a_window_mask(kind, causal):
    score, positions = kind
    x, mask = normal(2, 11, WIDTH), np.arange(11) < np.array([[11], [7]])
    layer = cached_layer(score=score, positions=positions, causal=causal, num_kv_heads=2, window=3)
    local = array(run(layer, x, mask=mask))
    near = np.abs(np.arange(11) - np.arange(11)[:, None]) < 3
    assert_close(local, run(layer, x, mask=mask, attention_mask=np.ones((1, 11, 11), bool)))
    if score == "scaled_dot" and BACKEND != "jax":  # where `run` compiles
        assert_close(local, compiled(lambda x: layer(x, mask=mask))(ops.convert_to_tensor(x)))
    unlimited = MultiHeadSelfAttention(4, score=score, positions=positions, causal=causal, num_kv_heads=2)
    unlimited.build(x.shape)
    unlimited.set_weights(layer.get_weights())
    assert_close(local, run(unlimited, x, mask=mask, attention_mask=near[None]))


@pytest.mark.parametrize("causal", [False, True])
def test_cost_of_local_attention_grows_with_length_only(causal):
    def largest(length, **options):
        layer = MultiHeadSelfAttention(2, causal=causal, **options)
        layer.build((1, length, 8))
        return largest_tensor(layer, ops.convert_to_tensor(normal(1, length, 8)))

    assert largest(2048, window=16) <= 2.1 * largest(1024, window=16)
    weights = {"mixing": "hard"}  # for which there is no fused kernel, so that the weights are a tensor
    assert largest(2048, **weights) >= 3.9 * largest(1024, **weights)


@pytest.mark.parametrize("window, causal", [(1, False), (4, False), (4, True), (20, True)])
def test_a_window_reaches_exactly_as_far_as_its_size(window, causal):
    layer = MultiHeadSelfAttention(2, causal=causal, window=window)
    (gradient,) = gradients(lambda x: layer(x)[:, 10], normal(1, 21, 8))
    reached = np.abs(gradient[0]).sum(-1) > 0
    offset = np.arange(21) - 10
    np.testing.assert_array_equal(reached, (np.abs(offset) < window) & (~np.array(causal) | (offset <= 0)))


@parametrize_all("score, mixing, dtype", list(SCORES), list(MIXINGS), PRECISIONS)
def test_fully_masked_rows_give_zeros_and_zero_gradients(score, mixing, dtype):
    layer, memory = MultiHeadAttention(4, score=score, mixing=mixing, dtype=dtype), normal(BATCH, 3, WIDTH, seed=2)
    layer.build(X.shape, memory.shape)
    memory_mask = np.array([[False] * 3, [True, False, True]])
    y = array(run(layer, X, memory, memory_mask=memory_mask))
    assert (y[0] == 0).all() and np.abs(y[1]).min(-1).max() > 0
    for gradient in gradients(lambda x, memory: layer(x, memory, memory_mask=memory_mask) ** 2, X, memory):
        assert np.isfinite(gradient).all() and (gradient[0] == 0).all()


@pytest.mark.parametrize("recorded", [False, True])
@pytest.mark.parametrize("block", [TransformerEncoderBlock, TransformerDecoderBlock])
def test_the_future_changes_nothing_with_dropout_on(block, recorded):
    options = {"causal": True} if block is TransformerEncoderBlock else {}
    layer = block(num_heads=4, ff_dim=32, dropout=0.3, attention_dropout=0.3, **options)
    layer.build(X.shape)

    def outputs(x, training=True):
        with keras.StatelessScope():  # forgets the new seeds: every call begins with the same ones
            return layer(x, training=training)

    def with_dropout(x):
        keras.utils.set_random_seed(1)  # for PyTorch, whose dropout uses one generator for all layers
        if not recorded:
            return array(run(outputs, x))
        with record_attention() as maps:
            y = array(outputs(x))
        assert (np.triu(maps[f"{layer.path}/attention"][0], k=1) == 0).all()
        return y

    expected, changed = with_dropout(X), with_dropout(np.concatenate([X[:, :3], 5 * X[:, 3:]], axis=1))
    assert np.abs(expected - array(run(outputs, X, training=False))).max() > 1e-2
    np.testing.assert_array_equal(changed[:, :3], expected[:, :3])
    assert np.abs(changed[:, 3:] - expected[:, 3:]).max() > 1e-2


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("causal", [False, True])
def test_equals_keras_multi_head_attention_with_the_same_weights(causal, masked):
    ours, theirs = cached_layer(causal=causal), keras.layers.MultiHeadAttention(4, WIDTH // 4)
    theirs.build(X.shape, X.shape)
    theirs.set_weights(ours.get_weights())
    mask = MASK if masked else np.ones_like(MASK)
    expected = run(theirs, X, X, attention_mask=mask[:, None, :], use_causal_mask=causal)
    assert_close(array(run(ours, X, mask=mask if masked else None))[mask], array(expected)[mask])


def as_keras(layer):
    """Keras' own attention with the weights of a layer; a narrow head is one that reads zeros beside its slice."""
    weights, width = layer.get_weights(), layer.output_dense.kernel.shape[-1]
    theirs = keras.layers.GroupQueryAttention(layer.head_dim, layer.num_heads, layer.num_kv_heads)
    theirs.build((None, None, width), (None, None, width))
    if layer.heads == "narrow":
        for place in (0, 2, 4):  # kernels of queries, keys and values
            heads, size, dim = weights[place].shape
            slices = weights[place][:, :, None] * np.eye(heads)[:, None, :, None]  # (heads, size, heads, dim)
            weights[place] = slices.reshape(heads * size, heads, dim)
    theirs.set_weights(weights)
    return theirs


@pytest.mark.parametrize("width, num_heads", [(1, 1), (2, 1), (2, 2), (6, 6)])
def test_any_number_of_features_and_heads(width, num_heads):
    """One feature per head, one head, one feature in all, and as many heads as tokens are sizes like any other."""
    x, layers = normal(2, 3, width), {}
    for heads, num_kv_heads in [*((heads, num_heads) for heads in HEADS), *[("standard", 1)] * (num_heads > 1)]:
        layer = MultiHeadSelfAttention(num_heads, num_kv_heads=num_kv_heads, heads=heads, causal=True)
        layer.build(x.shape)
        layers[heads, num_kv_heads] = spread(layer, 0.5)

    def full_and_by_steps(layer):
        first, cache = layer(x[:, :2], cache=layer.init_cache(2, 3))
        return layer(x), ops.concatenate([first, layer(x[:, 2:], cache=cache, cache_position=2)[0]], axis=1)

    variables = [variable for layer in layers.values() for variable in layer.variables]
    of_few = programs.compiled(lambda x, size: [layer(x) for layer in layers.values()], variables)
    outcome = zip(
        run(lambda: [full_and_by_steps(layer) for layer in layers.values()]), of_few(x[:, :1], 0), strict=True
    )
    expected = run(lambda: [as_keras(layer)(x, x, use_causal_mask=True) for layer in layers.values()])
    for name, theirs, ((full, by_steps), first) in zip(layers, expected, outcome, strict=True):
        assert full.shape == x.shape, name
        assert_close(full, theirs)
        assert_close(by_steps, full)
        assert_close(first, full[:, :1])


@once
@pytest.mark.usefixtures("little_garbage")
def test_any_number_of_quantized_heads():
    inputs = keras.Input((None, 2))
    model = spread(keras.Model(inputs, MultiHeadSelfAttention(2, causal=True)(inputs)), 0.5)
    model.quantize("int8", filters=lambda layer: isinstance(layer, keras.layers.EinsumDense))
    x = normal(2, 3, 2)
    assert_close(model(x[:, :2]), model(x)[:, :2])  # with as many heads as tokens, or not


def test_cross_attention_equals_keras_with_the_same_weights():
    memory = normal(BATCH, 4, 10, seed=4)
    ours, theirs = MultiHeadAttention(4), keras.layers.MultiHeadAttention(4, WIDTH // 4)
    for layer in (ours, theirs):
        layer.build(X.shape, memory.shape)
    ours.set_weights(spread(theirs).get_weights())
    expected = run(theirs, X, memory)
    assert_close(run(ours, X, memory), expected)
    assert_close(run(lambda: ours(X, cache=ours.init_cache(BATCH, None, ops.convert_to_tensor(memory)))[0]), expected)


@parametrize_all("num_kv_heads, score", [1, 2, 4], list(SCORES))
def test_grouped_heads_equal_plain_ones_with_repeated_keys_and_values(num_kv_heads, score):
    grouped = cached_layer(num_kv_heads=num_kv_heads, score=score)
    plain = MultiHeadSelfAttention(4, score=score)
    plain.build(X.shape)
    repeat = 4 // num_kv_heads
    for ours, theirs in zip(plain.weights, grouped.weights, strict=True):
        value = array(theirs)
        if theirs.path.split("/")[-2] in ("key", "value"):
            value = np.repeat(value, repeat, axis=-2)
        ours.assign(value)

    def outputs(layer):
        return ops.concatenate([layer(X, mask=MASK), layer(X)])  # without a mask by the fused path

    assert_close(run(outputs, grouped), run(outputs, plain))


def test_shapes_of_the_matrices_of_each_head_mode():
    k, h = WIDTH, 4
    shapes = {"standard": (k, h, k // h), "narrow": (h, k // h, k // h), "wide": (k, h, k)}
    for heads, shape in shapes.items():
        assert tuple(cached_layer(heads=heads).query_dense.kernel.shape) == shape


def test_a_narrow_head_sees_its_chunk_only():
    layer = cached_layer(heads="narrow")
    chunk = ops.convert_to_tensor(X)
    (gradient,) = gradients(lambda x: layer.project(x, layer.query_dense)[0][:, :, 1], chunk)
    assert (gradient[..., 4:8] != 0).all() and (np.delete(gradient, np.s_[4:8], axis=-1) == 0).all()


def test_scores_against_the_formulas_written_out():
    q, k = normal(5), normal(5, seed=1)
    w, u, v, pair = (normal(*shape, seed=2) for shape in [(5, 5), (5, 5), (5,), (10, 5)])
    weights = {
        "cosine": {"log_temperature": [0.7]},
        "bilinear": {"kernel": w[None]},
        "additive": {"query_kernel": w[None], "key_kernel": u[None], "vector": v[None]},
        "concat": {"kernel": pair[None], "vector": v[None]},
    }
    expected = {
        "dot": q @ k,
        "scaled_dot": q @ k / np.sqrt(5),
        "cosine": np.sqrt(5) * q @ k / np.linalg.norm(q) / np.linalg.norm(k) / np.exp(0.7),
        "bilinear": q @ w @ k,
        "additive": v @ np.tanh(q @ w + k @ u),
        "concat": v @ np.tanh(np.concatenate([q, k]) @ pair),
    }

    def actual(score):
        tensors = {name: ops.convert_to_tensor(np.float32(value)) for name, value in weights.get(score, {}).items()}
        return SCORES[score][0](*(ops.convert_to_tensor(x[None, None, None]) for x in (q, k)), **tensors)

    for score, outcome in zip(SCORES, run(lambda: [*map(actual, SCORES)]), strict=True):
        assert_close(outcome, np.reshape(expected[score], (1, 1, 1, 1)))


def test_parameter_free_self_attention_is_the_sum_written_out():
    x = normal(1, 4, 3)
    scores = x[0] @ x[0].T
    weights = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
    assert_close(self_attention(x)[0], weights @ x[0])
    assert_close(self_attention(x, masks.causal(4, 4))[:, 0], x[:, 0])


def test_hard_attention_takes_the_best_key_and_learns_like_soft():
    scores = normal(2, 3, 4, 5)
    weights = array(hard(ops.convert_to_tensor(scores)))
    np.testing.assert_array_equal(weights, scores == scores.max(-1, keepdims=True))
    values = normal(2, 3, 4, 5, seed=1)
    assert_close(*(gradients(lambda s: ops.multiply(mixing(s), values), scores)[0] for mixing in (hard, soft)))  # noqa: B023


def test_attend_takes_masks_of_every_rank():
    q = k = v = ops.convert_to_tensor(normal(BATCH, LENGTH, BATCH, 4))  # as many heads as rows
    ranks = MASK[:, None, None, :], MASK, np.repeat(MASK[:, None, :], LENGTH, axis=1)
    expected, *others = run(lambda: [attend(q, k, v, mask=mask)[0] for mask in ranks])
    for other in others:
        assert_close(other, expected)


@pytest.mark.parametrize("score", SCORES)
def test_tokens_of_zeros_have_finite_gradients(score):
    (gradient,) = gradients(lambda x: MultiHeadSelfAttention(2, score=score)(x) ** 2, X * MASK[..., None])
    assert np.isfinite(gradient).all()


def test_masks_work_under_every_floatx():
    layer, before = MultiHeadSelfAttention(2, dtype="float32"), keras.config.floatx()
    layer.build(X.shape)
    expected = array(run(layer, X, mask=MASK))
    try:
        for floatx in ("float16", "float64"):
            keras.config.set_floatx(floatx)
            assert_close(run(layer, X, mask=MASK), expected)
    finally:
        keras.config.set_floatx(before)


def plain_attention(q, k, v, mask):
    return attend(q, k, v, mask=mask)[0]


def test_local_attention_in_several_groups_of_blocks():
    q, k, v = (ops.convert_to_tensor(normal(2, 37, 2, 4, seed=seed)) for seed in range(3))
    mask = np.random.default_rng(0).random((2, 37)) > 0.3
    distance = np.arange(37)[:, None] - np.arange(37)
    for window, causal in itertools.product((1, 2), (False, True)):  # 37 and 19 blocks, in at most 8 groups
        allowed = mask[:, None, :] & (np.abs(distance) < window) & (~np.array(causal) | (distance >= 0))
        local = run(local_attention, plain_attention, q, k, v, window, causal, ops.convert_to_tensor(mask))
        assert_close(local, run(plain_attention, q, k, v, allowed))


def test_local_attention_of_a_window_wider_than_the_sequence_is_full():
    q, k, v = (ops.convert_to_tensor(normal(1, 5, 2, 4, seed=seed)) for seed in range(3))
    assert_close(run(local_attention, plain_attention, q, k, v, window=9), run(plain_attention, q, k, v, None))


# ── errors ──


@pytest.mark.parametrize("options", [{}, {"causal": True, "window": 2, "positions": "rotary"}])
def test_attention_scores_are_returned_in_a_graph_too(options):
    layer = cached_layer(**options)
    y, scores = run(lambda: layer(X, mask=MASK, return_attention_scores=True))
    assert_close(y, run(lambda: layer(X, mask=MASK)))
    assert scores.shape == (BATCH, 4, LENGTH, LENGTH)
    assert_close(array(scores)[np.broadcast_to(MASK[:, None], scores.shape[:3])].sum(-1), 1.0)
    with record_attention() as maps:
        layer(ops.convert_to_tensor(X), mask=MASK)
    assert_close(scores, maps[layer.path][0])
    inputs = keras.Input((None, WIDTH))
    model = keras.Model(inputs, layer(inputs, return_attention_scores=True))
    assert [tuple(output.shape) for output in model.outputs] == [(None, None, WIDTH), (None, 4, None, None)]
    predicted, expected = model.predict(X, verbose=0), layer(X, return_attention_scores=True)
    for one, other in zip(predicted, expected, strict=True):
        assert_close(one, other)


def test_attention_scores_equal_those_of_keras():
    ours, theirs, inputs = MultiHeadAttention(4), keras.layers.MultiHeadAttention(4, WIDTH // 4), (X, X[:, ::-1])
    for layer in (ours, theirs):
        layer.build(X.shape, X.shape)
    ours.set_weights(theirs.get_weights())
    both = run(lambda: [layer(*inputs, return_attention_scores=True) for layer in (ours, theirs)])
    for one, other in zip(*both, strict=True):
        assert_close(one, other)


@pytest.mark.parametrize(
    "make, words",
    [
        (lambda: MultiHeadSelfAttention(4, score="dots"), ["score", "scaled_dot", "'dots'"]),
        (lambda: MultiHeadSelfAttention(4, heads="tall"), ["heads", "narrow", "'tall'"]),
        (lambda: MultiHeadSelfAttention(4, mixing="firm"), ["mixing", "hard", "'firm'"]),
        (lambda: MultiHeadSelfAttention(4, positions="gps"), ["positions", "rotary", "'gps'"]),
        (lambda: MultiHeadSelfAttention(0), ["num_heads", "positive", "0"]),
        (lambda: MultiHeadSelfAttention(4, num_kv_heads=3), ["num_kv_heads", "divide", "3"]),
        (lambda: MultiHeadSelfAttention(4, window=0), ["window", "positive", "0"]),
        (lambda: MultiHeadSelfAttention(4, window=-2), ["window", "positive", "-2"]),
        (lambda: MultiHeadSelfAttention(5)(X), ["num_heads", "divide", "5", "16"]),
        (lambda: MultiHeadSelfAttention(5, heads="narrow")(X), ["num_heads", "divide", "5", "16"]),
        (lambda: MultiHeadAttention(2, heads="narrow")(X, normal(2, 3, 7)), ["num_kv_heads", "divide", "7"]),
        (lambda: MultiHeadSelfAttention(16, positions="rotary")(X), ["rotary", "even head_dim", "1"]),
        (lambda: MultiHeadAttention(4)(X), ["memory", "cache", "neither"]),
        (
            lambda: MultiHeadAttention(4)(X, cache={}, return_attention_scores=True),
            ["return_attention", "cache", "both"],
        ),
        (lambda: MultiHeadAttention(4)(X, X, cache={}), ["memory", "cache", "both"]),
        (lambda: MultiHeadAttention(4).init_cache(BATCH, None, X), ["init_cache", "build"]),
        (lambda: MultiHeadSelfAttention(4).init_cache(2, 4), ["init_cache", "build"]),
        (lambda: MultiHeadSelfAttention(4, causal="no"), ["causal", "False, True", "'no'"]),
        (lambda: MultiHeadSelfAttention(4, attention_dropout=1.5), ["attention_dropout", "less than 1", "1.5"]),
        (lambda: self_attention(X, np.zeros((LENGTH, LENGTH))), ["mask", "boolean", "float64"]),
    ],
)
def test_bad_arguments(make, words):
    with pytest.raises(ValueError) as error:
        make()
    assert all(word in str(error.value) for word in words), str(error.value)


@pytest.mark.parametrize("start", [3, np.int32(3), np.int64(3), "tensor"])
def test_a_cache_that_is_too_short(start):
    layer = cached_layer(causal=True)
    start = ops.convert_to_tensor(3, dtype="int32") if start == "tensor" else start
    with refused("cache"):
        layer(X[:, :2], cache=layer.init_cache(BATCH, 4), cache_position=start)


def test_a_negative_start():
    layer = cached_layer(causal=True)
    with refused("cache"):
        layer(X[:, :2], cache=layer.init_cache(BATCH, 4), cache_position=-1)


@TRACED
def test_a_cache_that_is_too_short_gives_nan_in_a_compiled_program():
    layer = cached_layer(causal=True)
    step = compiled(lambda x, start: layer(x, cache=layer.init_cache(BATCH, 4), cache_position=start)[0])
    assert np.isfinite(array(step(ops.convert_to_tensor(X[:, :2]), ops.convert_to_tensor(2)))).all()
    assert np.isnan(array(step(ops.convert_to_tensor(X[:, :2]), ops.convert_to_tensor(3)))).all()
    single = compiled(lambda x, start: layer(x, cache=layer.init_cache(BATCH, 1), cache_position=start)[0])
    assert np.isnan(array(single(ops.convert_to_tensor(X[:, :1]), ops.convert_to_tensor(1)))).all()


def test_a_start_must_be_an_integer():
    layer = cached_layer(causal=True)
    with refused("cache_position"):
        layer(X[:, :1], cache=layer.init_cache(BATCH, 4), cache_position=1.7)


def test_large_float16_features_do_not_overflow():
    layer = MultiHeadSelfAttention(1, dtype="mixed_float16")
    layer.build((1, 6, 256))
    assert np.isfinite(array(run(layer, 40 * normal(1, 6, 256)))).all()


def test_a_cache_needs_a_causal_layer():
    layer = cached_layer()
    with refused("cache"):
        layer(X[:, :1], cache=layer.init_cache(BATCH, 4))
