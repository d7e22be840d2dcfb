"""Real servers with the model of dates: how they start and end, and what they withstand.

At the end, the SavedModel as TensorFlow Serving runs it.
"""

import contextlib
import dataclasses
import http.client
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time
import urllib.request

import pytest
from conftest import once, refused
from http_server import DATES, LITERT, PAIRS, PREDICT, ROOT, TEXTS, needs_extra, served

import keras_tfm
from keras_tfm import serving
from keras_tfm.data import tasks

FOLDER = ROOT / "saved_models/dates/saved_model"
pytestmark = [once, pytest.mark.xdist_group("serving")]


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
        assert server.process.wait(10) == 0
        assert server.events() == ["listening", "loading", "worker ready", "stopped"]
        with pytest.raises(OSError):
            urllib.request.urlopen(f"{address}/healthz")


@needs_extra
def test_a_client_that_keeps_its_connection_loses_no_request_when_the_server_stops(tmp_path):
    with served(tmp_path / "log") as server:
        with contextlib.closing(http.client.HTTPConnection(server.address.removeprefix("http://"))) as connection:
            for stopping in (False, True):
                connection.request("POST", PREDICT, json.dumps({"instances": TEXTS}))
                answer = connection.getresponse()
                assert json.load(answer) == {"predictions": DATES}
                assert answer.headers["Connection"] == ("close" if stopping else None)
                if not stopping:
                    server.process.terminate()
                    time.sleep(0.3)
        assert server.process.wait(10) == 0 and server.events()[-1] == "stopped"


# ── hostile clients ──


def resident(process):
    """Megabytes of a process."""
    return int(pathlib.Path(f"/proc/{process.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


@needs_extra
def test_a_large_body_neither_stops_others_nor_fills_the_memory(tmp_path, clients):
    body = b'{"instances":[' + b"[]," * 10_000_000 + b"[]]}"
    with served(tmp_path / "log") as server:
        rest, longest, most = resident(server.process), 0, 0
        answer = clients.submit(server.ask, PREDICT, body)
        while not answer.done():
            start = time.perf_counter()
            assert server.post(TEXTS) == (200, DATES)
            longest, most = max(longest, time.perf_counter() - start), max(most, resident(server.process))
        status, message, _ = answer.result()
        assert status == 413 and "Received: more than 2112 values" in message and len(message) < 200
        assert longest < 3 and most < rest + 60


@needs_extra
@pytest.mark.slow
def test_all_that_the_guide_promises_fits_into_a_request(tmp_path):
    texts = ["🙂" * 10_000] * 256
    with served(tmp_path / "log", "--timeout=300") as server:
        status, answer, _ = server.ask(PREDICT, json.dumps({"instances": texts}).encode())
        assert status == 200 and len(json.loads(answer)["predictions"]) == 256


@needs_extra
@pytest.mark.slow
def test_a_server_stops_while_clients_do_not_read(tmp_path):
    with served(tmp_path / "log") as server, contextlib.ExitStack() as stack:
        for data in (b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n" * 1000, b"GET / HTTP/1.1\r\nHost", b""):
            connection = stack.enter_context(server.connect())
            connection.setblocking(False)
            connection.send(data)
        time.sleep(2)
        server.process.terminate()
        assert server.process.wait(10) == 0


@needs_extra
@pytest.mark.slow
def test_a_server_withstands_many_hostile_connections(tmp_path):
    """1,000 half-open connections, 64 bodies of 30 MB, 20 slow clients, 20 that never read; then SIGTERM."""
    program, figures = ROOT / "benchmarks/serving.py", tmp_path / "figures.json"
    command = [sys.executable, program, LITERT, "--only", "siege", "--seconds", "8", "--json", figures]
    run = subprocess.run(command, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    quiet, siege, stop = json.loads(figures.read_text())
    assert [*siege["answers"]] == ["200"] and not siege["wrong"]
    # milliseconds: others are served as ever; how much slower is for the benchmark to say, which has the machine alone
    assert siege["p50"] < 1000 and siege["memory"][0] < 2 * quiet["memory"][0], run.stdout
    assert stop["answers"] == {"200": 16} and stop["seconds"] < 10, run.stdout


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
    with refused("max_queue"):
        serving.Settings(max_queue=9)


@needs_extra
@pytest.mark.slow
@pytest.mark.parametrize("format", ["keras", "saved_model", "ctranslate2", "onnx"])
def test_every_format_can_be_served(format, tmp_path):
    model = {"keras": ROOT / "keras_tfm/shipped/dates", "saved_model": FOLDER}.get(format, tmp_path / "model")
    if not model.exists():
        keras_tfm.Translator.from_preset("dates", max_length=64).export(model, format=format)
    flags = ["--num_beams=2", "--max_length=64"] if format == "keras" else []
    with served(tmp_path / "log", *flags, model=model) as server:
        assert server.post(TEXTS) == (200, DATES)
        assert server.post([text for text, _ in PAIRS]) == (200, [date for _, date in PAIRS])
        if format == "keras":  # which translates line by line: this would take minutes
            assert server.post(["1\n" * 5000] * 64)[0] == 413
            assert server.post(["\n".join(TEXTS)]) == (200, ["\n".join(DATES)])


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


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="XLA is disabled by a symbol of the Linux packages")
def test_a_session_without_xla_translates():
    texts, dates = zip(*tasks.dates(100, "test"), strict=True)
    command = [sys.executable, "-W", "ignore", "-c", SESSION, FOLDER]
    run = subprocess.run(command, input=json.dumps(texts), capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    method, actual, errors = json.loads(run.stdout.splitlines()[-1])
    assert method == "tensorflow/serving/predict" and errors == [True, True, True]
    assert actual == {"translation": list(dates)}


@once
@needs_extra
def test_a_program_without_a_main_guard_gets_an_error_that_explains_it(tmp_path):
    program = f"from keras_tfm import serving; serving.serve({str(LITERT)!r}, serving.Settings(port=0))"
    (tmp_path / "program.py").write_text(program)
    run = subprocess.run([sys.executable, tmp_path / "program.py"], capture_output=True, text=True, timeout=120)
    assert run.returncode == 1
    assert '`serve` must be called under `if __name__ == "__main__":`' in run.stderr
