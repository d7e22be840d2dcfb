import dataclasses
import warnings

import keras
import numpy as np
import pytest
from conftest import (
    BYTES,
    SLOW_ON_TENSORFLOW,
    TRACED,
    array,
    refused,
    run,
    several_translator,
    small_translator,
    spread,
)

from keras_tfm import ops
from keras_tfm.common import files
from keras_tfm.decoding import NEVER, Beam, Greedy
from keras_tfm.models import transformer
from keras_tfm.text import END, START, save_tokenizer, train_tokenizer
from keras_tfm.translator import OWN_SETTINGS, Translator

SIZES = {"num_layers": 1, "model_dim": 16, "num_heads": 2, "ff_dim": 32}
TEXTS = ["a dog", "", "two dogs run over it", "a cat", "  ", "b", "the end, at last"]
STRANGE = ["🙂🙃", "Привет, мир", "你好。世界！", "\ud800 lone", "\x00\x07", "a\tb", "▁", "x" * 300]


def random_model(seed=0, **options):
    keras.utils.set_random_seed(seed)
    return spread(transformer(BYTES.vocab_size, **SIZES, **options), 0.2)


def same_models(translator, other):
    """Whether two translators have models with the same weights, in the same order."""
    assert len(translator.models) == len(other.models)
    pairs = zip(translator.models, other.models, strict=True)
    return all(np.array_equal(a, b) for pair in pairs for a, b in zip(*(m.get_weights() for m in pair), strict=True))


# One worker runs this file, and compiles its programs once.
pytestmark = pytest.mark.xdist_group("translator")
ONE_WIDTH = pytest.mark.usefixtures("one_width")


@pytest.fixture(scope="module")
def translators():
    """Number of beams → translators of one model, which all tests share, since programs take long to compile."""
    model = random_model()
    made = {
        num_beams: Translator(model, BYTES, num_beams=num_beams, batch_size=4, max_length=24) for num_beams in (1, 3)
    }
    made[3].widths, made[3].jit_compile = [24], False  # fewer programs
    return made


@pytest.fixture
def translator(translators):
    return translators[3]


@pytest.mark.parametrize("num_beams", [1, 3])
def test_each_text_is_translated_as_if_it_were_alone(num_beams, translators):
    translator = translators[num_beams]
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
        warnings.simplefilter("error", UserWarning)
        assert translator([" ".join(sentences)]) == [" ".join(parts)]
        assert translator(["一二三。四五六！七八"]) == ["".join(translator(["一二三。", "四五六！", "七八"]))]


def test_truncation_is_reported_by_a_warning(translator):
    with pytest.warns(UserWarning, match="9977 of 10000 tokens were cut off: 'aaaa") as said:
        (cut,) = translator(["a" * 10_000])
    assert cut == translator(["a" * 23])[0] and said[0].filename == __file__  # the caller's line


@pytest.mark.filterwarnings("ignore:.*were cut off")
def test_strange_texts_are_translated_to_strings(translator):
    answers = translator([*STRANGE, "a dog"])
    assert all(isinstance(answer, str) for answer in answers) and answers[-1] == translator(["a dog"])[0]


def test_n_best_come_in_order_and_begin_with_the_best(translators):
    for num_beams, translator in translators.items():
        actual = translator.n_best(TEXTS, num_beams)
        assert [hypotheses[0][0] for hypotheses in actual] == translator(TEXTS)
        for text, hypotheses in zip(TEXTS, actual, strict=True):
            scores = [score for _, score in hypotheses]
            assert scores == sorted(scores, reverse=True) and len(scores) == (num_beams if text.strip() else 1)
            assert (scores[0] < 0) == bool(text.strip())
    with_more = translators[1].n_best(["a dog"], 2)  # than it has beams
    assert len(with_more[0]) == 2


@ONE_WIDTH
@pytest.mark.parametrize("separate", [False, True])
def test_a_loaded_translator_gives_the_same_translations(separate, tmp_path):
    tokenizer = train_tokenizer(TEXTS, "char", 300)
    tokenizers = [tokenizer, BYTES] if separate else [BYTES]
    model = (
        random_model()
        if not separate
        else transformer(tokenizer.vocab_size, target_vocab_size=BYTES.vocab_size, **SIZES)
    )
    translator = Translator(model, *tokenizers, num_beams=1, max_length=24)
    translator.save(tmp_path / "saved")
    loaded = Translator.load(tmp_path / "saved", num_beams=1, max_length=24)
    assert same_models(loaded, translator) and len(loaded.tokenizers) == len(tokenizers)
    if separate:
        assert loaded(TEXTS) == translator(TEXTS)


