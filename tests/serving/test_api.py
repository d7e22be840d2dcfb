"""What a real server answers to each request."""

import contextlib
import http.client
import json
import statistics
import time

import pytest
from conftest import once, several_translator
from http_server import DATES, PREDICT, TEXTS, needs_extra, served

import keras_tfm

pytestmark = [once, pytest.mark.xdist_group("serving")]


@needs_extra
def test_texts_are_translated(server):
    assert server.post(TEXTS) == (200, DATES)
    assert server.post(["", TEXTS[0], "\ud83d", "🙂\n" * 9])[1][:2] == ["", DATES[0]]
    server.wait_for_line('"status": 200, "texts": 2, "characters": 35, "milliseconds": ')
    server.wait_for_line('"status": 200, "texts": 4, ')
    assert "Mai" not in server.log.read_text()


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
    status, actual, _ = server.ask(PREDICT, json.dumps(request_).encode())
    assert (status, json.loads(actual)) == (200, answer)


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
        (b"[" * 100_000, 413, "the body must have at most 12160 bytes"),
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
    actual, answer, _ = server.ask(PREDICT, body)
    assert actual == status and message in json.loads(answer)["error"]


@needs_extra
def test_health_status_and_metrics(server):
    assert server.ask("/healthz")[:2] == (200, "alive\n") and server.ask("/readyz")[:2] == (200, "ready\n")
    state = json.loads(server.ask("/v1/models/translator")[1])["model_version_status"][0]
    assert (state["version"], state["state"], state["status"]["error_code"]) == ("1", "AVAILABLE", "OK")
    assert server.ask("/v1/models/other:predict", b"{}")[:2] == (404, '{"error":"Not Found"}')
    assert server.ask(PREDICT)[0] == 405
    assert server.metric('requests_total{status="404"}') == server.metric('requests_total{status="405"}') == 1
    server.wait_for_line('"status": 404, "method": "POST", "path": "/v1/models/other:predict"')
    before = server.metric("texts_total"), server.metric("cut_texts_total")
    assert server.post([*TEXTS, "a " * 50])[0] == 200
    assert (server.metric("texts_total"), server.metric("cut_texts_total")) == (before[0] + 3, before[1] + 1)
    assert server.metric('requests_total{status="200"}') >= 1 and server.metric("workers_ready") == 1


@needs_extra
def test_head_requests_get_the_headers_of_the_response(server):
    with contextlib.closing(http.client.HTTPConnection(server.address.removeprefix("http://"))) as connection:
        for _ in range(2):  # the connection stays usable
            connection.request("HEAD", "/healthz")
            answer = connection.getresponse()
            assert (answer.status, answer.read(), answer.headers["Content-Length"]) == (200, b"", "6")


@needs_extra
def test_responses_over_one_connection_come_without_delay(server):
    def seconds():
        start = time.perf_counter()
        connection.request("POST", PREDICT, json.dumps({"instances": TEXTS[:1]}))
        assert json.load(connection.getresponse()) == {"predictions": DATES[:1]}
        return time.perf_counter() - start

    with contextlib.closing(http.client.HTTPConnection(server.address.removeprefix("http://"))) as connection:
        times = [seconds() for _ in range(20)]
    assert statistics.median(times) < 0.035  # half-sent answers would take 0.04


# ── several languages, and placeholders ──


@pytest.fixture(scope="module")
def several(tmp_path_factory):
    """A server of an untrained model with several languages and placeholders, and what translates with it in Python."""
    pytest.importorskip("ctranslate2", reason="CTranslate2 is not installed")
    folder = tmp_path_factory.mktemp("several") / "model"
    with pytest.warns(UserWarning, match="copied_tokens"):  # which CTranslate2 cannot copy: most placeholders are lost
        several_translator().export(folder, "ctranslate2")
    with served(folder.parent / "log", "--max_wait=200", model=folder) as server:
        yield server, keras_tfm.load(folder)


def ask(server, **request):
    status, answer, headers = server.ask(PREDICT, json.dumps(request).encode())
    return status, json.loads(answer), headers


@needs_extra
def test_texts_are_translated_into_the_language_that_is_named(several):
    server, translate = several
    german, french = (translate("a dog", target_language=language) for language in ("de", "fr"))
    assert german != french
    before = server.metric("batch_texts_count")
    status, answer, _ = ask(server, instances=["a dog", ">>fr<<a dog", {"texts": "a dog"}], target_language="de")
    assert (status, answer) == (200, {"predictions": [german, french, german]})
    rows = [{"texts": "a dog", "target_language": language} for language in ("fr", "de")]
    assert ask(server, instances=rows)[1] == {"predictions": [french, german]}
    assert server.metric("batch_texts_count") == before + 2  # one batch for all languages of a request
    assert ask(server, inputs=["a dog", ""], target_language="fr")[1] == {"outputs": [french, ""]}
    server.wait_for_line('"texts": 3, "characters": 21, ')  # a tag of the client's own counts


@needs_extra
def test_languages_are_listed_and_others_refused(several, server):
    state = json.loads(several[0].ask("/v1/models/translator")[1])
    assert state["languages"] == ["de", "fr"] and state["target_language"] is None
    assert "languages" not in json.loads(server.ask("/v1/models/translator")[1])  # dates
    for more in ({}, {"target_language": "it"}):
        status, answer, _ = ask(several[0], instances=["a dog"], **more)
        assert status == 422 and "`target_language` must be one of de, fr" in answer["error"]
    assert ask(server, instances=["a dog"], target_language="de")[0] == 422


@needs_extra
def test_untranslated_texts_are_reported(several):
    server, translate = several
    texts = ["a dog", "%s {n} <b>", "two cats", "Delete %s?"]
    expected = translate.translate_protected(texts, target_language="de")
    kept = [place for place, (_, problem) in enumerate(expected) if problem]
    assert 1 in kept and 0 not in kept
    before = server.metric("untranslated_texts_total")
    status, answer, headers = ask(server, instances=texts, target_language="de")
    assert (status, answer["predictions"]) == (200, [text for text, _ in expected]) and answer["predictions"][
        1
    ] == texts[1]
    assert headers["Untranslated"] == ", ".join(map(str, kept))
    assert server.metric("untranslated_texts_total") == before + len(kept)
    server.wait_for_line(f'"untranslated": {len(kept)}')
    assert len(server.events("untranslated")) == 1 and "Delete" not in server.log.read_text()
    assert "Untranslated" not in ask(server, instances=texts[:1], target_language="de")[2]
