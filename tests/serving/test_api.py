"""What a real server answers to each request."""

import contextlib
import http.client
import json
import statistics
import time

import pytest
from conftest import once
from http_server import DATES, PREDICT, TEXTS, needs_extra

pytestmark = [once, pytest.mark.xdist_group("serving")]


@needs_extra
def test_texts_are_translated(server):
    assert server.post(TEXTS) == (200, DATES)
    assert server.post(["", TEXTS[0], "\ud83d", "🙂\n" * 9])[1][:2] == ["", DATES[0]]
    lines = server.log.read_text()
    assert '"status": 200, "texts": 2, "characters": 35, "milliseconds": ' in lines and "Mai" not in lines


@needs_extra
@pytest.mark.parametrize(
    "request_, answer",
    [
        ({"instances": TEXTS}, {"predictions": DATES}),
        ({"instances": [{"texts": TEXTS[0]}, {"texts": TEXTS[1]}]}, {"predictions": DATES}),
        ({"instances": [{"b64": "NCBqdWlsbGV0IDE5OTk="}], "other": {"keys": [1.5, None]}}, {"predictions": DATES[1:]}),
        ({"inputs": TEXTS, "signature_name": "serving_default"}, {"outputs": DATES}),
        ({"inputs": {"texts": TEXTS}}, {"outputs": DATES}),
        ({"inputs": {"texts": [{"b64": "NCBqdWlsbGV0IDE5OTk="}]}}, {"outputs": DATES[1:]}),
    ],
)
def test_requests_may_have_all_forms_of_tensorflow_serving(server, request_, answer):
    status, found, _ = server.ask(PREDICT, json.dumps(request_).encode())
    assert (status, json.loads(found)) == (200, answer)


@needs_extra
def test_texts_may_be_as_long_as_promised_however_they_are_written(server):
    texts = ["🙂" * 100] * 8  # each character takes 12 bytes as an escape of JSON
    status, answer, _ = server.ask(PREDICT, json.dumps({"instances": texts}, indent=16).encode())
    assert status == 200, answer


@needs_extra
@pytest.mark.parametrize(
    "body, status, message",
    [
        (b"", 422, 'the body must be a JSON object, {"instances": ["a text", …]}. Received: no body'),
        (b"{", 422, "Received: 1 bytes that are not JSON"),
        (b"\xff", 422, "Received: 1 bytes that are not JSON"),
        (b"[" * 100_000, 413, "the body must have at most 11648 bytes"),
        (b"[" * 9_600, 422, "Received: lists or objects nested more than 8 deep"),
        (b"[" * 968 + b"]" * 968, 422, "Received: lists or objects nested more than 8 deep"),
        (b'{"instances": ' + b"[" * 968 + b"]" * 968 + b"}", 422, "nested more than 8 deep"),
        (b'{"instances": [' + b"[]," * 3_000 + b"[]]}", 413, "Received: more than 128 values"),
        (b'{"instances": ["' + b"a" * 9_000 + b'"]}', 413, "Received: a string of more than 1202 bytes"),
        (b'["a"]', 422, 'Received: ["a"]'),
        (b"null", 422, "Received: null"),
        (b"{}", 422, "`instances` must be a list of one or more strings. Received: no instances"),
        (b'{"instances": []}', 422, "`instances` must be a list of one or more strings. Received: []"),
        (b'{"instances": "a"}', 422, 'Received: "a"'),
        (b'{"instances": "\\ud83d"}', 422, 'Received: "?"'),
        (b'{"instances": ["a", 1]}', 422, 'Received: ["a", 1]'),
        (b'{"instances": [["a"]]}', 422, 'Received: [["a"]]'),
        (b'{"instances": ["a"], "signature_name": "tokens"}', 422, "`signature_name` must be serving_default;"),
        (json.dumps({"instances": ["a"] * 9}).encode(), 413, "`instances` must be at most 8 strings. Received: 9"),
        (json.dumps({"instances": ["a" * 101]}).encode(), 413, "strings of at most 100 characters. Received: 101"),
    ],
)
def test_a_request_beyond_the_rules_is_refused_with_the_rule(server, body, status, message):
    found, answer, _ = server.ask(PREDICT, body)
    assert found == status and message in json.loads(answer)["error"]


@needs_extra
def test_what_an_operator_can_ask(server):
    assert server.ask("/healthz")[:2] == (200, "alive\n") and server.ask("/readyz")[:2] == (200, "ready\n")
    state = json.loads(server.ask("/v1/models/translator")[1])["model_version_status"][0]
    assert (state["version"], state["state"], state["status"]["error_code"]) == ("1", "AVAILABLE", "OK")
    assert server.ask("/v1/models/other:predict", b"{}")[:2] == (404, '{"error":"Not Found"}')
    assert server.ask(PREDICT)[0] == 405
    assert server.metric('requests_total{status="404"}') == server.metric('requests_total{status="405"}') == 1
    assert '"status": 404, "method": "POST", "path": "/v1/models/other:predict"' in server.log.read_text()
    before = server.metric("texts_total"), server.metric("cut_texts_total")
    assert server.post([*TEXTS, "a " * 50])[0] == 200
    assert (server.metric("texts_total"), server.metric("cut_texts_total")) == (before[0] + 3, before[1] + 1)
    assert server.metric('requests_total{status="200"}') >= 1 and server.metric("workers_ready") == 1


@needs_extra
def test_the_head_of_an_answer_is_that_of_the_answer(server):
    with contextlib.closing(http.client.HTTPConnection(server.address.removeprefix("http://"))) as connection:
        for _ in range(2):  # the connection stays usable
            connection.request("HEAD", "/healthz")
            answer = connection.getresponse()
            assert (answer.status, answer.read(), answer.headers["Content-Length"]) == (200, b"", "6")


@needs_extra
def test_answers_over_one_connection_come_without_delay(server):
    def seconds():
        start = time.perf_counter()
        connection.request("POST", PREDICT, json.dumps({"instances": TEXTS[:1]}))
        assert json.load(connection.getresponse()) == {"predictions": DATES[:1]}
        return time.perf_counter() - start

    with contextlib.closing(http.client.HTTPConnection(server.address.removeprefix("http://"))) as connection:
        times = [seconds() for _ in range(20)]
    assert statistics.median(times) < 0.035  # half-sent answers would take 0.04
