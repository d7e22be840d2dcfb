import ast
import dataclasses
import importlib
import inspect
import pathlib
import re
import subprocess
import sys

import pytest
from conftest import eagerly, once, refused

import keras_tfm
from keras_tfm.cli import flags
from keras_tfm.common import source
from keras_tfm.data.tasks import reverse
from keras_tfm.layers.attention import HEADS
from keras_tfm.layers.blocks import GATES, NORMS
from keras_tfm.layers.scores import SCORES, dot
from keras_tfm.options import CHANGEABLE, GROUPS, RECIPES, ModelOptions, Recipe, description, resolve
from keras_tfm.sizes import MODELS, SIZES
from keras_tfm.text import KINDS, ByteTokenizer, Kind
from keras_tfm.text.base import TOKENIZERS

pytestmark = once
FIELDS = {field.name: field for field in dataclasses.fields(Recipe)}
MODEL = {field.name: field for field in dataclasses.fields(ModelOptions) if field.name not in ("model", "size")}


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
    others |= {"source_embedding", "target_embedding"}
    others |= {"attention", "num_heads", "score"} if model == "rnn" else set()
    assert {*parameters(model)} - others == {*MODELS[model].options}
    assert {*MODELS[model].options} <= {*MODEL} and {"tiny", "small", "base"} <= {*MODELS[model].sizes}


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
    makefile = (pathlib.Path(__file__).parents[1] / "Makefile").read_text()
    demo = {name: int(value) for name, value in re.findall(r"--(steps|batch_tokens|num_layers) (\d+)", makefile)}
    assert RECIPES["quick"].steps < 1.2 * demo["steps"]
    assert (RECIPES["quick"].batch_tokens, RECIPES["quick"].num_layers) == (demo["batch_tokens"], demo["num_layers"])


def test_defaults_in_help_texts_are_those_of_the_model():
    for name, field in MODEL.items():
        model = next(model for model in MODELS if name in MODELS[model].options)
        default = parameters(model)[name]
        if name == "attention":
            continue  # None for `rnn`, and set by the other builders
        said = re.search(r"\(default: ([^;]*)(; .* for .*)?\)$", description(field))
        if field.default is not None:
            assert field.default == default, name
        elif said:
            assert said[1] == {"True": "yes", "False": "no"}.get(str(default), str(default)), name
        else:
            assert not default or name in SIZES["tiny"], name
    assert "(default: scaled_dot; additive for rnn_attention, gnmt)" in description(FIELDS["score"])
    assert all(gate in description(FIELDS["activation"]) for gate in GATES)


TABLES = [table for field in FIELDS.values() for table in getattr(field.metadata["allowed"], "tables", ())]
TABLES = [table for table in TABLES if isinstance(table, str)]


@pytest.mark.parametrize("path", TABLES)
def test_words_are_the_same_whether_a_table_is_imported_or_read(path, monkeypatch):
    module, table = f"keras_tfm.{path}".rsplit(".", 1)
    words = [word for word in getattr(importlib.import_module(module), table) if word is not None]
    assert source.words(path) == words
    monkeypatch.delitem(sys.modules, module)
    assert source.words(path) == words


@pytest.mark.parametrize("words", [SCORES, KINDS, HEADS, NORMS], ids=["score", "tokenizer", "heads", "norm"])
def test_one_module_lists_the_words_of_a_table(words):
    package = pathlib.Path(keras_tfm.__file__).parent
    trees = [ast.walk(ast.parse(file.read_text())) for file in package.rglob("*.py")]
    said = [{node.value for node in tree if isinstance(node, ast.Constant)} for tree in trees]
    assert sum({*words} <= words_of for words_of in said) == 1


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
        ({"model": "gnmt", "size": "deep"}, r"`size` must be one of \['tiny', 'small', 'base'\]"),
        ({"model": "lstm"}, "`model` must be one of .* Received: model='lstm'"),
        ({"layers": 3}, r"`layers` must be an option of a recipe \(did you mean num_layers.\). Received: layers=3$"),
    ],
)
def test_wrong_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        resolve("default", **options)


def check_an_option(name, word, tmp_path, capsys):
    """Trains with a word, and finds it in the help of its flag and in errors."""
    sizes = {"num_layers": 1, "model_dim": 16, "num_heads": 2, "ff_dim": 32, "max_length": 32, "steps": 2}
    options = {"tokenizer": "bytes", "batch_tokens": 512, "num_shapes": 1, "verbose": 0, **sizes, name: word}
    with eagerly():
        translator = keras_tfm.train(reverse(60), tmp_path, say=lambda line: None, jit_compile=False, **options)
    assert getattr(flags.parse(["train", f"--{name}", word])["recipe"], name) == word
    for line in ("train --help", f"train --{name} wrong"):
        with pytest.raises(SystemExit):
            flags.parse(line.split())
    said = capsys.readouterr()
    assert f",{word}}}" in said.out and f"'{word}'" in said.err
    with pytest.raises(ValueError, match=f"`{name}` must be one of .*{word}"):
        resolve("default", **{name: "wrong"})
    return translator


def test_a_score_from_outside_is_an_option(tmp_path, capsys, monkeypatch):
    calls = []
    monkeypatch.setitem(SCORES, "mine", (lambda q, k: calls.append("mine") or 2 * dot(q, k), {}))
    check_an_option("score", "mine", tmp_path, capsys)
    assert calls


def test_a_tokenizer_from_outside_is_an_option(tmp_path, capsys, monkeypatch):
    class Louder(ByteTokenizer):
        """Bytes of texts in capital letters."""

        def _encode(self, texts):
            return super()._encode([text.upper() for text in texts])

    monkeypatch.setitem(TOKENIZERS, "Louder", Louder)
    monkeypatch.setitem(KINDS, "loud", Kind(lambda texts, vocab_size: Louder()))
    assert type(check_an_option("tokenizer", "loud", tmp_path, capsys).source_tokenizer) is Louder


@pytest.mark.parametrize("word", RECIPES)
def test_changes_replace_options_of_a_recipe(word):
    recipe = resolve(word, dropout=0.25)
    assert recipe == dataclasses.replace(RECIPES[word], dropout=0.25) == resolve(RECIPES[word], dropout=0.25)
    assert recipe.model_options["dropout"] == 0.25 and "size" not in recipe.model_options
    with refused("recipe"):
        resolve("secret")


def test_a_recipe_is_its_three_parts_in_one():
    parts = [field.name for part in GROUPS.values() for field in dataclasses.fields(part)]
    assert parts == [*FIELDS] and len({*parts}) == len(parts)
    for part in GROUPS.values():
        assert {name: value for name, value in vars(Recipe()).items() if name in vars(part())} == vars(part())


def test_what_may_change_are_options():
    assert not CHANGEABLE - {*FIELDS}


def test_recipes_need_no_keras():
    program = "import sys, keras_tfm; keras_tfm.Recipe(); print('keras' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout == "False\n"
