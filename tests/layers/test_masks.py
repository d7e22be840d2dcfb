import keras
import numpy as np
import pytest
from conftest import SLOW_OFF_TENSORFLOW, array, assert_close, built, compiled, normal, parametrize_all, run
from keras import ops

from keras_tfm.layers import (
    MultiHeadAttention,
    MultiHeadSelfAttention,
    TransformerDecoderBlock,
    TransformerEncoderBlock,
    masks,
)

IDS = np.array([[5, 3, 8, 0, 0], [1, 2, 3, 4, 5]])
X = normal(2, 5, 8)
SIZES = {"num_heads": 2, "ff_dim": 16}


def embedder():
    return built(keras.layers.Embedding(10, 8, mask_zero=True), IDS)


def looked_up(embedding, ids):
    """Rows of a table, without the mask that the layer attaches."""
    return array(embedding.embeddings)[ids]


def encoder_on_ids(*blocks):
    """Ids → features, through `Embedding(mask_zero=True)` and the blocks; what padding holds is large."""
    ids = keras.Input((None,), dtype="int32")
    embedding = embedder()
    x = embedding(ids)
    for block in blocks:
        x = block(x)
    table = embedding.get_weights()[0]
    table[0] = 1e3
    embedding.set_weights([table])
    return keras.Model(ids, x)


def test_masks_against_written_out_matrices():
    per_head = np.array([[[[True, False]], [[False, True]]]])
    cases = [
        (lambda: masks.causal(3, 3), [[[1, 0, 0], [1, 1, 0], [1, 1, 1]]]),
        (lambda: masks.causal(1, 4, start=2), [[[1, 1, 1, 0]]]),
        (lambda: masks.window(3, 4, window=1, start=1), [[[0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]]]),
        (lambda: masks.padding([[7, 0, 7]]), [[[1, 0, 1]]]),
        (lambda: masks.padding([[7, 0, 7]], pad_id=7), [[[0, 1, 0]]]),
        (lambda: masks.segments([[1, 2]], [[2, 2, 1]]), [[[0, 0, 1], [1, 1, 0]]]),
        (lambda: masks.combine([[True, False]], per_head), [[[[1, 0]], [[0, 0]]]]),
    ]
    outcome = run(lambda: [make() for make, _ in cases])
    assert [array(mask).tolist() for mask in outcome] == [expected for _, expected in cases]
    assert masks.combine(None, None) is None


def test_causal_mask_of_a_cached_step_is_a_row_of_the_full_one():
    full, *rows = run(lambda: [masks.causal(6, 6), *(masks.causal(1, 6, start) for start in range(6))])
    np.testing.assert_array_equal(np.concatenate([array(row) for row in rows], axis=1), array(full))


def test_mask_zero_reaches_every_block():
    model = encoder_on_ids(*(TransformerEncoderBlock(**SIZES, norm_first=first) for first in (True, False, True)))
    assert_padding_changes_nothing(model)


# Keras warns that a model within a model drops the mask; blocks inside it and behind it still find it on the tensor.
@pytest.mark.filterwarnings("ignore:Layer 'functional:UserWarning")
def test_mask_zero_passes_through_a_nested_functional_model():
    features = keras.Input((None, 8))
    inner = keras.Model(
        features,
        TransformerEncoderBlock(**SIZES)(TransformerEncoderBlock(**SIZES)(features)),
    )
    model = encoder_on_ids(TransformerEncoderBlock(**SIZES), inner, TransformerEncoderBlock(**SIZES))
    assert_padding_changes_nothing(model)


def assert_padding_changes_nothing(model):
    padded, short = map(array, run(lambda: (model(IDS), model(IDS[:1, :3]))))
    assert_close(padded[:1, :3], short)
    assert np.abs(short).max() < 100
    assert_close(model.predict(IDS, verbose=0)[:1, :3], short)


@parametrize_all("norm, norm_first", ["layer", "rms"], [False, True])
def test_norms_do_not_warn_about_masks(norm, norm_first):  # warnings are errors
    embedding, block = (
        embedder(),
        built(TransformerEncoderBlock(**SIZES, norm=norm, norm_first=norm_first), X),
    )
    run(lambda: block(embedding(IDS)))


