import keras
import numpy as np
import pytest
from conftest import array, assert_close, normal
from keras import ops

from keras_tfm.layers import (
    MultiHeadAttention,
    MultiHeadSelfAttention,
    TransformerDecoderBlock,
    TransformerEncoderBlock,
    masks,
)

IDS = np.array([[5, 3, 8, 0, 0], [1, 2, 3, 4, 5]])


def embedder(dim=8):
    return keras.layers.Embedding(10, dim, mask_zero=True)


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
    assert array(masks.causal(3, 3)).tolist() == [[[1, 0, 0], [1, 1, 0], [1, 1, 1]]]
    assert array(masks.causal(1, 4, start=2)).tolist() == [[[1, 1, 1, 0]]]
    assert array(masks.window(3, 4, window=1, start=1)).tolist() == [[[0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]]]
    assert array(masks.padding([[7, 0, 7]])).tolist() == [[[1, 0, 1]]]
    assert array(masks.padding([[7, 0, 7]], pad_id=7)).tolist() == [[[0, 1, 0]]]
    assert array(masks.segments([[1, 2]], [[2, 2, 1]])).tolist() == [[[0, 0, 1], [1, 1, 0]]]
    assert masks.combine(None, None) is None
    per_head = np.array([[[[True, False]], [[False, True]]]])
    assert array(masks.combine([[True, False]], per_head)).tolist() == [[[[1, 0]], [[0, 0]]]]


def test_causal_mask_of_a_cached_step_is_a_row_of_the_full_one():
    full = array(masks.causal(6, 6))
    for start in range(6):
        np.testing.assert_array_equal(array(masks.causal(1, 6, start))[:, 0], full[:, start])


@pytest.mark.parametrize("by_predict", [False, True])
def test_mask_zero_reaches_every_block(by_predict):
    model = encoder_on_ids(*(TransformerEncoderBlock(2, 16, norm_first=first) for first in (True, False, True)))
    assert_padding_changes_nothing(model, by_predict)


# Keras warns that a model within a model drops the mask; blocks inside it and behind it still find it on the tensor.
@pytest.mark.filterwarnings("ignore:Layer 'functional:UserWarning")
@pytest.mark.parametrize("by_predict", [False, True])
def test_mask_zero_passes_through_a_nested_functional_model(by_predict):
    features = keras.Input((None, 8))
    inner = keras.Model(features, TransformerEncoderBlock(2, 16)(TransformerEncoderBlock(2, 16)(features)))
    model = encoder_on_ids(TransformerEncoderBlock(2, 16), inner, TransformerEncoderBlock(2, 16))
    assert_padding_changes_nothing(model, by_predict)


def assert_padding_changes_nothing(model, by_predict):
    run = (lambda ids: model.predict(ids, verbose=0)) if by_predict else model
    padded = array(run(IDS))[0, :3]
    assert_close(padded, array(run(IDS[:1, :3]))[0])
    assert np.abs(padded).max() < 100


@pytest.mark.parametrize("norm", ["layer", "rms"])
@pytest.mark.parametrize("norm_first", [False, True])
def test_no_norm_warns_of_a_mask_that_is_kept(norm, norm_first):  # warnings are errors
    TransformerEncoderBlock(2, 16, norm=norm, norm_first=norm_first)(embedder()(IDS))


def test_masks_survive_saving_and_loading(tmp_path):
    source, target, allowed = (keras.Input((None,), dtype=dtype) for dtype in ("int32", "int32", "bool"))
    memory = TransformerEncoderBlock(2, 16)(embedder()(source))
    outputs = TransformerDecoderBlock(2, 16)(embedder()(target), memory, memory_mask=allowed)
    model = keras.Model([source, target, allowed], outputs)
    inputs = [IDS, IDS[::-1].copy(), np.array([[1, 0, 1, 1, 1]] * 2, bool)]
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    loaded.save(tmp_path / "again.keras")
    expected = model.predict(inputs, verbose=0)
    assert_close(loaded.predict(inputs, verbose=0), expected)
    assert_close(keras.models.load_model(tmp_path / "again.keras").predict(inputs, verbose=0), expected)
    inputs[2] = inputs[2] & (IDS != 0)
    assert_close(loaded.predict(inputs, verbose=0), expected)


def test_mask_survives_all_layers_to_the_output():
    model = encoder_on_ids(TransformerEncoderBlock(2, 16), TransformerEncoderBlock(2, 16))
    pooled = keras.Model(model.input, keras.layers.GlobalAveragePooling1D()(model.output))
    assert_close(pooled(IDS)[:1], pooled(IDS[:1, :3]))


def test_explicit_mask_equals_keras_mask():
    block, x = TransformerEncoderBlock(2, 16), normal(2, 5, 8)
    mask = IDS != 0
    masked = keras.layers.Masking(mask_value=99.0)(np.where(mask[..., None], x, 99.0).astype("float32"))
    by_keras = array(block(masked))[mask]
    assert_close(array(block(x, mask=mask))[mask], by_keras)
    assert_close(array(block(x, mask=mask.astype("int32")))[mask], by_keras)
    assert_close(array(block(x, attention_mask=mask[:, None, :]))[mask], by_keras)
    assert_close(array(block(x, attention_mask=np.repeat(mask[:, None, None, :], 2, axis=1)))[mask], by_keras)


