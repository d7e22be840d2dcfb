import warnings

import keras
import numpy as np
import pytest
from conftest import BYTES, spread

from keras_tfm.models import transformer
from keras_tfm.text import train_tokenizer
from keras_tfm.translator import Translator

SIZES = {"num_layers": 1, "model_dim": 16, "num_heads": 2, "ff_dim": 32}
TEXTS = ["a dog", "", "two dogs run over it", "a cat", "  ", "b", "the end, at last"]
STRANGE = ["🙂🙃", "Привет, мир", "你好。世界！", "\ud800 lone", "\x00\x07", "a\tb", "▁", "x" * 300]


def random_model(seed=0, **options):
    keras.utils.set_random_seed(seed)
    return spread(transformer(BYTES.vocab_size, **SIZES, **options), 0.2)


ONE_WIDTH = pytest.mark.usefixtures("one_width")


@pytest.fixture(scope="module")
def translator():
    translator = Translator(random_model(), BYTES, beams=2, batch_size=4, max_length=24)
    translator.widths = [24]
    return translator


@pytest.mark.parametrize("beams", [1, 3])
def test_each_text_is_translated_as_if_it_were_alone(beams):
    translator = Translator(random_model(), BYTES, beams=beams, batch_size=4, max_length=24)
    together = translator(TEXTS * 2)
    assert together == translator(TEXTS) * 2 == [translator([text])[0] for text in TEXTS] * 2
    assert len(set(together)) > 2  # or nothing was tested


def test_empty_texts_stay_empty(translator):
    assert translator([]) == [] and translator(["", " \t", "\n", "\r\n\n"]) == ["", "", "\n", "\r\n\n"]


def test_lines_are_translated_one_by_one(translator):
    first, second = translator(["a dog", "a cat"])
    assert translator(["a dog\n\na cat\n", "a dog\r\na cat"]) == [f"{first}\n\n{second}\n", f"{first}\r\n{second}"]


def test_long_texts_are_translated_sentence_by_sentence(translator):
    sentences = ["Here is one.", "Is it two?", "Three!", "and four"]
    parts = translator(sentences)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert translator([" ".join(sentences)]) == [" ".join(parts)]
        assert translator(["一二三。四五六！七八"]) == ["".join(translator(["一二三。", "四五六！", "七八"]))]


def test_what_is_cut_is_said(translator):
    with pytest.warns(UserWarning, match="9977 of 10000 tokens were cut off: 'aaaa") as said:
        (cut,) = translator(["a" * 10_000])
    assert cut == translator(["a" * 23])[0] and said[0].filename == __file__  # the caller's line


@pytest.mark.filterwarnings("ignore:.*were cut off")
def test_strange_texts_do_no_harm(translator):
    answers = translator([*STRANGE, "a dog"])
    assert all(isinstance(answer, str) for answer in answers) and answers[-1] == translator(["a dog"])[0]


@ONE_WIDTH
def test_n_best_come_in_order_and_begin_with_the_best(translator):
    for text, hypotheses in zip(TEXTS, translator.n_best(TEXTS, 3), strict=True):
        strings, scores = zip(*hypotheses, strict=True)
        assert list(scores) == sorted(scores, reverse=True)
        assert len(hypotheses) == (3 if text.strip() else 1)
    greedy = Translator(translator.models, BYTES, beams=1, batch_size=4, max_length=24)
    assert [hypotheses[0][0] for hypotheses in greedy.n_best(TEXTS, 1)] == greedy(TEXTS)
    assert all(
        hypotheses[0][1] < 0 for text, hypotheses in zip(TEXTS, greedy.n_best(TEXTS, 1), strict=True) if text.strip()
    )
    wide = Translator(translator.models, BYTES, beams=3, batch_size=4, max_length=24)
    assert [hypotheses[0][0] for hypotheses in wide.n_best(TEXTS, 3)] == wide(TEXTS)


@ONE_WIDTH
@pytest.mark.parametrize("separate", [False, True])
def test_saved_and_loaded_it_says_the_same(separate, tmp_path):
    tokenizer = train_tokenizer(TEXTS, "char", 300)
    tokenizers = [tokenizer, BYTES] if separate else [BYTES]
    model = random_model() if not separate else transformer(tokenizer.vocab_size, BYTES.vocab_size, **SIZES)
    translator = Translator(model, *tokenizers, beams=2, max_length=24)
    translator.save(tmp_path / "saved")
    assert Translator.load(tmp_path / "saved", beams=2, max_length=24)(TEXTS) == translator(TEXTS)