def test_masks_survive_saving_and_loading(tmp_path):
    source, target, allowed = (keras.Input((None,), dtype=dtype) for dtype in ("int32", "int32", "bool"))
    memory = TransformerEncoderBlock(**SIZES)(embedder()(source))
    outputs = TransformerDecoderBlock(**SIZES)(embedder()(target), memory, memory_mask=allowed)
    model = keras.Model([source, target, allowed], outputs)
    inputs = [IDS, IDS[::-1].copy(), np.array([[1, 0, 1, 1, 1]] * 2, bool)]
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    loaded.save(tmp_path / "again.keras")
    again = keras.models.load_model(tmp_path / "again.keras")
    explicit = [*inputs[:2], inputs[2] & (IDS != 0)]
    expected, *others = run(lambda: [model(inputs), loaded(inputs), again(inputs), loaded(explicit)])
    for other in others:
        assert_close(other, expected)


def test_mask_survives_all_layers_to_the_output():
    model = encoder_on_ids(TransformerEncoderBlock(**SIZES), TransformerEncoderBlock(**SIZES))
    pooled = keras.Model(model.input, keras.layers.GlobalAveragePooling1D()(model.output))
    whole, short = run(lambda: (pooled(IDS), pooled(IDS[:1, :3])))
    assert_close(array(whole)[:1], short)


def test_explicit_mask_equals_keras_mask():
    block, mask = built(TransformerEncoderBlock(**SIZES), X), IDS != 0
    masking, marked = keras.layers.Masking(mask_value=99.0), np.where(mask[..., None], X, 99.0).astype("float32")
    options = [
        {"mask": mask},
        {"mask": mask.astype("int32")},
        {"attention_mask": mask[:, None, :]},
        {"attention_mask": np.repeat(mask[:, None, None, :], 2, axis=1)},
    ]
    by_keras, *others = run(lambda: [block(masking(marked)), *(block(X, **option) for option in options)])
    for other in others:
        assert_close(array(other)[mask], array(by_keras)[mask])


def test_keras_mask_and_explicit_masks_are_anded():
    block, embedding = built(TransformerEncoderBlock(**SIZES), X), embedder()
    allowed = np.tril(np.ones((5, 5), bool))
    second = np.array([[1, 0, 1, 1, 1]] * 2, bool)

    def both(ids, allowed, second):
        return block(embedding(ids), attention_mask=allowed, mask=second)

    inputs = keras.Input((None,), dtype="int32"), keras.Input((5, 5), dtype="bool"), keras.Input((5,), dtype="bool")
    model = keras.Model(inputs, both(*inputs))
    valid = (IDS != 0) & second
    x, together = looked_up(embedding, IDS), allowed[None] & valid[:, None, :]
    expected, *others = run(
        lambda: (
            block(x, attention_mask=together),
            both(IDS, allowed[None], second),
            model([IDS, np.stack([allowed] * 2), second]),
        )
    )
    for other in others:
        assert_close(array(other)[valid], array(expected)[valid])


@pytest.mark.parametrize("jit", [pytest.param(False, marks=SLOW_OFF_TENSORFLOW), True])
def test_memory_mask_given_and_attached_are_anded(jit):
    embedding, x = embedder(), normal(2, 3, 8)
    block = built(TransformerDecoderBlock(**SIZES), x, X)
    given = np.array([[1, 0, 1, 1, 1]] * 2, bool)
    function = lambda ids, given: block(x, embedding(ids), memory_mask=given)  # noqa: E731
    actual = (compiled(function) if jit else function)(ops.convert_to_tensor(IDS), ops.convert_to_tensor(given))
    memory = looked_up(embedding, IDS)
    expected, unmasked = run(lambda: [block(x, memory, memory_mask=mask) for mask in (given & (IDS != 0), given)])
    assert_close(actual, expected)
    assert np.abs(array(actual) - array(unmasked)).max() > 1e-3


def test_source_and_target_of_different_lengths():
    source, target = keras.Input((None,), dtype="int32"), keras.Input((None,), dtype="int32")
    memory = TransformerEncoderBlock(**SIZES)(embedder()(source))
    outputs = TransformerDecoderBlock(**SIZES)(embedder()(target), memory)
    model = keras.Model([source, target], outputs)
    target_ids = np.array([[4, 5, 6, 7, 8, 9, 1], [3, 2, 0, 0, 0, 0, 0]])
    cases = [IDS, target_ids], [IDS[:1, :3], target_ids[:1]], [IDS[1:], target_ids[1:, :2]]
    full, first, second = map(array, run(lambda: [model(inputs) for inputs in cases]))
    assert full.shape == (2, 7, 8)
    assert_close(full[:1], first)
    assert_close(full[1:, :2], second)


