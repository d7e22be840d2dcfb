import inspect
import re

import pytest
from conftest import once

import keras_tfm
from keras_tfm import cli, flags
from keras_tfm.flags import MODEL_FLAGS


def test_flags_are_the_arguments_of_the_builder():
    from keras_tfm.layers import MultiHeadSelfAttention, TransformerEncoderBlock
    from keras_tfm.models.transformer import Stack, transformer

    functions = transformer, Stack.__init__, TransformerEncoderBlock.__init__
    names = {name for function in functions for name in inspect.signature(function).parameters}
    names |= set(MultiHeadSelfAttention.OPTIONS)
    not_flags = {"self", "name", "dtype", "block", "options", "kwargs", "vocab_size", "target_vocab_size", "causal"}
    assert names - not_flags == set(MODEL_FLAGS)


def test_words_are_those_of_the_layers():
    from keras_tfm.layers import SCORES
    from keras_tfm.layers.attention import HEADS, MIXINGS
    from keras_tfm.layers.blocks import GATES, NORMS
    from keras_tfm.layers.positions import SCHEMES
    from keras_tfm.models.transformer import ENCODINGS

    words = {"score": SCORES, "heads": HEADS, "mixing": MIXINGS, "norm": NORMS}
    words["positions"] = [*ENCODINGS, *(scheme for scheme in SCHEMES if scheme)]
    for name, choices in words.items():
        assert set(MODEL_FLAGS[name][0]) == set(choices), name
    assert all(gate in MODEL_FLAGS["activation"][1] for gate in GATES)


def test_recipes_and_presets_are_those_of_the_library():
    from keras_tfm.models import PRESETS
    from keras_tfm.pipeline import DEFAULTS, RECIPES

    train = flags._parser()._subparsers._group_actions[0].choices["train"]
    choices = {action.dest: action.choices for action in train._actions}
    assert set(choices["recipe"]) == set(RECIPES) and set(choices["preset"]) == set(PRESETS)
    for name, sizes in PRESETS.items():
        layers = f"{sizes['num_layers']}+{sizes.get('num_decoder_layers', sizes['num_layers'])}"
        assert re.search(rf"{name}: {re.escape(layers)}( layers of width|,) {sizes['model_dim']}", flags.PRESET_SIZES)
    assert set(choices) - {"help", "recipe", "out", "backend"} == set(DEFAULTS) | set(MODEL_FLAGS)


@once
@pytest.mark.parametrize("command", ["train", "translate", "evaluate", "plot", "export", "finish", "info"])
def test_help_says_what_each_option_does(command, capsys):
    with pytest.raises(SystemExit):
        cli.run([command, "--help"])
    said = capsys.readouterr().out
    assert "None" not in said and "SUPPRESS" not in said and "options:" in said


@once
def test_version(capsys):
    with pytest.raises(SystemExit):
        cli.run(["--version"])
    assert capsys.readouterr().out == f"keras-tfm {keras_tfm.__version__}\n"