def test_a_model_that_does_not_name_its_tokenizers_is_loaded_with_a_warning(tmp_path):
    random_model().save(tmp_path / "model.keras")
    save_tokenizer(BYTES, tmp_path / "tokenizer")
    with pytest.warns(UserWarning, match=r"model.keras does not name the tokenizers it was trained with") as said:
        translator = Translator.load(tmp_path)
    (warning,) = [each for each in said if "does not name" in str(each.message)]  # Keras may warn of its own variables
    assert warning.filename == __file__
    translator.save(tmp_path / "saved")
    Translator.load(tmp_path / "saved")  # without a warning


@pytest.mark.slow
@ONE_WIDTH
def test_an_ensemble_translates_and_is_saved(tmp_path, translators):
    (model,), alone, other = translators[1].models, translators[1](TEXTS), random_model(1)
    together = Translator([model, other], BYTES, num_beams=1, max_length=24)
    assert together(TEXTS) != alone
    other_weights = other.get_weights()
    other.set_weights(model.get_weights())
    assert together(TEXTS) == alone
    other.set_weights(other_weights)
    together.save(tmp_path)
    assert same_models(Translator.load(tmp_path), together)


def test_other_settings_leave_the_rest_as_it_was():
    translator = small_translator("bpe", symbols=["⟦1⟧"], copied_tokens=[5])
    translator.longest_target, translator.jit_compile = 5, False
    other = translator.with_settings(num_beams=1)
    assert (other.longest_target, other.jit_compile) == (5, False)
    assert translator.sampler.copied_tokens == other.sampler.copied_tokens == (*translator.slots, 5) == (4, 5)


def test_settings_are_saved_and_arguments_win(tmp_path, translators):
    own = {"num_beams": 7, "batch_size": 3, "max_length": 64, "target_language": None}
    options = {"penalty": "gnmt", "length_penalty": 1.5, "early_stopping": False, "coverage_penalty": 0.1}
    options |= {"min_length": 2, "no_repeat_ngram_size": 3, "suppress_tokens": [40, 41, 42], "copied_tokens": [43]}
    assert {*own, *options} == {field.name for field in dataclasses.fields(Beam)} | {*OWN_SETTINGS}
    Translator(translators[1].models, BYTES, **own, **options | {"suppress_tokens": range(40, 43)}).save(tmp_path)
    loaded = Translator.load(tmp_path)
    assert (loaded.num_beams, loaded.batch_size, loaded.max_length) == (7, 3, 64)
    assert loaded.settings == own | options and loaded.with_settings(num_beams=1).settings == own | options | {
        "num_beams": 1
    }
    loaded = Translator.load(tmp_path, num_beams=2, early_stopping=True)
    assert loaded.settings == own | options | {"num_beams": 2, "early_stopping": True}


def test_a_string_is_translated_to_a_string(translator):
    assert [translator(text) for text in TEXTS] == translator(TEXTS)


def test_options_of_a_call_are_those_of_a_translator_with_them(translators):
    greedy, beam = translators[1], translators[3]
    assert beam(TEXTS, num_beams=1) == beam(TEXTS, sampler=Greedy()) == greedy(TEXTS) != beam(TEXTS)
    with refused("min_length"):
        beam(TEXTS, min_length=25)


def test_what_is_set_has_an_effect(translators):
    translator = translators[3].with_settings()
    translator.widths, translator.jit_compile = [24], False
    before = translator(TEXTS)
    translator.sampler = Greedy()
    assert translator(TEXTS) == translators[1](TEXTS) != before and translator.num_beams == 1
    for name in ("num_beams", "max_length", "settings"):
        with pytest.raises(AttributeError):
            setattr(translator, name, 3)


@ONE_WIDTH
def test_sampling_has_seeds(translators):
    translator = translators[1]
    once, again, other = (translator(TEXTS, temperature=2.0, seed=seed) for seed in (1, 1, 2))
    assert once == again != other and translator(TEXTS, top_k=1) == translator(TEXTS)
    with refused("n_best"):
        translator.n_best(["a"], 2, temperature=2.0)


@ONE_WIDTH
@pytest.mark.parametrize("num_beams", [pytest.param(1, marks=SLOW_ON_TENSORFLOW), 3])
def test_a_translation_begins_with_its_prefix(num_beams, translators):
    translator = translators[num_beams]
    free, prefixes = translator(["a dog", "b"]), ["", "x" * 20]
    actual = translator(["a dog", "b"], prefix=prefixes)
    assert actual[0] == free[0] and actual[1].startswith("x" * 20) and len(actual[1].encode()) > 20
    two = translator(["a dog\na cat"], prefix="xy")[0].split("\n")
    assert two[0].startswith("xy") and two[1] == translator("a cat")
    with refused("prefix"):
        translator(["a"], prefix=["x", "y"])
    with refused("prefix"):
        translator(["a"], prefix="x" * 24)