@ONE_WIDTH
def test_several_models_decide_together(tmp_path):
    models = [random_model(0), random_model(1)]
    together = Translator(models, BYTES, beams=1, max_length=24)
    alone = [Translator(model, BYTES, beams=1, max_length=24)(TEXTS) for model in models]
    assert Translator([models[0]] * 2, BYTES, beams=1, max_length=24)(TEXTS) == alone[0] != alone[1]
    together.save(tmp_path)
    assert Translator.load(tmp_path, beams=1, max_length=24)(TEXTS) == together(TEXTS)


@ONE_WIDTH
def test_it_sees_what_a_model_has_learned_since(translator):
    model, other = random_model(2), random_model(3)
    translator = Translator(model, BYTES, beams=2, max_length=24)
    before = translator(TEXTS)
    model.set_weights(other.get_weights())
    assert before != translator(TEXTS) == Translator(other, BYTES, beams=2, max_length=24)(TEXTS)


def test_learned_positions_are_the_limit():
    translator = Translator(random_model(positions="learned", max_length=12), BYTES, beams=2)
    with pytest.warns(UserWarning, match="19 of 30 tokens"):
        assert isinstance(translator(["a" * 30])[0], str)


def test_a_thousand_sentences_need_few_programs(monkeypatch):
    programs = []
    search = Translator.search
    monkeypatch.setattr(Translator, "search", lambda *args, **options: programs.append(1) or search(*args, **options))
    translator = Translator(random_model(), BYTES, beams=1, max_length=64)
    lengths = np.random.default_rng(0).integers(1, 63, 1000)
    translator(["a" * length for length in lengths])
    assert 1 < len(programs) <= 5


def test_greedy_has_no_use_for_options_of_the_beam(translator):
    plain = Translator(translator.models[0], BYTES, beams=1, max_length=24, min_length=3)
    told = {"length_penalty": 1.0, "penalty": "gnmt", "coverage_penalty": 0.2, "min_length": 3}
    assert Translator(translator.models[0], BYTES, beams=1, max_length=24, **told)(["a dog"]) == plain(["a dog"])


def test_a_stream_is_read_chunk_by_chunk(translator):
    read = []
    lines = (read.append(number) or text for number, text in enumerate(TEXTS * 3))
    stream = translator.stream(lines, chunk=5)
    answers = [next(stream)]
    assert len(read) == 5
    assert answers + list(stream) == translator(TEXTS) * 3


def test_bad_arguments(tmp_path):
    with pytest.raises(ValueError, match="`texts` must be a list of strings"):
        Translator(random_model(), BYTES)("a text")
    with pytest.raises(ValueError, match="`texts` must be a list of strings. Received: None in it"):
        Translator(random_model(), BYTES)(["a text", None])
    for name, value in {
        "length_penalty": "x",
        "coverage_penalty": -1,
        "no_repeat_ngram": 1.5,
        "min_length": 9999,
    }.items():
        with pytest.raises(ValueError, match=f"`{name}` must be"):
            Translator(random_model(), BYTES, **{name: value})
    with pytest.raises(ValueError, match="`coverage_penalty` must be 0 for an ensemble. Received: 2 models"):
        Translator([random_model()] * 2, BYTES, coverage_penalty=0.2)
    with pytest.raises(ValueError, match="`beams` must be a positive integer"):
        Translator(random_model(), BYTES, beams=0)
    with pytest.raises(ValueError, match="`option` must be one of .*'length_penalty'.* Received: option='length'"):
        Translator(random_model(), BYTES, length=0.6)
    with pytest.raises(FileNotFoundError, match=r"must contain model.keras"):
        Translator.load(tmp_path)
    (tmp_path / "config.json").write_text("{}")  # CTranslate2 has one, and so has a run
    (tmp_path / "model.bin").touch()
    with pytest.raises(ValueError, match=r"`folder` must be a training run.*ctranslate2.*`keras_tfm.exported.load`"):
        Translator.load(tmp_path)
