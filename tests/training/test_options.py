import dataclasses
import inspect
import pathlib
import re
import subprocess
import sys

import pytest
from conftest import once

from keras_tfm.models.sizes import MODELS, PRESETS
from keras_tfm.training.options import CHANGEABLE, RECIPES, Recipe, resolve

pytestmark = once
FIELDS = {field.name: field for field in dataclasses.fields(Recipe)}
MODEL = {name: field for name, field in FIELDS.items() if field.metadata["group"] == "model"}
MODEL = {name: field for name, field in MODEL.items() if name not in ("model", "preset")}


def parameters(model="transformer"):
    """Arguments of a kind of model and of its layers: name → default."""
    from keras_tfm import layers
    from keras_tfm.models import ByteNet, ConvS2S, Recurrent, Transformer, byte_net, conv_s2s

    attention = layers.MultiHeadAttention, layers.MultiHeadSelfAttention
    makers = {
        "transformer": (*attention, layers.TransformerEncoderBlock, layers.TransformerEncoder, Transformer),
        "conv": (conv_s2s.ConvStack, ConvS2S),
        "bytenet": (byte_net.ByteNetStack, ByteNet),
    }.get(model, (Recurrent,))
    return {name: p.default for maker in makers for name, p in inspect.signature(maker).parameters.items()}


@pytest.mark.parametrize("model", MODELS)
def test_model_options_are_the_arguments_of_the_builder_and_of_its_layers(model):
    others = {"name", "dtype", "options", "kwargs", "vocab_size", "target_vocab_size", "causal"}
    others |= {"attention", "num_heads", "score"} if model == "rnn" else set()
    assert {*parameters(model)} - others == {*MODELS[model].options}
    assert {*MODELS[model].options} <= {*MODEL} and {"tiny", "small", "base"} <= {*MODELS[model].presets}


def test_each_model_option_is_one_of_some_model():
    assert {*MODEL} == {name for model in MODELS.values() for name in model.options}


def test_a_recipe_for_another_kind_of_model_leaves_out_what_it_does_not_have():
    recipe = resolve("small_corpus", model="conv", kernel_size=5)
    assert (recipe.norm_first, recipe.dropout, recipe.r_drop, recipe.clipnorm) == (None, 0.2, 3.0, 1.0)
    assert recipe.model_options == {"dropout": 0.2, "kernel_size": 5, "max_length": 512}
    assert resolve("small_corpus", model="rnn", dropout=0.5, clipnorm=2.0).dropout == 0.5
    assert "max_length" not in resolve("default", model="rnn").model_options


def test_recipes_are_pre_norm_but_for_that_of_the_paper():
    forms = {name: recipe.norm_first for name, recipe in RECIPES.items()}
    assert forms == {"default": True, "quick": True, "small_corpus": True, "paper": None}
    assert resolve("default", norm_first=False).model_options["norm_first"] is False


def test_a_quick_run_is_about_as_long_as_the_demo():
    makefile = (pathlib.Path(__file__).parents[2] / "Makefile").read_text()
    demo = {name: int(value) for name, value in re.findall(r"--(steps|batch_tokens|num_layers) (\d+)", makefile)}
    assert RECIPES["quick"].steps < 1.2 * demo["steps"]
    assert (RECIPES["quick"].batch_tokens, RECIPES["quick"].num_layers) == (demo["batch_tokens"], demo["num_layers"])


def test_defaults_in_help_texts_are_those_of_the_model():
    for name, field in MODEL.items():
        model = next(model for model in MODELS if name in MODELS[model].options)
        default = parameters(model)[name]
        if name == "attention":
            continue  # None for `rnn`, and set by the other builders
        said = re.search(r"\(default: (.*)\)$", field.metadata["help"])
        if field.default is not None:
            assert field.default == default, name
        elif said:
            assert said[1] == {True: "yes"}.get(default, str(default)), name
        else:
            assert not default or name in PRESETS["tiny"], name


def test_words_are_those_of_the_layers():
    from keras_tfm.layers import SCORES
    from keras_tfm.layers.attention import HEADS
    from keras_tfm.layers.blocks import GATES, NORMS
    from keras_tfm.layers.positions import ENCODINGS, SCHEMES
    from keras_tfm.layers.scores import MIXINGS

    words = {"score": SCORES, "heads": HEADS, "mixing": MIXINGS, "norm": NORMS}
    words["positions"] = [*ENCODINGS, *(scheme for scheme in SCHEMES if scheme)]
    for name, choices in words.items():
        assert {*MODEL[name].metadata["allowed"]} == {*choices}, name
    assert all(gate in MODEL["activation"].metadata["help"] for gate in GATES)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"steps": 0}, "`steps` must be a positive integer. Received: steps=0"),
        ({"num_layers": 2.0}, "`num_layers` must be a positive integer. Received: num_layers=2.0"),
        ({"dropout": 1}, "`dropout` must be at least 0 and less than 1. Received: dropout=1"),
        ({"learning_rate": 0}, "`learning_rate` must be a positive number"),
        ({"r_drop": float("nan")}, "`r_drop` must be a number of at least 0"),
        ({"seed": -1}, "`seed` must be an integer of at least 0"),
        ({"packed": 1}, "`packed` must be True or False"),
        ({"activation": 3}, "`activation` must be a string"),
        ({"schedule": "steep"}, r"`schedule` must be one of \['cosine', 'inverse_sqrt'\]. Received: schedule='steep'"),
        ({"tokenizer": None}, "`tokenizer` must be one of"),
        ({"average": None}, "`average` must be a positive integer. Received: average=None"),
        ({"sampling": 0.1, "tokenizer": "char"}, "`sampling` must be 0 unless .*, not char. Received: sampling=0.1"),
        (
            {"model": "rnn", "norm_first": True},
            "`norm_first` must be left out for model='rnn', which has no such option",
        ),
        ({"units": 8}, "`units` must be left out for model='transformer', which has no such option. Received: units=8"),
        ({"model": "gnmt", "preset": "deep"}, r"`preset` must be one of \['tiny', 'small', 'base'\]"),
        ({"model": "lstm"}, "`model` must be one of .* Received: model='lstm'"),
        ({"layers": 3}, "`option` must be one of .* Received: option='layers'"),
    ],
)
def test_wrong_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        resolve("default", **options)


@pytest.mark.parametrize("word", RECIPES)
def test_changes_replace_options_of_a_recipe(word):
    recipe = resolve(word, dropout=0.25)
    assert recipe == dataclasses.replace(RECIPES[word], dropout=0.25) == resolve(RECIPES[word], dropout=0.25)
    assert recipe.model_options["dropout"] == 0.25 and "preset" not in recipe.model_options
    with pytest.raises(ValueError, match="`recipe` must be one of"):
        resolve("secret")


def test_what_may_change_are_options():
    assert not CHANGEABLE - {*FIELDS}


def test_recipes_need_no_keras():
    program = "import sys, keras_tfm; keras_tfm.Recipe(); print('keras' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout == "False\n"