def test_scores_are_the_log_probabilities_of_the_model(translators):
    translator, pairs = translators[1], [("a dog", "x"), ("b", "some text"), ("", "")]
    (source,), (target,) = BYTES.encode(["b"]), BYTES.encode(["some text"])
    ids = {"source": np.array([[*source, END]]), "target": np.array([[START, *target]])}
    shares = array(run(lambda: ops.log_softmax(translator.models[0](ids))))[0]
    scores = translator.score(*zip(*pairs, strict=True))
    assert scores[1] == pytest.approx(sum(shares[place, token] for place, token in enumerate([*target, END])), rel=1e-4)
    assert scores == pytest.approx([translator.score([source], [target])[0] for source, target in pairs], rel=1e-4)
    ensemble = Translator([*translator.models, random_model(1)], BYTES, max_length=24)
    mean = np.log(np.mean([array(x)[0] for x in run(lambda: [ops.softmax(m(ids)) for m in ensemble.models])], axis=0))
    expected = sum(mean[place, token] for place, token in enumerate([*target, END]))
    assert ensemble.score(["b"], ["some text"])[0] == pytest.approx(expected, rel=1e-4)
    with refused("targets"):
        translator.score(["a"], [])


def test_the_repr_of_a_translator_describes_it(translators):
    said = repr(translators[3])
    assert (
        "Transformer of" in said and "num_beams=3" in said and "max_length=24" in said and "ByteTokenizer(260)" in said
    )


def test_folders_without_settings_load_and_wrong_settings_are_named(tmp_path, translators):
    translators[1].save(tmp_path)
    files.write_json(tmp_path / "translator.json", {"format": "keras"})  # as earlier versions did
    assert Translator.load(tmp_path).settings == Translator(translators[1].models, BYTES).settings
    files.write_json(tmp_path / "translator.json", {"format": "keras", "num_beams": "7"})
    with pytest.raises(files.DamagedFile, match=r"translator.json: damaged.*`num_beams` must be a positive integer"):
        Translator.load(tmp_path)


@ONE_WIDTH
@pytest.mark.parametrize("num_beams", [1, 2])
def test_a_text_without_a_possible_translation_becomes_empty(num_beams, translators):
    options = {"min_length": 3, "suppress_tokens": range(3, BYTES.vocab_size), "max_length": 24}
    translator = Translator(translators[1].models, BYTES, num_beams=num_beams, **options)
    assert translator(["a", "b\n\nc"]) == ["", "\n\n"]
    assert num_beams == 1 or translator.n_best(["a", ""], 2) == [[("", NEVER)], [("", 0.0)]]


@ONE_WIDTH
@pytest.mark.parametrize("num_beams", [1, pytest.param(2, marks=SLOW_ON_TENSORFLOW)])
def test_weights_that_are_not_finite_are_named(num_beams, tmp_path):
    model = random_model()
    translator = Translator(model, BYTES, num_beams=num_beams, max_length=24)
    assert translator(["a"])
    model.decoder.blocks[0].feed_forward.inner.kernel.assign(np.full((16, 32), np.nan))
    message = r"must have finite weights.* Received: NaN or infinite decoder/decoder_0/feed_forward/inner/kernel"
    for translate in (translator, Translator(model, BYTES, num_beams=num_beams, max_length=24)):
        with pytest.raises(FloatingPointError, match=f"model 'transformer' {message}"):
            translate(["a", "a dog"])
    translator.save(tmp_path)
    with pytest.raises(FloatingPointError, match=f"model.keras {message}"):
        Translator.load(tmp_path)


@ONE_WIDTH
@pytest.mark.usefixtures("one_width")
def test_a_translation_is_no_longer_than_allowed():
    translator = Translator(random_model(2), BYTES, num_beams=1, max_length=24)
    translator.longest_target = 3
    assert max(map(len, translator(["a dog", "b"]))) == 3


def test_new_weights_are_seen_and_greedy_search_ignores_the_options_of_beam_search(translators):
    model, options = random_model(2), {"length_penalty": 1.0, "penalty": "gnmt", "coverage_penalty": 0.2}
    translator = Translator(model, BYTES, num_beams=1, max_length=24, **options)
    before = translator(TEXTS)
    model.set_weights(translators[1].models[0].get_weights())
    assert before != translator(TEXTS) == translators[1](TEXTS)


