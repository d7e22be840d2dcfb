import json

from keras_tfm.serving.responses import RequestError, Response, Unavailable


def test_a_response_has_the_given_status_body_and_headers():
    assert json.loads(Response.json({"predictions": ["é", "🙂"]}).body) == {"predictions": ["é", "🙂"]}
    assert Response.text("ready").body == b"ready\n"
    refused = RequestError(413, "too \ud83d large").response  # half of a surrogate pair
    assert (refused.status, json.loads(refused.body)) == (413, {"error": "too ? large"})
    assert (Unavailable("later").response.status, Unavailable("later").response.headers) == (503, {"Retry-After": "1"})
