"""Real servers with the model of dates, most of them with its LiteRT file, which loads in a moment.

At the end, the SavedModel as TensorFlow Serving runs it.
"""

import concurrent.futures
import contextlib
import dataclasses
import http.client
import importlib.util
import json
import os
import pathlib
import shutil
import signal
import statistics
import subprocess
import sys
import time
import urllib.error
import urllib.request

import pytest
from conftest import once

import keras_tfm
from keras_tfm import files, serving, tasks

ROOT = pathlib.Path(__file__).parent.parent
FOLDER = ROOT / "saved_models/dates/saved_model"
LITERT = ROOT / "saved_models/dates/litert"
TEXTS, DATES = ["Mittwoch, 3. Mai 2023", "4 juillet 1999"], ["2023-05-03", "1999-07-04"]
PAIRS = tasks.dates(64, "test")
MISSING = [name for name in serving.PACKAGES if importlib.util.find_spec(name) is None]
needs_extra = pytest.mark.skipif(bool(MISSING), reason=f"not installed: {MISSING}; pip install 'keras_tfm[serve]'")


class Server:
    """A server process, and what a client and an operator can ask it."""

    def __init__(self, process, log):
        self.process, self.log = process, log

    def events(self, key="event"):
        """The values of a key in the lines that the server has written so far."""
        written = self.log.read_text().splitlines(keepends=True)
        lines = [json.loads(line) for line in written if line.startswith("{") and line.endswith("\n")]
        return [line[key] for line in lines if key in line]

    def wait(self, condition, seconds=60):
        end = time.monotonic() + seconds
        while not (found := condition()):
            assert self.process.poll() is None and time.monotonic() < end, self.log.read_text()
            time.sleep(0.02)
        return found

    @property
    def address(self):
        return self.wait(lambda: self.events("address"))[0].removesuffix("/v1/models/translator:predict")

    def ask(self, path, body=None):
        """Status, text and headers of an answer."""
        try:
            with urllib.request.urlopen(urllib.request.Request(self.address + path, body), timeout=60) as answer:
                return answer.status, answer.read().decode(), answer.headers
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode(), error.headers

    def post(self, texts):
        status, answer, _ = self.ask("/v1/models/translator:predict", json.dumps({"instances": texts}).encode())
        return status, json.loads(answer).get("predictions")

    def is_ready(self):
        return self.ask("/readyz")[0] == 200

    def metric(self, name):
        lines = [line.rpartition(" ") for line in self.ask("/metrics")[1].splitlines()]
        return next(float(value) for key, _, value in lines if key == f"keras_tfm_{name}")

    def worker(self):
        """The process of the newest worker."""
        children = pathlib.Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        return next(int(n) for n in reversed(children) if b"spawn" in pathlib.Path(f"/proc/{n}/cmdline").read_bytes())


@contextlib.contextmanager
def served(log, *flags, model=LITERT, ready=True):
    """A fresh server, which ends with the block, whatever happens in it."""
    command = [sys.executable, "-m", "keras_tfm", "serve", str(model), "--port=0", *flags]
    with open(log, "wb") as output, subprocess.Popen(command, stderr=output, start_new_session=True) as process:
        server = Server(process, log)
        try:
            if ready:
                server.wait(server.is_ready)
            yield server
        finally:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(10)
            with contextlib.suppress(ProcessLookupError):  # its workers too
                os.killpg(process.pid, signal.SIGKILL)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    flags = ["--max_texts=8", "--max_queue=8", "--max_characters=100"]
    with served(tmp_path_factory.mktemp("server") / "log", *flags) as server:
        yield server


@pytest.fixture
def clients():
    with concurrent.futures.ThreadPoolExecutor(16) as threads:
        yield threads


pytestmark = [once, pytest.mark.xdist_group("serving")]


# ── answers ──


@needs_extra
def test_texts_are_translated(server):
    assert server.post(TEXTS) == (200, DATES)
    assert server.post(["", TEXTS[0], "\ud83d", "🙂\n" * 9])[1][:2] == ["", DATES[0]]
    lines = server.log.read_text()
    assert '"status": 200, "texts": 2, "characters": 35, "milliseconds": ' in lines and "Mai" not in lines


