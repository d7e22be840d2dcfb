"""From the body of a request to its texts."""

import asyncio
import json
import random
import re

import pytest
from conftest import BYTES, once, several_translator

from keras_tfm.serving.predict import Model, count_sentences, largest_body, read_prediction, shortened
from keras_tfm.serving.responses import RequestError
from keras_tfm.text import pieces, train_tokenizer

pytestmark = once
ONE, SEVERAL = Model(), Model(languages=("de", "fr"))


def read(request, model=ONE, max_texts=4, max_characters=20):
    body = request if isinstance(request, bytes) else json.dumps(request).encode()
    return asyncio.run(read_prediction(body, asyncio.Lock(), max_texts, max_characters, model))


def assert_refused(status, message, *arguments):
    with pytest.raises(RequestError) as caught:
        read(*arguments)
    assert caught.value.status == status and message in str(caught.value)


@pytest.mark.parametrize(
    "request_, key",
    [
        ({"instances": ["a", "b"]}, "predictions"),
        ({"instances": [{"texts": "a"}, {"texts": {"b64": "Yg=="}}]}, "predictions"),
        ({"instances": ["a", {"b64": "Yg=="}], "more": [[1], {}]}, "predictions"),
        ({"inputs": ["a", "b"]}, "outputs"),
        ({"inputs": {"texts": ["a", {"b64": "Yg=="}]}, "signature_name": "serving_default"}, "outputs"),
    ],
)
def test_all_forms_of_a_request_mean_the_same(request_, key):
    assert read(request_) == (["a", "b"], [1, 1], 2, key)


@pytest.mark.parametrize(
    "request_, status, message",
    [
        ({"instances": ["a"], "inputs": ["a"]}, 422, "`instances` or `inputs` must be given. Received: both"),
        ({"inputs": "a"}, 422, '`inputs` must be a list of one or more strings. Received: "a"'),
        (
            {"inputs": {"other": ["a"]}},
            422,
            '`inputs` must be a list of one or more strings. Received: {"other": ["a"]}',
        ),
        ({"inputs": [{"texts": "a"}]}, 422, "`inputs` must be a list of one or more strings"),
        ({"instances": [{"text": "a"}]}, 422, 'or of objects {"texts": "a text"}. Received: [{"text": "a"}]'),
        ({"instances": [{"texts": "a", "more": 1}]}, 422, 'or of objects {"texts": "a text"}'),
        ({"instances": [{"b64": "?"}]}, 422, '`b64` must be base64. Received: "?"'),
        ({"instances": ["a"] * 5}, 413, "`instances` must be at most 4 strings. Received: 5"),
        ({"inputs": ["a" * 21]}, 413, "`inputs` must be strings of at most 20 characters. Received: 21"),
        ({"instances": [{"b64": "YWFh" * 7}]}, 413, "strings of at most 20 characters. Received: 21"),
    ],
)
def test_a_request_beyond_the_rules_is_refused_with_the_rule(request_, status, message):
    assert_refused(status, message, request_)


@pytest.mark.parametrize(
    "request_, key",
    [
        ({"instances": ["a", "b"], "target_language": "de"}, "predictions"),
        ({"inputs": ["a", "b"], "target_language": "de"}, "outputs"),
        ({"inputs": {"texts": ["a", "b"]}, "target_language": "de"}, "outputs"),
        ({"instances": [{"texts": text, "target_language": "de"} for text in "ab"]}, "predictions"),
        ({"instances": ["a", {"target_language": "de", "texts": "b"}], "target_language": "de"}, "predictions"),
        ({"instances": [{"texts": "a"}, {"texts": {"b64": "Yg=="}}], "target_language": "de"}, "predictions"),
    ],
)
def test_all_ways_to_name_a_language_mean_the_same(request_, key):
    assert read(request_, SEVERAL) == ([">>de<<a", ">>de<<b"], [1, 1], 2, key)


def test_the_language_of_a_text_precedes_that_of_its_request():
    texts = [">>fr<<a", {"texts": "b", "target_language": "fr"}, "c", {"texts": "d", "target_language": None}, ""]
    request = {"instances": texts, "target_language": "de"}
    assert read(request, SEVERAL, 5).texts == [">>fr<<a", ">>fr<<b", ">>de<<c", ">>de<<d", ">>de<<"]
    with_default = SEVERAL._replace(target_language="fr")
    assert read({"instances": texts[:3]}, with_default).texts == [">>fr<<a", ">>fr<<b", "c"]


@pytest.mark.parametrize("language", ["it", "", "DE", ["de"], 5, {"b64": "ZGU="}])
def test_a_language_that_the_model_does_not_know_is_refused_with_those_that_it_does(language):
    named = {"target_language": language}
    for request in ({"instances": ["a"]} | named, {"instances": [{"texts": "a"} | named]}):
        message = f"`target_language` must be one of de, fr. Received: {json.dumps(language)}"
        assert_refused(422, message, request, SEVERAL)
        assert_refused(422, "`target_language` must be left out", request, ONE)


