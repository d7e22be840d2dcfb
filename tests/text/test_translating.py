"""Languages and placeholders in the calls of a translator."""

import pytest
from conftest import refused, several_translator, small_translator

from keras_tfm.decoding import Greedy, Sample


@pytest.fixture(scope="module")
def translator():
    made = several_translator()
    made.jit_compile = False
    return made


@pytest.mark.parametrize("sampler", [None, Greedy(), Sample(seed=1)])
def test_a_text_that_would_lose_placeholders_comes_back_with_a_warning(sampler, translator):
    text = "{a} {b} {c} {d}"  # the model knows three
    options = {"sampler": sampler} if sampler else {}
    with pytest.warns(UserWarning, match="since the translation can keep at most 3 placeholders in a line: .{a}"):
        assert translator(text, target_language="de", **options) == text


def test_whatever_is_lost_of_a_long_text_is_reported(translator):
    """A sentence of more tokens than the model reads is not translated; several short ones are, one by one."""
    endless, several = "a dog runs " * 30, "a dog runs! " * 10
    actual = translator.translate_protected([endless, several], target_language="de")
    assert actual[0] == (endless, "would lack the end of a long sentence") and not actual[1].problem
    one = actual[1].text[: len(actual[1].text) // 10]
    assert one.strip() and actual[1].text == one * 10
    with pytest.warns(UserWarning, match="not translated, since the translation would lack the end"):
        assert translator(endless, target_language="de") == endless


def test_the_byte_tokens_of_a_sentence_count(translator):
    """Characters that the tokenizer does not know are several tokens each: so few can be too many for the model."""
    text = "{a} {b} {c} " + "żółwąęść" * 6
    assert len(text) < translator.max_length < len(translator.source_tokenizer.encode([text])[0])
    expected = text, "would lack the end of a long sentence"
    assert translator.translate_protected([text], target_language="de") == [expected]


def test_a_text_without_n_best_comes_back_with_a_warning(translator):
    text = "{a} {b} {c} {d}"  # the model knows three
    with pytest.warns(UserWarning, match="at most 3 placeholders in a line: .{a}") as said:
        assert translator.n_best(["a dog", text], 2, target_language="de")[1] == [(text, 0.0)]
    (ours,) = (warning for warning in said if warning.category is UserWarning)
    assert ours.filename == __file__


def test_the_default_language_may_be_spelled_like_that_of_a_call(translator):
    expected = translator("a dog", target_language="de")
    for spelling in ("de_DE", "DE", ["de"]):
        other = translator.with_settings(target_language=spelling)
        assert other.target_language == "de" and other("a dog") == expected


def test_what_utf_8_cannot_encode_is_not_copied(translator):
    assert "?" in translator("a \udcff {a}", target_language="de").encode().decode()


def test_each_text_needs_its_markup(translator):
    with refused("markups"):
        translator.translate_protected(["a dog", "b"], [None], "de")


def test_each_text_needs_a_language_unless_the_model_has_only_one(translator):
    assert translator(">>fr<<a dog") == translator("a dog", target_language="fr")
    assert ">>fr<<" in translator(">>fr<<a dog", target_language="de")  # which then is a text like any other
    with refused("target_language"):
        translator(["a dog"])
    one = small_translator("bpe", symbols=[">>fra<<"], num_beams=1)  # as in some models of OPUS-MT
    one.jit_compile = False
    assert one(">>fra<<a dog") == one("a dog", target_language="fra") and len(one(["a dog"])) == 1
