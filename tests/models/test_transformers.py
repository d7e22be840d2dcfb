import functools

import keras
import numpy as np
import pytest
from conftest import (
    SLOW_OFF_TENSORFLOW,
    SLOW_ON_TENSORFLOW,
    TOLERANCE,
    array,
    assert_close,
    compiled,
    eagerly,
    once,
    refused,
    run,
    slow_on_tensorflow,
    spread,
)

from keras_tfm import ops
from keras_tfm.decoding import greedy
from keras_tfm.layers.positions import ENCODINGS
from keras_tfm.models import (
    DecoderLM,
    EncoderClassifier,
    TokenEmbedding,
    Transformer,
    decoder_lm,
    encoder_classifier,
    loading,
    transformer,
)
from keras_tfm.ops.private import get_keras_mask
from keras_tfm.runtimes import programs

SIZES = {"num_layers": 2, "model_dim": 16, "num_heads": 2, "ff_dim": 32}
SOURCE = np.array([[5, 6, 7, 8, 2, 0], [9, 8, 2, 0, 0, 0]])
TARGET = np.array([[1, 4, 5, 6, 7], [1, 9, 4, 0, 0]])


def ids(source=SOURCE, target=TARGET):
    return {"source": source, "target": target}


POSITIONS = ["sinusoidal", "learned", "rotary", "relative", "alibi", None]


@pytest.mark.parametrize(
    "positions, dtype",
    [
        ("rotary", "float32"),
        ("learned", "mixed_bfloat16"),
        *(
            pytest.param(*case, marks=SLOW_OFF_TENSORFLOW)  # JAX runs the others in test_stacks.py
            for case in [*((kind, "float32") for kind in POSITIONS if kind != "rotary"), ("learned", "mixed_float16")]
        ),
    ],
)
def test_steps_equal_the_full_pass(positions, dtype):
    keras.config.set_dtype_policy(dtype)
    try:
        model = spread(
            transformer(10, positions=positions, norm_first=True, max_length=8, **{**SIZES, "num_layers": 1})
        )

        def by_steps():
            cache = model.prefill(ops.convert_to_tensor(SOURCE), 5)
            logits, cache = model.step(ops.convert_to_tensor(TARGET[:, :3]), 0, cache)
            steps = [logits]
            for t in (3, 4):
                logits, cache = model.step(ops.convert_to_tensor(TARGET[:, t : t + 1]), t, cache)
                steps.append(logits)
            return ops.concatenate(steps, axis=1)

        full, steps = map(array, run(lambda: (model(ids()), by_steps())))
    finally:
        keras.config.set_dtype_policy("float32")
    seen = TARGET != 0
    assert_close(steps[seen], full[seen], 3 * TOLERANCE[dtype])


def test_a_prompt_is_read_at_once_as_if_token_by_token(monkeypatch):
    model, widths = spread(transformer(10, positions="rotary", **SIZES)), []
    call = type(model.decoder).call

    @functools.wraps(call)
    def counted(self, inputs, *args, **kwargs):
        widths.append(inputs.shape[1])
        return call(self, inputs, *args, **kwargs)

    monkeypatch.setattr(type(model.decoder), "call", counted)

    def logits():
        at_once, tokens = model.prefill(SOURCE, 5, TARGET[:, :4]), TARGET[:, 4:]
        by_token = model.prefill(SOURCE, 5)
        for t in range(4):
            _, by_token = model.step(TARGET[:, t : t + 1], t, by_token)
        return model.step(tokens, 4, at_once)[0], model.step(tokens, 4, by_token)[0]

    assert_close(*run(logits))
    assert widths[:2] == [4, 1]


