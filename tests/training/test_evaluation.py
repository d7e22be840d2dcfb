import keras
import numpy as np
import pytest
from conftest import BACKEND, BYTES, eagerly, once, quick, refused
from keras import ops

from keras_tfm.models import transformer
from keras_tfm.text import END, START
from keras_tfm.training.evaluation import UNITS, TranslationScores, evaluate, perplexity, scores
from keras_tfm.translator import Translator

pytestmark = pytest.mark.usefixtures("one_width")
SOURCES, REFERENCES = ["a dog", "two cats", "b"], ["ein hund läuft", "zwei katzen", "c"]


@pytest.fixture(scope="module")
def translator():
    model = transformer(BYTES.vocab_size, num_layers=1, model_dim=16, num_heads=2, ff_dim=32)
    return Translator(model, BYTES, num_beams=1, max_length=20)


def test_scores_of_what_is_right_and_of_what_is_wrong():
    text = "there are at least four words here"
    right = scores([text], [text])
    assert [right[name] for name in ("bleu", "chrf", "exact")] == pytest.approx([100, 100, 100])
    assert scores(["nothing"], [text])["bleu"] < 1
    half = scores([text, text], [text, "something else that is quite different"])
    assert half["exact"] == 50 and 0 < half["bleu"] < 100


def test_bleu_is_that_of_sacrebleu_with_its_signature():
    sacrebleu = pytest.importorskip("sacrebleu")
    hypotheses, references = ["the cat sat on the mat .", "a dog"], ["the cat is on the mat .", "a dog runs"]
    assert scores(hypotheses, references)["bleu"] == sacrebleu.corpus_bleu(hypotheses, [references]).score
    assert "tok:none" in scores(hypotheses, references, tokenize="none")["signatures"]["bleu"]
    assert "tok:13a" in scores(hypotheses, references)["signatures"]["bleu"]


@pytest.mark.parametrize("hypotheses, references", [(["a"], []), ([], []), (["a"], ["b", "c"])])
def test_as_many_references_as_hypotheses(hypotheses, references):
    with refused("references"):
        scores(hypotheses, references)


def test_perplexity_is_that_of_each_text_by_itself(translator):
    total, count, model = 0.0, 0, quick(translator.models[0])
    for source, reference in zip(SOURCES, REFERENCES, strict=True):
        (source,), (target,) = BYTES.encode([source]), BYTES.encode([reference])
        logits = model({"source": np.array([[*source, END]]), "target": np.array([[START, *target]])})
        shares = ops.convert_to_numpy(ops.log_softmax(logits))[0]
        total -= sum(shares[place, token] for place, token in enumerate([*target, END]))
        count += len(target) + 1
    in_batches = translator.with_settings(batch_size=2)
    assert perplexity(in_batches, SOURCES, REFERENCES) == pytest.approx(np.exp(total / count), rel=1e-4)


@once
def test_a_packed_model_is_as_good_as_an_unpacked_one(translator):
    (model,) = translator.models
    packed = transformer(BYTES.vocab_size, num_layers=1, model_dim=16, num_heads=2, ff_dim=32, packed=True)
    packed.set_weights(model.get_weights())
    actual = perplexity(Translator(packed, BYTES, num_beams=1, max_length=20), SOURCES, REFERENCES)
    assert actual == pytest.approx(perplexity(translator, SOURCES, REFERENCES), rel=1e-4)


def test_evaluation_has_quality_and_speed(translator):
    result = evaluate(translator, SOURCES, translator(SOURCES))
    assert result["exact"] == 100 and result["sentences/s"] > 0 and result["tokens/s"] >= 0 and result["perplexity"] > 1


def test_every_number_has_a_unit(translator):
    result = evaluate(translator, SOURCES, REFERENCES)
    assert set(result) - {"signatures"} == set(UNITS)


@pytest.mark.parametrize(
    "references, tokenize, words",
    [(["a"], "13a", "`references` must hold one text"), (REFERENCES, "klingon", "`tokenize` must be one of .*klingon")],
)
def test_what_cannot_be_scored_is_not_translated(references, tokenize, words):
    def translator(texts, verbose):
        raise AssertionError("translated for nothing")

    with pytest.raises(ValueError, match=words):
        evaluate(translator, SOURCES, references, tokenize)


def test_scores_are_watched_while_training(tmp_path):
    model = transformer(BYTES.vocab_size, num_layers=1, model_dim=16, num_heads=2, ff_dim=32)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(1.0), loss, jit_compile=BACKEND == "jax")
    labels = np.array([[*ids, END] for ids in BYTES.encode(["aaaa"] * 8)])
    inputs = {"source": labels, "target": np.pad(labels[:, :-1], ((0, 0), (1, 0)), constant_values=START)}
    translator = Translator(model, BYTES, num_beams=1, max_length=8)
    watch = TranslationScores(translator, ["aaaa"], ["aaaa"])
    best = keras.callbacks.ModelCheckpoint(tmp_path / "best.keras", "val_chrf", mode="max", save_best_only=True)
    with eagerly():
        history = model.fit(inputs, labels, epochs=2, verbose=0, callbacks=[watch, best]).history
    assert len(history["val_bleu"]) == 2 and (tmp_path / "best.keras").exists()
    assert history["val_chrf"][1] == scores(translator(["aaaa"]), ["aaaa"])["chrf"]