@pytest.mark.parametrize("symbolic", [False, True])
def test_keras_mask_and_explicit_masks_are_anded(symbolic):
    block, embedding = TransformerEncoderBlock(2, 16), embedder()
    allowed = np.tril(np.ones((5, 5), bool))
    second = np.array([[1, 0, 1, 1, 1]] * 2, bool)

    def both(ids, allowed, second):
        return block(embedding(ids), attention_mask=allowed, mask=second)

    call = both
    if symbolic:
        inputs = [
            keras.Input((None,), dtype="int32"),
            keras.Input((5, 5), dtype="bool"),
            keras.Input((5,), dtype="bool"),
        ]
        model = keras.Model(inputs, both(*inputs))
        call = lambda ids, allowed, second: model([ids, np.stack([allowed] * 2), second])  # noqa: E731
    x = array(embedding(IDS))
    valid = (IDS != 0) & second
    expected = block(x, attention_mask=allowed[None] & valid[:, None, :])
    assert_close(array(call(IDS, allowed, second))[valid], array(expected)[valid])


@pytest.mark.parametrize("jit", [False, True])
def test_memory_mask_given_and_attached_are_anded(jit):
    from conftest import compiled

    block, embedding, x = TransformerDecoderBlock(2, 16), embedder(), normal(2, 3, 8)
    block(x, embedding(IDS))
    given = np.array([[1, 0, 1, 1, 1]] * 2, bool)
    function = lambda ids, given: block(x, embedding(ids), memory_mask=given)  # noqa: E731
    actual = (compiled(function) if jit else function)(ops.convert_to_tensor(IDS), ops.convert_to_tensor(given))
    plain_memory = array(embedding(IDS))
    assert_close(actual, block(x, plain_memory, memory_mask=given & (IDS != 0)))
    assert np.abs(array(actual) - array(block(x, plain_memory, memory_mask=given))).max() > 1e-3


def test_source_and_target_of_different_lengths():
    source, target = keras.Input((None,), dtype="int32"), keras.Input((None,), dtype="int32")
    memory = TransformerEncoderBlock(2, 16)(embedder()(source))
    outputs = TransformerDecoderBlock(2, 16)(embedder()(target), memory)
    model = keras.Model([source, target], outputs)
    target_ids = np.array([[4, 5, 6, 7, 8, 9, 1], [3, 2, 0, 0, 0, 0, 0]])
    full = array(model.predict([IDS, target_ids], verbose=0))
    assert full.shape == (2, 7, 8)
    assert_close(full[0], model([IDS[:1, :3], target_ids[:1]])[0])
    assert_close(full[1, :2], model([IDS[1:], target_ids[1:, :2]])[0])


def test_memory_mask_per_query():
    layer, x, memory = MultiHeadAttention(2), normal(1, 3, 8), normal(1, 4, 8, seed=1)
    rows = np.array([[[1, 0, 0, 0], [0, 1, 1, 0], [0, 0, 0, 1]]], bool)
    whole = array(layer(x, memory, memory_mask=rows))
    for i in range(3):
        assert_close(whole[:, i : i + 1], layer(x[:, i : i + 1], memory, memory_mask=rows[:, i]))


def test_segments_of_symbolic_tensors():
    numbers = keras.Input((3,), dtype="int32")
    assert array(keras.Model(numbers, masks.segments(numbers))(np.array([[1, 1, 2]]))).tolist() == [
        [[1, 1, 0], [1, 1, 0], [0, 0, 1]]
    ]


def test_one_mask_for_the_whole_batch():
    x, mask = normal(2, 5, 8), np.array([[True, True, True, False, True]])
    for options in ({}, {"window": 2}):
        block = TransformerDecoderBlock(2, 16, **options)
        full = block(x, mask=mask)
        assert_close(full, block(x, mask=np.repeat(mask, 2, axis=0)))
        assert_close(block(x, mask=mask, cache=block.make_cache(2, 5))[0], full)


def test_stateless_calls_keep_masks():
    layer, x = MultiHeadSelfAttention(2), embedder()(IDS)
    expected, causal = layer(x), masks.causal(5, 5)[0]
    variables = [[v.value for v in vs] for vs in (layer.trainable_variables, layer.non_trainable_variables)]
    assert_close(layer.stateless_call(*variables, x)[0], expected)
    masked, _ = layer.stateless_call(*variables, x, attention_mask=causal)
    assert_close(masked, layer(x, attention_mask=causal))


def test_too_many_arguments_are_not_swallowed():
    with pytest.raises(TypeError):
        TransformerEncoderBlock(2, 16)(normal(2, 5, 8), None, None, None, "more")


def test_masks_may_be_given_by_position():
    block, x, mask = TransformerEncoderBlock(2, 16), normal(2, 5, 8), IDS != 0
    assert_close(block(x, mask), block(x, mask=mask))
    layer, memory = MultiHeadAttention(2), normal(2, 4, 8, seed=1)
    assert_close(layer(x, memory, mask), layer(x, memory, mask=mask))


@pytest.mark.parametrize(
    "name, mask",
    [
        ("attention_mask", np.zeros((2, 5, 5), "float32")),
        ("mask", np.zeros((2, 5), "float32")),
        ("mask", np.ones((2, 5, 5), bool)),
        ("attention_mask", np.ones((2, 5), bool)),
        ("attention_mask", np.ones(5, bool)),
        ("mask", np.ones((2, 4), bool)),
        ("mask", np.ones((3, 5), bool)),
    ],
)
def test_masks_that_would_be_misread_are_refused(name, mask):
    with pytest.raises(ValueError, match=f"`{name}`.*Received"):
        TransformerEncoderBlock(2, 16)(normal(2, 5, 8), **{name: mask})