def test_each_text_needs_a_language_unless_the_model_has_a_default():
    for text in ("a", "", ">>it<<a", " >>de<<a", ">>de<"):
        message = "`target_language` must be one of de, fr. Received: none"
        assert_refused(422, message, {"instances": [">>de<<b", text]}, SEVERAL)
        assert read({"instances": [text]}, SEVERAL._replace(target_language="de")).texts == [text]


def test_the_tag_is_a_token_but_none_of_the_characters():
    text = "a" * 20
    assert read({"instances": [text], "target_language": "de"}, SEVERAL)[:3] == ([f">>de<<{text}"], [1], 20)
    long = "One. Two."  # 9 tokens at most, and 2 at its ends
    for max_length, languages, sentences in ((11, (), 1), (11, ("de",), 2), (12, ("de",), 1)):
        model = Model(max_length=max_length, languages=languages, target_language="de")
        assert read({"instances": [long]}, model).sentences == [sentences]


def test_a_body_within_the_limits_is_never_too_large():
    texts = ["🙂" * 20] * 4
    model = Model(languages=("zh-Hant-TW",), target_language="zh-Hant-TW")
    for more in ({}, {"target_language": "zh-Hant-TW"}):
        for request in ({"instances": texts}, {"instances": [{"texts": text} | more for text in texts]}):
            body = json.dumps(request, indent=8).encode()
            actual = read(body, model)
            assert (
                len(body) <= largest_body(4, 20)
                and [text.removeprefix(">>zh-Hant-TW<<") for text in actual.texts] == texts
            )


def test_lines_and_sentences_that_are_translated_one_by_one_count_as_texts():
    lines = ["1\n2\n", "3\r\n\n5"]
    assert read({"instances": lines})[1] == [1, 1]  # an export splits nothing
    rule = "`instances` must be at most 4 lines, or sentences of lines of 64 or more bytes. Received: 5"
    assert_refused(413, rule, {"instances": lines}, Model(max_length=64))
    assert read({"instances": ["1\n2\n", "3. 4."]}, Model(max_length=64))[1] == [2, 1]


@pytest.mark.filterwarnings("ignore:.*cut off")
def test_a_text_never_has_more_pieces_than_it_counts_for():
    rng = random.Random(0)
    for tokenizer, tag in ((BYTES, ""), (train_tokenizer(["ab é"], "char", 300, [">>de<<"]), ">>de<<")):
        for _ in range(300):
            alphabet = rng.choice(["ab. \n", "a.\n", "é! ?\r\n", "你。！\n", "ab", "\ufdfa. "])
            text = "".join(rng.choice(alphabet) for _ in range(rng.randrange(300)))
            divided = pieces.split(tokenizer, [text], [tag], 64, stacklevel=2)[0]
            assert sum(bool(ids) for ids, _ in divided) <= count_sentences(text, 64 - bool(tag))


def test_a_text_with_placeholders_never_has_more_pieces_than_it_counts_for():
    rng, translator = random.Random(0), several_translator()
    for number in range(300):
        alphabet = rng.choice(["a\t. \f", "{n}. ", "→. b", "。！\n", "a.  \x1c", "\ufdfa. ", "ab. "])
        text = "".join(rng.choice(re.findall(r"{n}|.", alphabet, re.DOTALL)) for _ in range(rng.randrange(500)))
        translator.languages = [["de", "fr"], []][number % 2]
        (masked,) = translator._mask_all([text], "de" if translator.languages else None, None)[1]
        count = count_sentences(text, translator.max_length - bool(translator.languages), placeholders=True)
        assert sum(bool(line.text) for line in translator._lines(masked.text)) <= count
    assert count_sentences(" Two\tlines. ", 512, placeholders=True) == 2


def test_other_requests_are_served_while_a_large_body_is_read():
    async def run():
        turns, done = 0, asyncio.Event()

        async def count():
            nonlocal turns
            while not done.is_set():
                turns += 1
                await asyncio.sleep(0)

        counting = asyncio.create_task(count())
        texts = ["🙂" * 5000] * 64  # some 4 MB, and 20 to 200 milliseconds
        body = json.dumps({"instances": texts}).encode()
        lock = asyncio.Lock()
        requests = (read_prediction(memoryview(body), lock, 64, 5000, Model(max_length=512)) for _ in range(2))
        actual = await asyncio.gather(*requests)
        done.set()
        await counting
        assert [each.texts for each in actual] == [texts, texts]
        return turns

    assert asyncio.run(run()) > 10


def test_errors_quote_only_the_beginning_of_a_large_value():
    assert shortened(["a", 1, None, {"b": []}]) == '["a", 1, null, {"b": []}]'
    for large in ("a" * 10**6, ["a" * 10**6] * 100, {"a" * 10**6: [[1] * 10**6]}):
        assert len(shortened(large)) <= 82 and shortened(large).endswith(" …")
