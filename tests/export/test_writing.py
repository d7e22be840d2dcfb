"""Exports of models with several languages and placeholders: compared with the model, and run like it."""

import json

import pytest
from conftest import IN_TENSORFLOW, once, refused, several_translator
from test_runners import FORMS, NEEDS, empty_runtime

import keras_tfm
from keras_tfm.artifacts import describe
from keras_tfm.export import writing

SOURCES = ["a dog", "two cats run", "Delete %s?", "{a} of {b}", "", "{a} {b} {c} {d}"]  # more than three slots
CANNOT_COPY = "ignore:.*does not support `copied_tokens`"  # CTranslate2, whose runner then returns the text itself


@once
def test_texts_to_compare_on_are_in_all_languages_in_turn():
    translator = several_translator()
    actual = writing.comparable(translator, ["a", ">>fr<<b", "c", ">>it<<d", "two\nlines"], 64)
    assert actual == [">>de<<a", ">>fr<<b", ">>fr<<c", ">>de<<>>it<<d"]
    for wrong in (["two\nlines"], [b"a"]):
        with refused("compare_on"):
            writing.comparable(translator, wrong, 64)


@IN_TENSORFLOW
@pytest.mark.filterwarnings(CANNOT_COPY)
@pytest.mark.usefixtures("one_width")
@pytest.mark.parametrize(
    "format", [format if format == "ctranslate2" else pytest.param(format, marks=pytest.mark.slow) for format in FORMS]
)
def test_every_format_has_the_languages_and_placeholders_of_the_model(format, tmp_path):
    pytest.importorskip(NEEDS[format], reason=f"{NEEDS[format]} is not installed")
    options = {"runtime": empty_runtime(tmp_path / "node_modules")} if format == "web" else {}
    translator = several_translator(target_language="fr")
    texts = SOURCES if format != "ctranslate2" else SOURCES[-2:]  # what needs no copies
    verdict = translator.export(tmp_path / "export", format, "float32", compare_on=texts, **options)
    assert verdict.same == len(texts)
    run = keras_tfm.load(tmp_path / "export")
    assert (run.languages, run.target_language, run.placeholders) == (["de", "fr"], "fr", 3)
    for language in (None, "de", ["de", "fr"] * 3):
        expected = translator.translate_protected(SOURCES, target_language=language)
        if format != "ctranslate2":
            assert run.translate_protected(SOURCES, target_language=language) == expected
    assert expected[-1].problem and not any(problem for _, problem in expected[:-1])
    with refused("target_language"):
        run(["a dog"], target_language="it")
    said = dict(describe(tmp_path / "export"))
    assert (said["languages"], said["target_language"], said["placeholders"]) == ("de, fr", "fr", 3)
    if format == "web":
        assert "protected" in json.loads((tmp_path / "export/translator.json").read_text())["expressions"]
