import inspect
import json

import keras
import numpy as np
import pytest
from conftest import BACKEND, IN_TENSORFLOW, SLOW_OFF_JAX, array, assert_close, once, refused, run, spread
from keras import ops
from test_encoder_decoder import KINDS

from keras_tfm import models
from keras_tfm.decoding import beam_search
from keras_tfm.layers.attention import HEADS
from keras_tfm.models import decoder_lm, encoder_classifier, loading, transformer

SIZES = {"num_layers": 2, "model_dim": 16, "num_heads": 2, "ff_dim": 32}
SOURCE = np.array([[5, 6, 7, 8, 2, 0], [9, 8, 2, 0, 0, 0]])
TARGET = np.array([[1, 4, 5, 6, 7], [1, 9, 4, 0, 0]])
IDS = {"source": SOURCE, "target": TARGET}


BUILDS = {
    "transformer": lambda **options: transformer(10, **SIZES, **options),
    "encoder_classifier": lambda **options: encoder_classifier(10, 3, **SIZES, **options),
    "decoder_lm": lambda **options: decoder_lm(10, **SIZES, **options),
}


def policies(model):
    return {layer.path: layer.dtype_policy.name for layer in model._flatten_layers()}


@pytest.mark.parametrize("builder", BUILDS)
def test_precision_and_name_reach_every_layer_and_are_saved(builder, tmp_path):
    options = {"norm_first": True, "positions_combine": "concat", "name": "mine"}
    given = BUILDS[builder](dtype="mixed_bfloat16", **options)
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        model = BUILDS[builder](**options)
    finally:
        keras.config.set_dtype_policy("float32")
    expected = policies(model)
    assert model.name == "mine" and expected["mine"] == "mixed_bfloat16" and policies(given) == expected
    model.save(tmp_path / "model.keras")
    for twin in (keras.models.load_model(tmp_path / "model.keras"), type(model).from_config(model.get_config())):
        assert twin.name == "mine" and policies(twin) == expected


@pytest.mark.slow
@once
@pytest.mark.usefixtures("little_garbage")
def test_no_more_is_built_than_a_file_holds(tmp_path):
    """Every model fits into its own file, quantized or not, and none with a size that is too large."""
    built = [build(100) for build in KINDS.values()] + [build() for build in BUILDS.values()]
    built += [models.rnn(100, cell="rnn", bidirectional_layers=1, num_layers=2, model_dim=8, units=8)]
    built += [build(100, num_layers=1, units=8, kernel_size=2) for build in (models.conv, models.bytenet)]
    built += [transformer(10, **SIZES, heads=heads, positions="learned", max_length=99) for heads in HEADS]
    sizes = "vocab_size num_classes num_layers model_dim ff_dim units kernel_size dilations"
    for model in built:
        held = len(model.weights), 4 * model.count_params()
        loading.check_capacity(model.arguments, *held)
        for name in {*sizes.split()} & {*model.arguments}:
            with pytest.raises(ValueError, match="its configuration describes .* which its .* bytes cannot hold"):
                loading.check_capacity(model.arguments | {name: 10**9}, *held)
    for huge in ({"heads": "wide", "num_heads": 10**9}, {"positions": "learned", "max_length": 10**9}):
        with pytest.raises(ValueError, match="cannot hold"):
            loading.check_capacity(model.arguments | huge, *held)
    model = transformer(10, **SIZES | {"num_layers": 1})
    model.quantize("int4")
    model.save(tmp_path / "model.keras")
    assert loading.load_keras(tmp_path / "model.keras").quantization


@pytest.mark.parametrize("kind", [*KINDS, *BUILDS][1:])
def test_every_option_is_an_attribute_and_in_the_config(kind):
    model = KINDS[kind](10) if kind in KINDS and kind not in BUILDS else BUILDS[kind]()
    config, stack = model.get_config(), getattr(model, "encoder", None) or model.decoder
    for name, value in stack.get_options().items():
        assert getattr(stack, name) == value
        if name not in ("units", "summary") and (kind, name) != ("transformer", "causal"):  # which the model decides
            assert getattr(model, name) == config[name] == value
    assert {*inspect.signature(type(model).__init__).parameters} - {"self", "options"} <= {*config}
    assert (model.dropout, model.model_dim) == (0.1, 16)
    assert type(model).from_config(config).get_config() == config


def test_a_float16_model_scales_its_loss():
    model = decoder_lm(10, dtype="mixed_float16", **SIZES)
    model.compile("adam", "mse")
    assert isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer)


