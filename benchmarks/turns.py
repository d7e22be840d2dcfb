"""Systems that are compared run in processes of their own and take turns, since machines are noisy."""

import contextlib
import importlib.util
import json
import os
import subprocess
import sys
import tempfile


class Child:
    """A process that runs one system: `python FILE --child ARGUMENTS`, where FILE calls `serve`."""

    def __init__(self, file, name, *arguments, needs=(), backend=None):
        self.file, self.name, self.arguments, self.backend = file, name, arguments, backend
        self.missing = missing(needs)
        self.answers, self.first, self.last, self.failure = [], None, None, None

    def start(self):
        """Waits until the system is ready; returns whether it is."""
        if self.missing:
            print(f"{self.name}: skipped, {', '.join(self.missing)} is not installed", flush=True)
            return False
        # Without the last, JAX would take most of a GPU's memory, and leave none for the next process.
        environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2", "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
        environment |= {"KERAS_BACKEND": self.backend} if self.backend else {}
        command = [sys.executable, self.file, "--child", *map(str, self.arguments)]
        # A pipe that nobody reads would fill up; `finish` closes the file.
        self.errors = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": self.errors, "text": True}
        self.process = subprocess.Popen(command, env=environment, **pipes)
        try:
            self.first = self._read()
        except EOFError:
            print(f"{self.name}: failed to start, {self._error()}", flush=True)
            self.finish()
            return False
        return True

    def turn(self, request):
        """Sends a request and keeps the answer."""
        with contextlib.suppress(BrokenPipeError):  # the process has ended: there is no answer either
            print(json.dumps(request), file=self.process.stdin, flush=True)
        try:
            answer = self._read()
        except EOFError:
            command = f"python {self.file} --child {' '.join(map(str, self.arguments))}"
            raise RuntimeError(f"{self.name} stopped at {request}: {self._error()} ({command})") from None
        self.answers.append(answer)
        return answer

    def finish(self):
        """Lets the process end; keeps what it reports."""
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        with contextlib.suppress(EOFError):  # see `failure`
            self.last = self._read()
        self.failure = self._error() if self.process.wait() else None
        self.process.stdout.close()
        self.errors.close()

    def ask(self, request):
        """The answer of a new process to one request, or None if it does not start; see `start`."""
        if not self.start():
            return None
        try:
            return self.turn(request)
        finally:
            self.finish()

    def _read(self):
        """What the process says next; `EOFError` if it has ended."""
        for line in self.process.stdout:
            if line.startswith(MARK):  # other lines are what a package prints
                return json.loads(line.removeprefix(MARK))
        raise EOFError

    def _error(self):
        """The last line that the process wrote before it ended."""
        status = self.process.wait()
        self.errors.seek(0)
        return next((line.strip() for line in reversed(self.errors.readlines()) if line.strip()), f"status {status}")


MARK = "answer "


def missing(packages):
    """Those that are not installed."""
    return [package for package in packages if importlib.util.find_spec(package) is None]


def serve(first, work, last):
    """In a child: reports `first`, answers each request with work(request), and ends with a report of last()."""
    print(MARK + json.dumps(first), flush=True)
    for line in sys.stdin:
        print(MARK + json.dumps(work(json.loads(line))), flush=True)
    print(MARK + json.dumps(last()), flush=True)


def take_turns(children, requests):
    """Starts the children, and gives each its turn for each request; returns those that ran."""
    running = []
    try:
        for child in children:
            if child.start():
                running.append(child)
                print(f"{child.name}: ready", flush=True)
        for number, request in enumerate(requests, 1):
            for child in running:
                child.turn(request)
            print(f"round {number} of {len(requests)}", flush=True)
    finally:
        for child in running:
            child.finish()
    for child in running:
        if child.failure:
            raise RuntimeError(f"{child.name} failed at its end: {child.failure}")
    return running


def compilations(model):
    """In a child: a function that returns how often the training of a compiled Keras model has been compiled so far.

    On JAX that is the number of programs that XLA has compiled since, for whatever purpose; on TensorFlow, of graphs
    that were traced; on PyTorch None.
    """
    backend, found = os.environ["KERAS_BACKEND"], []
    if backend == "tensorflow":
        step = model.train_step
        model.train_step = lambda data: found.append(None) or step(data)  # Python runs it only to trace it
    elif backend == "jax":
        import jax

        def listen(event, seconds, **_):
            if event == "/jax/core/compile/backend_compile_duration":
                found.append(seconds)

        jax.monitoring.register_event_duration_secs_listener(listen)
    return lambda: None if backend == "torch" else len(found)
