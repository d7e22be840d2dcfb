import numpy as np
import pytest
from conftest import refused, several_translator
from test_marian import TEXTS, write

import keras_tfm
from keras_tfm import Translator, models, text


@pytest.mark.slow
def test_what_is_exported_is_imported_again(tmp_path):
    write(tmp_path / "given", scale_embedding=True)
    search = {
        "max_length": 32,
        "min_length": 2,
        "no_repeat_ngram_size": 3,
        "suppress_tokens": (3, 9),
        "early_stopping": False,
    }
    translator = Translator.from_marian(tmp_path / "given", **search)
    verdict = translator.export(tmp_path / "exported", format="huggingface", compare_on=TEXTS[:3])
    assert verdict.same == 3
    again = Translator.from_marian(tmp_path / "exported")
    assert again.settings == translator.settings
    for before, after in zip(translator.models[0].weights, again.models[0].weights, strict=True):
        assert np.array_equal(*(np.array(each)[1:] if "embedding" in each.path else each for each in (before, after)))
    loaded = keras_tfm.load(tmp_path / "exported", num_beams=2)
    assert isinstance(loaded, Translator) and loaded.settings == translator.settings | {"num_beams": 2}


def test_a_model_that_marian_cannot_hold_is_refused(tmp_path):
    tokenizer = text.train_tokenizer(TEXTS[:3] * 20, "bpe", 290)
    sizes = {"num_layers": 1, "model_dim": 8, "num_heads": 2, "ff_dim": 8}
    for model, message in (
        (
            models.transformer(tokenizer.vocab_size, norm_first=True, **sizes),
            r"`norm_first` must be one of \[False\] in a model that Marian supports.*=True; choose another format",
        ),
        (models.transformer(tokenizer.vocab_size, positions="rotary", **sizes), "`positions` must be one of"),
        (models.conv(tokenizer.vocab_size, num_layers=1, model_dim=8), "a model that Marian supports, which knows no"),
    ):
        with pytest.raises(ValueError, match=message):
            Translator(model, tokenizer).export(tmp_path / "out", format="huggingface")
    model = models.transformer(text.ByteTokenizer.vocab_size, **sizes)
    with refused("tokenizer"):
        Translator(model, text.ByteTokenizer()).export(tmp_path / "out", format="huggingface")


def test_two_tables_of_one_vocabulary_stay_apart(tmp_path):
    tokenizer = text.train_tokenizer(TEXTS[:3] * 20, "bpe", 290)
    sizes = {"num_layers": 1, "model_dim": 8, "num_heads": 2, "ff_dim": 8}
    model = models.transformer(tokenizer.vocab_size, target_vocab_size=tokenizer.vocab_size, **sizes)
    Translator(model, tokenizer).export(tmp_path / "out", format="huggingface")
    again = Translator.from_marian(tmp_path / "out").models[0]
    for name in ("source_embedding", "target_embedding"):
        before, after = (np.array(getattr(each, name).embeddings)[1:] for each in (model, again))
        assert np.array_equal(before, after)


def exported_with_languages(folder):
    """A multilingual model with placeholders, and its export, whose search cannot keep them."""
    # greedy, since Marian gives padding no share of the probability, which changes the scores of a beam a little
    translator = several_translator(sizes={"norm_first": False}, num_beams=1)
    translator.jit_compile = False
    with pytest.warns(UserWarning, match="copied_tokens"):
        translator.export(folder, format="huggingface")
    return translator


def test_languages_and_placeholders_are_imported_again(tmp_path):
    translator, texts = exported_with_languages(tmp_path / "out"), ["a dog", "Delete %s?", "Copy {a} to {b}"]
    again = keras_tfm.load(tmp_path / "out")
    again.jit_compile = False
    assert (again.languages, again.placeholders) == (["de", "fr"], 3)
    for language in ("de", "fr"):
        expected = translator.translate_protected(texts, target_language=language)
        assert again.translate_protected(texts, target_language=language) == expected
        assert not any(problem for _, problem in expected)


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_the_tokenizer_of_transformers_knows_languages_and_placeholders(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    transformers = pytest.importorskip("transformers")
    translator = exported_with_languages(tmp_path / "out")
    reader = transformers.MarianTokenizer.from_pretrained(tmp_path / "out")
    assert sorted(reader.supported_language_codes) == [">>de<<", ">>fr<<"]
    text = ">>de<<Delete ⟦1⟧ and ⟦3⟧?"
    assert reader.tokenize(text) == translator.source_tokenizer.pieces(text)
    assert reader.convert_ids_to_tokens(reader(text)["input_ids"])[0] == ">>de<<"
