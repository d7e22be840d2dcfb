"""The SavedModel of dates behind a server over HTTP, and run as TensorFlow Serving runs it."""

import contextlib
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request

import pytest
from conftest import once

from keras_tfm import tasks

ROOT = pathlib.Path(__file__).parent.parent
FOLDER = ROOT / "saved_models/dates/saved_model"
TEXTS, DATES = ["Mittwoch, 3. Mai 2023", "4 juillet 1999"], ["2023-05-03", "1999-07-04"]


@contextlib.contextmanager
def serving(log, seconds=120):
    """The address of a fresh server, which ends with the block, whatever happens in it."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, ROOT / "examples/serve.py", "--address", "127.0.0.1", "--port", str(port)]
    environment = {**os.environ, "SAVED_MODEL": str(FOLDER)}
    with (
        open(log, "wb") as output,
        subprocess.Popen(command, env=environment, stdout=output, stderr=output, start_new_session=True) as server,
    ):
        try:
            end = time.monotonic() + seconds
            while True:  # it listens once its worker has loaded the model
                assert server.poll() is None and time.monotonic() < end, log.read_text()
                with contextlib.suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=5):
                    break
                time.sleep(0.1)
            yield f"http://127.0.0.1:{port}/v1/models/translator:predict"
        finally:
            server.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                server.wait(10)
            with contextlib.suppress(ProcessLookupError):  # its workers too
                os.killpg(server.pid, signal.SIGKILL)


def post(address, **request):
    """What a server answers: the status and the JSON or text of the body."""
    query = urllib.request.Request(address, json.dumps(request).encode(), {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(query, timeout=60) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


@pytest.mark.slow
@once
def test_a_server_answers_over_http(tmp_path):
    pytest.importorskip("mosec", reason="the server is not installed: pip install 'keras_tfm[serve]'")
    with serving(tmp_path / "server.log") as address:
        assert post(address, instances=TEXTS) == (200, {"predictions": DATES})
        status, answer = post(address, instances=TEXTS, signature_name="translate")
        assert status == 200 and [row["translations"][0] for row in answer["predictions"]] == DATES
        bad_ids = [{"instances": [[n, 2]], "signature_name": "tokens"} for n in (-5, 5000, 2**40, 2**70, 1.5, "a")]
        for bad in (
            {"instances": TEXTS, "signature_name": "none"},
            {"instances": "a"},
            {"instances": [TEXTS]},
            {},
            *bad_ids,
        ):
            assert post(address, **bad)[0] == 422, bad
    with pytest.raises(OSError):
        post(address, instances=TEXTS)


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


@once
@pytest.mark.skipif(sys.platform != "linux", reason="XLA is disabled by a symbol of the Linux packages")
def test_a_session_without_xla_answers():
    texts, dates = zip(*tasks.dates(100, "test"), strict=True)
    command = [sys.executable, "-W", "ignore", "-c", SESSION, FOLDER]
    run = subprocess.run(command, input=json.dumps(texts), capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    method, found, errors = json.loads(run.stdout.splitlines()[-1])
    assert method == "tensorflow/serving/predict" and errors == [True, True, True]
    assert found == {"translation": list(dates)}