def test_metadata_travels_with_the_model(tmp_path):
    model = decoder_lm(10, **SIZES)
    assert model.metadata == {}
    model.metadata = {"tokenizers": ["a1"], "step": 1200}
    model.metadata["step"] += 1
    model.save(tmp_path / "model.keras")
    for twin in (keras.models.load_model(tmp_path / "model.keras"), type(model).from_config(model.get_config())):
        assert twin.metadata == {"tokenizers": ["a1"], "step": 1201}
    model.metadata["model"] = object()
    with refused("metadata"):
        model.get_config()


@pytest.mark.parametrize(
    "kind", ["transformer", *[pytest.param(kind, marks=SLOW_OFF_JAX) for kind in ("gnmt", "conv")]]
)
def test_a_model_is_loaded_without_initializing_it(kind, tmp_path):
    model = KINDS[kind](13)
    model.save(tmp_path / "model.keras")
    compiled = []
    if BACKEND == "jax":
        from jax import monitoring

        keras.random.uniform((5, 13), seed=1)  # imports, caches and the like
        monitoring.register_event_duration_secs_listener(lambda event, _, **details: compiled.append((event, details)))
    loaded = loading.load_keras(tmp_path / "model.keras")
    assert not [details for event, details in compiled if event.endswith("backend_compile_duration")]
    for weight, wanted in zip(loaded.weights, model.weights, strict=True):
        np.testing.assert_array_equal(array(weight), array(wanted))
    assert loaded.get_config() == model.get_config()
    # a copy of it is one to train
    for copy in (type(loaded).from_config(loaded.get_config()), keras.models.clone_model(loaded)):
        assert all(array(weight).std() > 0 for weight in copy.weights if "kernel" in weight.path)
        assert array(copy.get_layer("embedding").embeddings).std() > 0


def answers(model):
    """Logits of a model, and what it decodes."""
    return model(IDS), beam_search(model.prefill, model.step, SOURCE, 3, num_beams=2)[0]


@pytest.mark.slow
@pytest.mark.parametrize(
    "mode, tied_output", [("int4", True), ("int8", False)] + [("int8", True)] * (BACKEND == "tensorflow")
)
@pytest.mark.usefixtures("little_garbage")
def test_quantized_models_save_load_and_decode(mode, tied_output, tmp_path):
    model = spread(transformer(10, **{**SIZES, "num_layers": 1}, tied_output=tied_output))
    before = array(run(model, IDS))
    model.quantize(mode)
    expected, outcome = map(array, run(answers, model))
    assert 0 < np.abs(expected - before).max() < {"int8": 0.1, "int4": 1.0}[mode]
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    for actual, wanted in zip(run(answers, loaded), (expected, outcome), strict=True):
        np.testing.assert_array_equal(array(actual), wanted)


def test_quantization_that_cannot_be_saved_is_refused():
    model = decoder_lm(10, **SIZES)
    with refused("mode"):
        model.quantize("float8")
    with refused("filters"):
        model.quantize("int8", filters="decoder")


@pytest.mark.parametrize("builder", BUILDS)
def test_models_are_ordinary_keras_models(builder, tmp_path):
    model, lines = spread(BUILDS[builder]()), []
    model.summary(print_fn=lines.append)
    stack = "decoder" if builder == "decoder_lm" else "encoder"
    assert stack in "".join(lines) and model.get_layer(stack) is getattr(model, stack)
    inputs = IDS if builder == "transformer" else SOURCE
    clone = keras.models.clone_model(model)  # a plain functional model: Keras calls no constructor but its own
    clone.set_weights(model.get_weights())
    model.metadata = {"step": 3}
    copy = type(model).from_config(model.get_config())
    copy.set_weights(model.get_weights())
    assert copy.metadata == model.metadata and type(copy) is type(model)
    expected, *others = run(lambda: [one(inputs) for one in (model, clone, copy)])
    for other in others:
        assert_close(other, expected)
    json.dumps(model.get_config())


def test_keras_keeps_track_of_what_is_no_tensor():
    model, dense = decoder_lm(10, **SIZES), keras.layers.Dense(2)
    dense.build((None, 3))
    number, state = len(model.weights), {"weights": [ops.ones(2), ops.ones(3)]}
    model.state = state
    assert model.state is state and len(model.weights) == number
    model.extra = {"layers": [dense]}
    assert len(model.weights) == number + 2
    model.others = {"tensors": [ops.ones(2)], "variables": [keras.Variable(ops.ones(2))]}
    assert len(model.weights) == number + 3


@pytest.mark.slow
@IN_TENSORFLOW
def test_keras_exports_the_models(tmp_path):
    import tensorflow as tf

    model = spread(transformer(10, **SIZES))
    model.export(tmp_path / "model", verbose=False)
    loaded = tf.saved_model.load(tmp_path / "model")  # which must outlive the call
    assert_close(loaded.serve({name: tf.constant(x, "int32") for name, x in IDS.items()}), model(IDS))