@pytest.mark.parametrize("dtype", ["mixed_bfloat16", pytest.param("mixed_float16", marks=SLOW_ON_TENSORFLOW)])
def test_a_language_model_in_mixed_precision_writes_what_the_full_pass_expects(dtype):
    model = spread(decoder_lm(10, positions="rotary", heads="narrow", dtype=dtype, **SIZES))
    search = programs.compiled(lambda rows, size: greedy(model.prefill, model.step, rows, size), model.variables)
    written = array(search(np.zeros((2, 1), "int32"), 5)).astype(int)
    full = array(run(model, np.pad(written[:, :-1], ((0, 0), (1, 0)), constant_values=1)))
    of_written = np.take_along_axis(full, written[..., None], axis=-1)[..., 0]
    assert (of_written >= full[:, :, 2:].max(-1) - 4 * TOLERANCE[dtype])[written > 0].all() and (written > 0).any()


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"positions_in": "every_layer", "num_layers": 2}, marks=SLOW_OFF_TENSORFLOW),
        pytest.param({"positions_combine": "concat"}, marks=SLOW_OFF_TENSORFLOW),
        pytest.param({"target_vocab_size": 12}, marks=SLOW_OFF_TENSORFLOW),
        {"positions": "learned", "positions_in": "every_layer", "positions_combine": "concat", "max_length": 6},
        {"num_decoder_layers": 1, "norm": "rms", "norm_first": True, "activation": "swiglu", "window": 3},
        {"score": "additive", "heads": "wide", "num_kv_heads": 1, "tied_output": False},
        {"target_vocab_size": 12, "tied_output": False, "mixing": "hard"},
        {
            "use_bias": False,
            "kernel_initializer": keras.initializers.Orthogonal(),
            "activation": keras.activations.mish,
        },
    ],
)
def test_every_option_decodes_saves_and_loads(options, tmp_path):
    model = spread(transformer(10, **{**SIZES, "num_layers": 1, **options}))
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")

    def outputs():
        return model(ids()), loaded(ids()), loaded.step(TARGET[:, :3], 0, loaded.prefill(SOURCE, 5))[0]

    expected, full, first = map(array, run(outputs))
    assert expected.shape == (2, 5, options.get("target_vocab_size", 10))
    assert_close(full, expected)
    assert_close(first, expected[:, :3])


@once
def test_options_override_the_size_and_the_size_the_defaults():
    model = transformer(8000, size="tiny", num_layers=2)
    assert len(model.encoder.blocks) == len(model.decoder.blocks) == 2
    assert model.source_embedding.output_dim == model.arguments["model_dim"] == 128
    deep = encoder_classifier(10, 3, size="deep", model_dim=16)  # without the option for a decoder
    assert len(deep.encoder.blocks) == 12 and deep.source_embedding.output_dim == 16
    with refused("size"):
        transformer(10, size="huge")


def test_models_have_only_the_methods_that_apply():
    assert isinstance(transformer(10, **SIZES), Transformer)
    classifier, lm = encoder_classifier(10, 3, **SIZES), decoder_lm(10, **SIZES)
    assert isinstance(classifier, EncoderClassifier) and not hasattr(classifier, "prefill")
    assert isinstance(lm, DecoderLM) and not hasattr(lm, "step_and_attention")


@pytest.mark.parametrize("build", [transformer, encoder_classifier, decoder_lm])
def test_sources_without_padding_need_no_mask(build):
    model, ids = spread(build(10, 3, **SIZES) if build is encoder_classifier else build(10, **SIZES)), SOURCE[:, :3]
    assert_close(*run(lambda: [model.encode(ids, padded=padded) for padded in (False, True)]))
    unmasked, masked = map(array, run(lambda: [model.encode(SOURCE[1:], padded=padded) for padded in (False, True)]))
    assert np.abs(unmasked - masked).max() > 1e-3
    if build is transformer:

        def by_caches():
            caches = [model.prefill(ids, 4, padded=padded) for padded in (False, True)]
            assert ["mask" in cache[0]["memory"] for cache in caches] == [False, True]
            return [model.step(TARGET[:, :2], 0, cache)[0] for cache in caches]

        assert_close(*run(by_caches))


def test_a_step_beyond_the_cache_is_refused():
    model = transformer(10, **SIZES)
    cache = run(model.prefill, SOURCE, 2)
    with refused("cache"):
        model.step(TARGET[:, :1], 2, cache)
    assert np.isfinite(array(run(lambda: model.step(TARGET[:, :1], 1, cache)[0]))).all()


def test_neither_padding_nor_the_future_changes_anything():
    model = spread(transformer(10, **SIZES))
    changed = TARGET.copy()
    changed[0, 3:] = 9
    cases = ids(), ids(SOURCE[1:, :3], TARGET[1:, :3]), ids(target=changed)
    expected, short, other_future = map(array, run(lambda: [model(case) for case in cases]))
    assert_close(expected[1:, :3], short)
    np.testing.assert_array_equal(expected[0, :3], other_future[0, :3])
    assert np.abs(expected[0, 3:] - other_future[0, 3:]).max() > 1e-3


