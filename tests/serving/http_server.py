"""Real servers for tests: `keras-tfm serve` in a process of its own, and what a client and an operator can ask it."""

import contextlib
import importlib.util
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

from keras_tfm import serving
from keras_tfm.data import tasks

ROOT = pathlib.Path(__file__).parents[2]
LITERT = ROOT / "saved_models/dates/litert"  # loads in a moment
PREDICT = "/v1/models/translator:predict"
TEXTS, DATES = ["Mittwoch, 3. Mai 2023", "4 juillet 1999"], ["2023-05-03", "1999-07-04"]
PAIRS = tasks.dates(64, "test")
MISSING = [name for name in serving.server.PACKAGES if importlib.util.find_spec(name) is None]
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
        while not (actual := condition()):
            assert self.process.poll() is None and time.monotonic() < end, self.log.read_text()
            time.sleep(0.02)
        return actual

    def wait_for_line(self, part):
        """Waits for a line with this part; a thread writes the log, so it may come after what it is about."""
        self.wait(lambda: any(part in line for line in self.log.read_text().splitlines()))

    @property
    def address(self):
        return self.wait(lambda: self.events("address"))[0].removesuffix(PREDICT)

    def ask(self, path, body=None):
        """Status, text and headers of a response."""
        try:
            with urllib.request.urlopen(urllib.request.Request(self.address + path, body), timeout=60) as answer:
                return answer.status, answer.read().decode(), answer.headers
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode(), error.headers

    def post(self, texts):
        status, answer, _ = self.ask(PREDICT, json.dumps({"instances": texts}).encode())
        return status, json.loads(answer).get("predictions")

    def connect(self):
        """A plain connection."""
        host, _, port = self.address.removeprefix("http://").partition(":")
        return socket.create_connection((host, int(port)), timeout=30)

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
def served(log, *flags, model=LITERT, ready=True, stderr=None):
    """A fresh server, which ends with the block, whatever happens in it."""
    command = [sys.executable, "-m", "keras_tfm", "serve", str(model), "--port=0", *flags]
    with open(log, "wb") as file, subprocess.Popen(command, stderr=stderr or file, start_new_session=True) as process:
        server = Server(process, log)
        try:
            if ready:
                server.wait(server.is_ready, 240)  # a model of Keras compiles first
            yield server
        finally:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(10)
            with contextlib.suppress(ProcessLookupError):  # its workers too
                os.killpg(process.pid, signal.SIGKILL)
