import json

from keras_tfm.serving.answers import Answer, Busy, Refused, shortened


def test_an_answer_is_what_its_maker_says():
    assert json.loads(Answer.json({"predictions": ["é", "🙂"]}).body) == {"predictions": ["é", "🙂"]}
    assert Answer.text("ready").body == b"ready\n"
    refused = Refused(413, "too \ud83d large").answer  # half of a surrogate pair
    assert (refused.status, json.loads(refused.body)) == (413, {"error": "too ? large"})
    assert (Busy("later").answer.status, Busy("later").answer.headers) == (503, {"Retry-After": "1"})


def test_little_is_quoted_of_a_large_value():
    assert shortened(["a", 1, None, {"b": []}]) == '["a", 1, null, {"b": []}]'
    for large in ("a" * 10**6, ["a" * 10**6] * 100, {"a" * 10**6: [[1] * 10**6]}):
        assert len(shortened(large)) <= 82 and shortened(large).endswith(" …")
