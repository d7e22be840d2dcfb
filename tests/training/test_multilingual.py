import random

import pytest
from conftest import refused

import keras_tfm

WORDS = {
    "de": {"open": "öffne", "close": "schließe", "file": "datei", "red": "rote"},
    "fr": {"open": "ouvre", "close": "ferme", "file": "fichier", "red": "rouge"},
}
SMALL = {"num_layers": 1, "model_dim": 32, "num_heads": 2, "ff_dim": 64, "max_length": 32, "dropout": 0.0}
SMALL |= {"batch_tokens": 1024, "num_shapes": 1, "vocab_size": 330, "verbose": 0, "say": lambda message: None}


def pairs_of_words(count):
    """Made-up texts, three to a language more often, with placeholders among their words."""
    rng = random.Random(1)
    for number in range(count):
        language = "fr" if number % 4 == 0 else "de"
        words = [rng.choice([*WORDS[language], "%s", "{n}"]) for _ in range(rng.randint(1, 5))]
        yield " ".join(words), " ".join(WORDS[language].get(word, word) for word in words), language


@pytest.mark.slow
def test_one_model_learns_two_languages_and_keeps_placeholders(tmp_path):
    pairs = list(pairs_of_words(3000))
    options = SMALL | {"steps": 400, "learning_rate": 0.01, "language_temperature": 5.0, "label_smoothing": 0.0}
    keras_tfm.train(pairs, tmp_path, **options)
    translator = keras_tfm.load(tmp_path)
    assert (translator.languages, translator.placeholders) == (["de", "fr"], 16)
    texts = ["open red file", "close {n} file", "%s red %s"]
    for language, words in WORDS.items():
        expected = [" ".join(words.get(word, word) for word in text.split()) for text in texts]
        answers = translator(texts, target_language=language)
        assert sum(map(str.__eq__, answers, expected)) >= 2, answers
        assert not any(translation.problem for translation in translator.translate_protected(texts, None, language))
    assert translator(texts[:2], target_language=["fr", "de"]) == [
        translator(texts[0], target_language="fr"),
        translator(">>de<<" + texts[1]),
    ]
    translator.save(tmp_path / "saved")
    assert keras_tfm.load(tmp_path / "saved", target_language="fr")(texts) == translator(texts, target_language="fr")


@pytest.mark.slow
def test_a_run_resumes_only_with_texts_in_its_languages(tmp_path):
    pairs = list(pairs_of_words(200))
    keras_tfm.train(pairs, tmp_path / "run", **SMALL | {"steps": 1})
    with refused("language"):
        others = [(source, target, "pl") for source, target, _ in pairs]
        keras_tfm.train(others, tmp_path / "tuned", start_from=str(tmp_path / "run"), steps=1, verbose=0)
    for wrong in (others, [pair[:2] for pair in pairs]):
        with refused("valid"):
            keras_tfm.train(pairs, tmp_path / "validated", valid=wrong, **SMALL | {"steps": 1})
    with refused("kind"):
        keras_tfm.train(pairs, tmp_path / "bytes", **SMALL | {"steps": 1, "tokenizer": "bytes", "vocab_size": None})