@needs_extra
@pytest.mark.parametrize(
    "body, status, message",
    [
        (b"", 422, 'the body must be a JSON object, {"instances": ["a text", …]}. Received: no body'),
        (b"{", 422, "Received: 1 bytes that are not JSON"),
        (b"\xff", 422, "Received: 1 bytes that are not JSON"),
        (b"[" * 100_000, 413, "the body must have at most 9600 bytes"),
        (b"[" * 9_600, 422, "Received: 9600 bytes that are not JSON"),
        (b"[" * 900 + b"]" * 900, 422, "Received: [[["),
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
    found, answer, _ = server.ask("/v1/models/translator:predict", body)
    assert found == status and message in json.loads(answer)["error"]


@needs_extra
def test_what_an_operator_can_ask(server):
    assert server.ask("/healthz")[:2] == (200, "alive\n") and server.ask("/readyz")[:2] == (200, "ready\n")
    state = json.loads(server.ask("/v1/models/translator")[1])["model_version_status"][0]
    assert (state["version"], state["state"], state["status"]["error_code"]) == ("1", "AVAILABLE", "OK")
    assert server.ask("/v1/models/other:predict", b"{}")[:2] == (404, '{"error":"Not Found"}')
    assert server.ask("/v1/models/translator:predict")[0] == 405
    before = server.metric("texts_total"), server.metric("cut_texts_total")
    assert server.post([*TEXTS, "a " * 50])[0] == 200
    assert (server.metric("texts_total"), server.metric("cut_texts_total")) == (before[0] + 3, before[1] + 1)
    assert server.metric('requests_total{status="200"}') >= 1 and server.metric("workers_ready") == 1


@needs_extra
def test_answers_over_one_connection_come_without_delay(server):
    def seconds():
        start = time.perf_counter()
        connection.request("POST", "/v1/models/translator:predict", json.dumps({"instances": TEXTS[:1]}))
        assert json.load(connection.getresponse()) == {"predictions": DATES[:1]}
        return time.perf_counter() - start

    with contextlib.closing(http.client.HTTPConnection(server.address.removeprefix("http://"))) as connection:
        times = [seconds() for _ in range(20)]
    assert statistics.median(times) < 0.035  # half-sent answers would take 0.04


# ── the queue ──


@needs_extra
def test_texts_of_several_clients_share_a_batch_and_a_full_queue_is_said(tmp_path, clients):
    with served(tmp_path / "log", "--max_wait=2000", "--max_queue=16", "--max_texts=16", "--max_batch=16") as server:
        answers = [clients.submit(server.post, [text]) for text, _ in PAIRS[:15]]
        server.wait(lambda: server.metric("queue_texts") == 15)
        status, _, headers = server.ask("/v1/models/translator:predict", b'{"instances": ["a", "b"]}')
        assert (status, headers["Retry-After"]) == (503, "1")
        assert server.post([PAIRS[15][0]]) == (200, [PAIRS[15][1]])  # which fills the batch
        assert [answer.result() for answer in answers] == [(200, [date]) for _, date in PAIRS[:15]]
        assert (server.metric("batch_texts_count"), server.metric("batch_texts_sum")) == (1, 16)


@needs_extra
def test_a_request_is_divided_into_batches_and_the_log_can_be_switched_off(tmp_path):
    with served(tmp_path / "log", "--max_batch=24", "--no-log", "--workers=2") as server:
        assert server.post([text for text, _ in PAIRS]) == (200, [date for _, date in PAIRS])
        assert server.metric("batch_texts_count") == 3 and not server.events("status")


# ── workers ──


@needs_extra
def test_killed_workers_lose_no_request(tmp_path, clients):
    def ask(first):
        while len(killed) < 3:
            texts, dates = zip(*PAIRS[first : first + 8], strict=True)
            yield server.post(texts) == (200, [*dates])

    with served(tmp_path / "log") as server:
        killed = []
        answers = [clients.submit(lambda first=first: [*ask(first)]) for first in range(0, 56, 8)]
        for number in (1, 2, 3):
            server.wait(lambda number=number: server.events().count("worker ready") == number)
            time.sleep(0.2)  # under load
            os.kill(worker := server.worker(), signal.SIGKILL)
            killed.append(worker)
        assert all(all(answer.result()) and answer.result() for answer in answers)
        server.wait(server.is_ready)
        assert server.metric("worker_restarts_total") == 3 and '"status": 5' not in server.log.read_text()


@needs_extra
def test_a_batch_that_kills_two_workers_is_given_up(tmp_path, clients):
    many = 3000  # enough to keep a worker busy for seconds
    flags = [f"--max_{name}={many}" for name in ("batch", "texts", "queue")]
    with served(tmp_path / "log", *flags) as server:
        answer = clients.submit(server.post, [TEXTS[0]] * many)
        for number in (1, 2):
            server.wait(lambda number=number: server.events().count("worker ready") == number)
            time.sleep(0.3)
            os.kill(server.worker(), signal.SIGKILL)
        assert answer.result()[0] == 500
        assert server.post(TEXTS) == (200, DATES)


@needs_extra
def test_a_worker_that_hangs_is_replaced(tmp_path):
    with served(tmp_path / "log", "--timeout=1") as server:
        os.kill(server.worker(), signal.SIGSTOP)
        assert server.post(TEXTS)[0] == 504
        server.wait(lambda: server.events().count("worker ready") == 2)
        assert server.post(TEXTS) == (200, DATES) and server.metric("worker_restarts_total") == 1


@needs_extra
def test_workers_end_with_a_server_that_is_killed(tmp_path):
    with served(tmp_path / "log") as server:
        status = pathlib.Path(f"/proc/{server.worker()}/stat")
        server.process.kill()
        server.process.wait()
        end = time.monotonic() + 10
        while status.exists() and " Z " not in status.read_text():
            assert time.monotonic() < end
            time.sleep(0.02)


# ── signals ──


@needs_extra
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_server_that_is_stopped_finishes_what_it_accepted(number, tmp_path, clients):
    with served(tmp_path / "log", "--max_wait=1000") as server:
        address = server.address
        answer = clients.submit(server.post, TEXTS)
        server.wait(lambda: server.metric("queue_texts") == 2)
        os.killpg(server.process.pid, number)  # as a terminal and systemd do
        assert answer.result() == (200, DATES)
        assert server.process.wait(10) == 0 and server.events()[-1] == "stopped"
        with pytest.raises(OSError):
            urllib.request.urlopen(f"{address}/healthz")


def replace(path, content):
    """Puts a new file in place of one that a worker may have mapped into its memory, as exports do."""
    with files.whole(path) as new:
        new.write_bytes(content)


@needs_extra
def test_a_model_is_reloaded_and_one_that_cannot_be_loaded_is_not(tmp_path, clients):
    def ask(first):
        while "reloaded" not in server.events():
            yield server.post([PAIRS[first][0]]) == (200, [PAIRS[first][1]])

    model = shutil.copytree(LITERT, tmp_path / "model")
    with served(tmp_path / "log", model=model) as server:
        answers = [clients.submit(lambda first=first: [*ask(first)]) for first in range(4)]
        first = server.worker()
        whole = (model / "model.tflite").read_bytes()
        (model / "model.tflite").write_bytes(whole[:-1])
        server.process.send_signal(signal.SIGHUP)
        server.wait(lambda: "reloading failed" in server.events())
        assert "model.tflite: damaged" in server.events("error")[0]
        server.wait(lambda: server.worker() == first)
        (model / "model.tflite").write_bytes(whole)
        server.process.send_signal(signal.SIGHUP)
        server.wait(lambda: "reloaded" in server.events())
        assert all(all(answer.result()) and answer.result() for answer in answers)
        server.wait(lambda: server.worker() != first)
        assert '"version":"2"' in server.ask("/v1/models/translator")[1]
        assert server.metric("worker_restarts_total") == 0


# ── at the start ──


@needs_extra
def test_a_model_that_cannot_be_loaded_is_one_line(tmp_path):
    model = shutil.copytree(LITERT, tmp_path / "model")
    (model / "model.tflite").write_bytes(b"")
    with served(tmp_path / "log", model=model, ready=False) as server:
        assert server.process.wait(30) == 1
        last = server.log.read_text().splitlines()[-1]
        assert last.startswith("keras-tfm: error: ") and "model.tflite" in last


@needs_extra
def test_a_port_that_is_taken_is_named(server, tmp_path):
    port = server.address.rpartition(":")[2]
    with served(tmp_path / "log", f"--port={port}", ready=False) as second:
        assert second.process.wait(30) == 1
        assert "Address already in use" in second.log.read_text()


def test_a_queue_must_hold_a_request():
    with pytest.raises(ValueError, match="`max_queue` must be at least `max_texts`, here 256. Received: max_queue=9"):
        serving.Settings(max_queue=9)


@needs_extra
@pytest.mark.slow
@pytest.mark.parametrize("form", ["keras", "saved_model", "ctranslate2", "onnx"])
def test_every_format_can_be_served(form, tmp_path):
    model = {"keras": ROOT / "keras_tfm/shipped/dates", "saved_model": FOLDER}.get(form, tmp_path / "model")
    if not model.exists():
        keras_tfm.Translator.load(max_length=64).export(model, format=form)
    flags = ["--beams=2", "--max_length=64"] if form == "keras" else []
    with served(tmp_path / "log", *flags, model=model) as server:
        assert server.post(TEXTS) == (200, DATES)
        assert server.post([text for text, _ in PAIRS]) == (200, [date for _, date in PAIRS])


def test_the_guide_shows_the_files_of_the_examples():
    page = (ROOT / "docs/guides/serve.md").read_text()
    files = [*(ROOT / "examples/serve").iterdir()]
    assert len(files) == 3 and all(f"\n{file.read_text()}```" in page and file.name in page for file in files)


def test_the_guide_has_every_flag_with_its_default():
    page = (ROOT / "docs/guides/serve.md").read_text()
    for field in dataclasses.fields(serving.Settings):
        default = f"{field.default:g}" if isinstance(field.default, float) else field.default
        rows = {"threads": "| `--threads` | cores", "log": "| `--no-log` |"}
        assert rows.get(field.name, f"| `--{field.name}` | {default} |") in page, field.name


# ── TensorFlow Serving ──

# Runs signatures as TensorFlow Serving does by default: in a session, tensors by their names, nothing compiled by XLA.
SESSION = """
import ctypes, json, pathlib, sys
sys.modules["keras_tfm"] = None
import tensorflow as tf, tensorflow_text
library = ctypes.CDLL(str(pathlib.Path(tf.__file__).parent / "libtensorflow_cc.so.2"))
library._ZN10tensorflow21DisableXlaCompilationEv()
with tf.compat.v1.Session(graph=tf.Graph()) as session:
    model = tf.compat.v1.saved_model.load(session, ["serve"], sys.argv[1])
    signature = model.signature_def["serving_default"]
    names = {key: tensor.name for key, tensor in signature.outputs.items()}
    found = session.run(names, {signature.inputs["texts"].name: json.load(sys.stdin)})
    texts = {key: [text.decode() for text in value] for key, value in found.items()}
    signature = model.signature_def["tokens"]
    errors = []
    for number in (-5, 5000, 2**40):
        try:
            session.run(signature.outputs["ids"].name, {signature.inputs["ids"].name: [[number, 2]]})
        except tf.errors.InvalidArgumentError as error:
            errors.append("`ids` must be numbers from 0 to" in str(error))
    print(json.dumps([signature.method_name, texts, errors]))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="XLA is disabled by a symbol of the Linux packages")
def test_a_session_without_xla_answers():
    texts, dates = zip(*tasks.dates(100, "test"), strict=True)
    command = [sys.executable, "-W", "ignore", "-c", SESSION, FOLDER]
    run = subprocess.run(command, input=json.dumps(texts), capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    method, found, errors = json.loads(run.stdout.splitlines()[-1])
    assert method == "tensorflow/serving/predict" and errors == [True, True, True]
    assert found == {"translation": list(dates)}