@pytest.mark.parametrize(
    "positions",
    ["learned", "rotary", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("relative", "alibi", None))],
)
def test_packed_equals_unpacked(positions):
    options = {**SIZES, "positions": positions, "max_length": 8}
    plain, packed = spread(transformer(10, **options)), transformer(10, packed=True, **options)
    packed.set_weights(plain.get_weights())
    inputs = {
        "source": np.array([[5, 6, 7, 8, 2, 9, 8, 2, 0]]),
        "target": np.array([[1, 4, 5, 6, 7, 1, 9, 4]]),
        "source_segments": np.array([[1, 1, 1, 1, 1, 2, 2, 2, 0]]),
        "target_segments": np.array([[1, 1, 1, 1, 1, 2, 2, 2]]),
        "source_positions": np.array([[0, 1, 2, 3, 4, 0, 1, 2, 0]]),
        "target_positions": np.array([[0, 1, 2, 3, 4, 0, 1, 2]]),
    }
    expected, actual = map(array, run(lambda: (plain(ids()), packed(inputs))))
    assert_close(actual[0, :5], expected[0])
    assert_close(actual[0, 5:], expected[1, :3])


@once
def test_number_of_parameters_of_the_tiny_size():
    assert transformer(10_000, size="tiny").count_params() == 2_605_056  # 2.6 M


@slow_on_tensorflow
def test_embeddings_may_be_layers_of_your_own(tmp_path):
    width = SIZES["model_dim"]
    frozen = keras.layers.Embedding(10, width, mask_zero=True, trainable=False)
    models = {
        "one for both": transformer(10, **SIZES, source_embedding=frozen, tied_output=False),
        "both": transformer(
            10,
            **SIZES,
            source_embedding=keras.layers.Embedding(10, width, mask_zero=True),
            target_embedding=TokenEmbedding(12, width, scaled=False),
            target_vocab_size=12,
        ),
        "classifier": encoder_classifier(10, 3, **SIZES, source_embedding=TokenEmbedding(10, width)),
        "language model": decoder_lm(10, **SIZES, target_embedding=TokenEmbedding(10, width, tie_weights=False)),
    }
    assert models["one for both"].target_embedding is frozen and not frozen.trainable_weights
    for name, model in models.items():
        spread(model).save(tmp_path / "model.keras")
        inputs, twins = ids() if "both" in name else SOURCE, [loading.load_keras(tmp_path / "model.keras")]
        twins.append(type(model).from_config(model.get_config()))
        twins[1].set_weights(model.get_weights())
        expected, *others = run(lambda models=(model, *twins), inputs=inputs: [one(inputs) for one in models])
        for twin, other in zip(twins, others, strict=True):
            assert_close(other, expected)
            assert len(twin.weights) == len(model.weights)
            for side in ("source_embedding", "target_embedding"):
                layers = [getattr(one, side, None) for one in (twin, model)]
                assert layers == [None, None] or layers[0].get_config() == layers[1].get_config()
    for name in ("one for both", "both"):
        model = models[name]
        steps = run(lambda model=model: model.step(TARGET[:, :3], 0, model.prefill(SOURCE, 5))[0])
        assert_close(steps, array(run(model, ids()))[:, :3])


@once
def test_embeddings_are_shared_and_tied_as_configured():
    count = lambda **options: transformer(100, **options, **SIZES).count_params()  # noqa: E731
    assert count(tied_output=False) - count() == 100 * 16
    assert count(target_vocab_size=50) - count() == 50 * 16


def test_language_model_steps_equal_the_full_pass():
    model = spread(decoder_lm(10, positions="rotary", **SIZES))
    full = array(run(model, TARGET[:1]))
    cache, steps = run(model.prefill, TARGET[:1], 5).cache, []
    step = compiled(model.step)
    for t in range(5):
        logits, cache = step(ops.convert_to_tensor(TARGET[:1, t : t + 1]), ops.convert_to_tensor(t), cache)
        steps.append(array(logits))
    assert_close(np.concatenate(steps, axis=1), full)


