"""Workers of real servers that die, hang, and are replaced by others with a new model."""

import os
import pathlib
import shutil
import signal
import time

import pytest
from conftest import once
from http_server import DATES, LITERT, PAIRS, PREDICT, TEXTS, needs_extra, served

from keras_tfm.common import files

pytestmark = [once, pytest.mark.xdist_group("serving")]


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
        assert server.metric("worker_restarts_total") == 3
    assert server.events()[-1] == "stopped" and not [status for status in server.events("status") if status >= 500]


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


def replace(path, content):
    """Puts a new file in place of one that a worker may have mapped into its memory, as exports do."""
    with files.atomic_write(path) as new:
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
        replace(model / "model.tflite", whole[:-1])
        server.process.send_signal(signal.SIGHUP)
        server.wait(lambda: "reloading failed" in server.events())
        assert "model.tflite: damaged" in server.events("error")[0]
        server.wait(lambda: server.worker() == first)
        replace(model / "model.tflite", whole)
        server.process.send_signal(signal.SIGHUP)
        server.wait(lambda: "reloaded" in server.events())
        assert all(all(answer.result()) and answer.result() for answer in answers)
        server.wait(lambda: server.worker() != first)
        assert '"version":"2"' in server.ask("/v1/models/translator")[1]
        assert server.metric("worker_restarts_total") == 0


# ── models that break ──


@pytest.mark.slow
@needs_extra
def test_a_worker_whose_model_is_overwritten_is_not_ready(tmp_path):
    """Its file is mapped into memory, so that it cannot translate any more: until the file is whole again, 503."""
    model = shutil.copytree(LITERT, tmp_path / "model")
    with served(tmp_path / "log", "--timeout=5", model=model) as server:
        whole = (model / "model.tflite").read_bytes()
        with open(model / "model.tflite", "r+b") as file:  # in place
            file.write(bytes(len(whole)))
        assert server.post(TEXTS)[0] in (500, 504)  # whoever finds it out
        server.wait(lambda: "loading failed" in server.events())
        assert not server.is_ready()
        status, answer, headers = server.ask(PREDICT, b'{"instances": ["a"]}')
        assert (status, headers["Retry-After"]) == (503, "1") and "model.tflite: damaged" in answer
        replace(model / "model.tflite", whole)
        server.wait(server.is_ready)
        assert server.post(TEXTS) == (200, DATES)


@needs_extra
def test_a_request_before_the_first_worker_is_ready_is_refused_at_once(tmp_path):
    with served(tmp_path / "log", ready=False) as server:
        status, answer, headers = server.ask(PREDICT, b'{"instances": ["a"]}')
        assert (status, headers["Retry-After"]) == (503, "1") and "no worker is ready: the model is being" in answer
        assert server.ask("/readyz")[:2] == (503, "loading\n") and server.ask("/healthz")[0] == 200
        server.wait(server.is_ready)
        assert server.post(TEXTS) == (200, DATES)