def test_memory_mask_per_query():
    x, memory = normal(1, 3, 8), normal(1, 4, 8, seed=1)
    layer = built(MultiHeadAttention(2), x, memory)
    rows = np.array([[[1, 0, 0, 0], [0, 1, 1, 0], [0, 0, 0, 1]]], bool)
    one_by_one = run(lambda: [layer(x[:, i : i + 1], memory, memory_mask=rows[:, i]) for i in range(3)])
    assert_close(run(layer, x, memory, memory_mask=rows), np.concatenate([array(y) for y in one_by_one], axis=1))


def test_segments_of_symbolic_tensors():
    numbers = keras.Input((3,), dtype="int32")
    assert array(keras.Model(numbers, masks.segments(numbers))(np.array([[1, 1, 2]]))).tolist() == [
        [[1, 1, 0], [1, 1, 0], [0, 0, 1]]
    ]


def test_one_mask_for_the_whole_batch():
    mask = np.array([[True, True, True, False, True]])

    def outputs(block):
        cached, _ = block(X, mask=mask, cache=block.init_cache(2, 5))
        return block(X, mask=mask), block(X, mask=np.repeat(mask, 2, axis=0)), cached

    for options in ({}, {"window": 2}):
        full, *others = run(outputs, built(TransformerDecoderBlock(**SIZES, **options), X))
        for other in others:
            assert_close(other, full)


def test_tokens_go_first_and_back():
    mask = np.random.default_rng(0).random((20, 7)) < np.linspace(0, 1, 20)[:, None]  # from no tokens to no padding
    first, back = (array(x).astype(int) for x in run(masks.tokens_first, mask))
    in_front = array(run(masks.in_front, mask)).astype(bool)
    for row, tokens in enumerate(mask):
        assert first[row].tolist() == [*np.flatnonzero(tokens), *np.flatnonzero(~tokens)]
        assert first[row][back[row]].tolist() == list(range(7))
        assert in_front[row].tolist() == tokens[first[row]].tolist()


def test_stateless_calls_keep_masks():
    layer, embedding = built(MultiHeadSelfAttention(2), X), embedder()
    variables = [[v.value for v in vs] for vs in (layer.trainable_variables, layer.non_trainable_variables)]

    def outputs():
        x = embedding(IDS)
        for options in ({}, {"attention_mask": masks.causal(5, 5)}):
            yield layer(x, **options), layer.stateless_call(*variables, x, **options)[0]

    for expected, stateless in run(lambda: [*outputs()]):
        assert_close(stateless, expected)


def test_too_many_arguments_are_not_swallowed():
    with pytest.raises(TypeError):
        TransformerEncoderBlock(**SIZES)(normal(2, 5, 8), None, None, None, "more")


def test_masks_are_given_by_name():
    block, mask, memory = built(TransformerEncoderBlock(**SIZES), X), IDS != 0, normal(2, 4, 8, seed=1)
    layer = built(MultiHeadAttention(2), X, memory)
    for call in (lambda: block(X, mask), lambda: layer(X, memory, mask)):
        with pytest.raises(TypeError, match="positional"):
            call()


@pytest.mark.parametrize(
    "name, mask",
    [
        ("attention_mask", np.zeros((2, 5, 5), "float32")),
        ("mask", np.zeros((2, 5), "float32")),
        ("mask", np.ones((2, 5, 5), bool)),
        ("attention_mask", np.ones((2, 5), bool)),
        ("attention_mask", np.ones((5, 5), bool)),  # could be (query, key), or (batch, length)
        ("attention_mask", np.ones(5, bool)),
        ("mask", np.ones((2, 4), bool)),
        ("mask", np.ones((3, 5), bool)),
    ],
)
def test_masks_that_would_be_misread_are_refused(name, mask):
    with pytest.raises(ValueError, match=f"`{name}`.*Received"):
        TransformerEncoderBlock(**SIZES)(normal(2, 5, 8), **{name: mask})