@ONE_WIDTH
@pytest.mark.parametrize("precision", ["mixed_bfloat16", pytest.param("mixed_float16", marks=pytest.mark.slow)])
def test_models_in_mixed_precision_translate_alone_and_together(precision, translators):
    keras.config.set_dtype_policy(precision)
    try:
        model = random_model()
    finally:
        keras.config.set_dtype_policy("float32")
    assert model.compute_dtype == precision.removeprefix("mixed_")
    covering = Translator(model, BYTES, num_beams=2, coverage_penalty=0.2, batch_size=2, max_length=24)
    together = Translator([model, *translators[1].models], BYTES, num_beams=1, batch_size=2, max_length=24)
    ((translation, score),) = covering.n_best(["a dog"], 1)[0]
    assert translation and -100 < score < 0 and together(["a dog"])[0]


def test_texts_are_truncated_where_learned_positions_end():
    translator = Translator(random_model(positions="learned", max_length=12), BYTES, num_beams=1)
    with pytest.warns(UserWarning, match="19 of 30 tokens"):
        assert isinstance(translator(["a" * 30])[0], str)


@pytest.mark.slow
@TRACED
def test_many_sentences_need_few_programs(monkeypatch):
    programs = []
    search = Translator.search
    monkeypatch.setattr(Translator, "search", lambda *args, **options: programs.append(1) or search(*args, **options))
    translator = Translator(random_model(), BYTES, num_beams=1, max_length=24)
    lengths = np.random.default_rng(0).integers(1, 23, 200)
    translator(["a" * length for length in lengths])
    assert len(programs) == 2  # one for each width, 16 and 24


class Counting(Translator):
    """Counts the programs that it makes; copies of it count together."""

    jit_compile = False

    def __init__(self, *arguments, **options):
        self.traced = []
        super().__init__(*arguments, **options)

    def search(self, *arguments, **options):
        self.traced.append(1)
        return super().search(*arguments, **options)


@TRACED
@pytest.mark.slow
def test_after_a_warm_up_no_call_compiles():
    translator = Counting(random_model(), BYTES, num_beams=1, batch_size=10, max_length=24)
    translator.warm_up()
    assert len(translator.traced) == 4  # two widths, two batch sizes
    translator(TEXTS)
    translator(["a", "a longer text"] * 9)
    assert len(translator.traced) == 4
    made = several_translator()
    translator = Counting(made.models, *made.tokenizers, sampler=made.sampler, batch_size=4, max_length=20)
    translator.warm_up()
    assert len(translator.traced) == 4  # two widths, for one and for several hypotheses
    with pytest.warns(UserWarning, match="not translated"):
        translator("{a} {b} {c} {d}", target_language="de")  # tries several, since there are only three slots
    assert len(translator.traced) == 4


@TRACED
@pytest.mark.slow
@pytest.mark.usefixtures("little_garbage")
def test_translators_of_one_model_share_their_programs(one_width):
    model = random_model()
    first, second = (Counting(model, BYTES, num_beams=2, max_length=24) for _ in range(2))
    answers = first(TEXTS)
    first.longest_target = 3  # concerns only this one
    assert second(TEXTS) == answers != first(TEXTS)
    assert len(first.traced) == 2 and not second.traced
    shorter = Counting(model, BYTES, num_beams=2, max_length=20)
    with pytest.warns(UserWarning, match="tokens"):
        shorter(TEXTS)
    assert len(shorter.traced) == 1
    model.quantize("int4")
    third = Counting(model, BYTES, num_beams=2, max_length=24)
    assert third(TEXTS) != answers and len(third.traced) == 1


def test_a_stream_is_read_chunk_by_chunk(translator):
    read = []
    lines = (read.append(number) or text for number, text in enumerate(TEXTS * 3))
    stream = translator.stream(lines, chunk=5)
    answers = [next(stream)]
    assert len(read) == 5
    assert answers + list(stream) == translator(TEXTS) * 3


def test_bad_arguments(tmp_path, translators):
    (model,) = translators[1].models
    with refused("texts"):
        Translator(model, BYTES)(["a text", None])
    for name, value in {
        "length_penalty": "x",
        "coverage_penalty": -1,
        "no_repeat_ngram_size": 1.5,
        "min_length": 9999,
    }.items():
        with pytest.raises(ValueError, match=f"`{name}` must be"):
            Translator(model, BYTES, **{name: value})
    with pytest.raises(
        ValueError, match="`coverage_penalty` must be 0 for an ensemble. Received: coverage_penalty=0.2"
    ):
        Translator([model] * 2, BYTES, coverage_penalty=0.2)
    with refused("num_beams"):
        Translator(model, BYTES, num_beams=0)
    with refused("option"):
        Translator(model, BYTES, beams=2)
    with refused("sampler"):
        Translator(model, BYTES, sampler="greedy")
    with pytest.raises(FileNotFoundError, match=r"must contain model.keras"):
        Translator.load(tmp_path)
    (tmp_path / "config.json").write_text("{}")  # CTranslate2 has one, and so has a run
    (tmp_path / "model.bin").touch()
    with refused("folder"):
        Translator.load(tmp_path)