@pytest.mark.parametrize("build", [transformer, decoder_lm])
def test_losses_and_metrics_of_keras_leave_padding_out(build):
    labels = np.where(TARGET > 0, np.roll(TARGET, -1, axis=1), 0)
    labels[[0, 1], [4, 2]] = 2
    model = spread(build(10, **{**SIZES, "num_layers": 1}))
    ids = keras.Input((None,), dtype="int32")
    by_hand = keras.Model(ids, keras.layers.Dense(10)(keras.layers.Embedding(10, 8, mask_zero=True)(ids)))
    for one in (by_hand, model):
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        one.compile("sgd", loss, weighted_metrics=["sparse_categorical_accuracy"])
        outcome = []
        for columns in (0, 3):
            padded = [np.pad(x, [(0, 0), (0, columns)]) for x in (SOURCE, TARGET, labels)]
            inputs = dict(zip(["source", "target"], padded, strict=False)) if one.inputs[1:] else padded[1]
            with eagerly():
                outcome.append(one.evaluate(inputs, padded[2], verbose=0))
        np.testing.assert_allclose(*outcome, rtol=1e-5)


def test_logits_of_a_step_carry_no_mask():
    model, carry = transformer(10, **{**SIZES, "num_layers": 1}), []

    def logits():
        outcome = model.step(TARGET[:, :2], 0, model.prefill(SOURCE, 5))[0], model(ids())
        carry.extend(get_keras_mask(one) is not None for one in outcome)
        return outcome

    run(logits)
    assert carry == [False, True]


@pytest.mark.parametrize("pooling", ["mean", "max", "first"])
def test_classifier_ignores_padding(pooling):
    model = spread(encoder_classifier(10, 3, pooling=pooling, **SIZES))
    empty = array(run(model, np.zeros((1, 4), "int32")))
    assert np.abs(empty).max() < 100  # neither NaN nor a number that stands for minus infinity
    whole, short = map(array, run(lambda: (model(SOURCE), model(SOURCE[1:, :3]))))
    assert_close(whole[1:], short)


@pytest.mark.parametrize("pooling", ["mean", "max", "first"])
def test_an_empty_text_has_features_of_zero_and_harms_no_weight(pooling):
    model = spread(encoder_classifier(10, 3, pooling=pooling, **{**SIZES, "num_layers": 1}))
    texts = np.concatenate([SOURCE, np.zeros((1, 6), int)])
    features = array(run(model.encode, texts))
    assert (features[2] == 0).all() and (np.abs(features[:2]).max(axis=1) > 0).all()
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    with eagerly():
        losses = model.fit(texts, np.arange(3), verbose=0).history["loss"]
    assert np.isfinite(losses).all() and all(np.isfinite(weight).all() for weight in model.get_weights())


@pytest.mark.parametrize(
    "make, words",
    [
        (lambda: transformer(0, **SIZES), ["vocab_size", "positive", "0"]),
        (lambda: transformer(10, positions="gps", **SIZES), ["positions", *ENCODINGS, "'gps'"]),
        (lambda: transformer(10, positions_in="attic", **SIZES), ["positions_in", "every_layer", "'attic'"]),
        (lambda: transformer(10, positions_combine="mix", **SIZES), ["combine", "concat", "'mix'"]),
        (lambda: transformer(10, dropout=2, **SIZES), ["dropout", "less than 1", "2"]),
        (lambda: transformer(10, **{**SIZES, "num_layers": 0}), ["num_layers", "positive", "0"]),
        (lambda: encoder_classifier(10, 3, pooling="median", **SIZES), ["pooling", "mean", "'median'"]),
        (lambda: transformer(10, **SIZES, source_embedding="glove"), ["`source_embedding`", "Keras layer", "'glove'"]),
        (
            lambda: transformer(10, **SIZES, target_embedding=TokenEmbedding(11, 16)),
            ["`target_embedding`", "'input_dim': 10", "'output_dim': 16"],
        ),
        (
            lambda: transformer(10, **SIZES, source_embedding=keras.layers.Embedding(10, 16)),
            ["`source_embedding`", "mask_zero=True"],
        ),
        (
            lambda: decoder_lm(10, **SIZES, target_embedding=keras.layers.Embedding(10, 16, mask_zero=True)),
            ["`tied_output`", "TokenEmbedding", "True"],
        ),
    ],
)
def test_bad_arguments(make, words):
    with pytest.raises(ValueError) as error:
        make()
    assert all(word in str(error.value) for word in words), str(error.value)
