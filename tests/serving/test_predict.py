"""From the body of a request to its texts."""

import asyncio
import json
import random

import pytest
from conftest import once, small_translator

from keras_tfm.serving.predict import count_sentences, largest_body, read_prediction, shortened
from keras_tfm.serving.responses import RequestError
from keras_tfm.text import pieces

pytestmark = once


def read(request, max_length=None, max_texts=4, max_characters=20):
    body = request if isinstance(request, bytes) else json.dumps(request).encode()
    return asyncio.run(read_prediction(body, asyncio.Lock(), max_texts, max_characters, max_length))


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
    assert read(request_) == (["a", "b"], [1, 1], key)


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
    with pytest.raises(RequestError) as caught:
        read(request_)
    assert caught.value.status == status and message in str(caught.value)


def test_a_body_within_the_limits_is_never_too_large():
    texts = ["🙂" * 20] * 4
    for request in ({"instances": texts}, {"instances": [{"texts": text} for text in texts]}):
        body = json.dumps(request, indent=8).encode()
        assert len(body) <= largest_body(4, 20) and read(body)[0] == texts


def test_lines_and_sentences_that_are_translated_one_by_one_count_as_texts():
    lines = ["1\n2\n", "3\r\n\n5"]
    assert read({"instances": lines})[1] == [1, 1]  # an export splits nothing
    with pytest.raises(RequestError) as caught:
        read({"instances": lines}, max_length=64)
    rule = "`instances` must be at most 4 lines, or sentences of lines of 64 or more bytes. Received: 5"
    assert (caught.value.status, str(caught.value)) == (413, rule)
    assert read({"instances": ["1\n2\n", "3. 4."]}, max_length=64)[1] == [2, 1]


@pytest.mark.filterwarnings("ignore:.*cut off")
def test_a_text_never_has_more_pieces_than_it_counts_for():
    translator, rng = small_translator("bytes"), random.Random(0)
    for _ in range(300):
        alphabet = rng.choice(["ab. \n", "a.\n", "é! ?\r\n", "你。！\n", "ab", "\ufdfa. "])
        text = "".join(rng.choice(alphabet) for _ in range(rng.randrange(300)))
        divided = pieces.split(translator.source_tokenizer, [text], translator.max_length, stacklevel=2)[0]
        assert sum(bool(ids) for ids, _ in divided) <= count_sentences(text, translator.max_length)


def test_others_have_their_turn_while_a_large_body_is_read():
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
        requests = (read_prediction(memoryview(body), lock, 64, 5000, 512) for _ in range(2))
        found = await asyncio.gather(*requests)
        done.set()
        await counting
        assert [parsed for parsed, *_ in found] == [texts, texts]
        return turns

    assert asyncio.run(run()) > 10


def test_little_is_quoted_of_a_large_value():
    assert shortened(["a", 1, None, {"b": []}]) == '["a", 1, null, {"b": []}]'
    for large in ("a" * 10**6, ["a" * 10**6] * 100, {"a" * 10**6: [[1] * 10**6]}):
        assert len(shortened(large)) <= 82 and shortened(large).endswith(" …")
