"""Systems that are compared run in processes of their own and take turns, since machines are noisy."""

import importlib.util
import json
import os
import subprocess
import sys


class Child:
    """A process that runs one system: `python FILE --child ARGUMENTS`, where FILE calls `serve`."""

    def __init__(self, file, name, *arguments, needs=(), backend=None):
        self.file, self.name, self.arguments, self.backend = file, name, arguments, backend
        self.missing = [package for package in needs if importlib.util.find_spec(package) is None]
        self.answers, self.first, self.last = [], None, None

    def start(self):
        """Waits until the system is ready; returns whether it is."""
        if self.missing:
            print(f"{self.name}: skipped, {', '.join(self.missing)} is not installed", flush=True)
            return False
        environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2"} | (
            {"KERAS_BACKEND": self.backend} if self.backend else {}
        )
        command = [sys.executable, self.file, "--child", *map(str, self.arguments)]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        self.process = subprocess.Popen(command, env=environment, **pipes | {"stderr": subprocess.DEVNULL})
        self.first = self._read()
        print(f"{self.name}: {'failed to start' if self.first is None else 'ready'}", flush=True)
        return self.first is not None

    def turn(self, request):
        """Sends a request and keeps the answer."""
        print(json.dumps(request), file=self.process.stdin, flush=True)
        answer = self._read()
        if answer is None:
            raise RuntimeError(f"{self.name} stopped: python {self.file} --child {' '.join(map(str, self.arguments))}")
        self.answers.append(answer)
        return answer

    def finish(self):
        """Lets the process end; keeps what it reports."""
        self.process.stdin.close()
        self.last = self._read()
        self.process.wait()

    def _read(self):
        for line in self.process.stdout:
            if line.startswith(MARK):  # other lines are what a package prints
                return json.loads(line.removeprefix(MARK))
        return None


MARK = "answer "


def serve(first, work, last):
    """In a child: reports `first`, answers each request with work(request), and ends with a report of last()."""
    print(MARK + json.dumps(first), flush=True)
    for line in sys.stdin:
        print(MARK + json.dumps(work(json.loads(line))), flush=True)
    print(MARK + json.dumps(last()), flush=True)


def take_turns(children, requests):
    """Starts the children, and gives each its turn for each request; returns those that ran."""
    running = [child for child in children if child.start()]
    for number, request in enumerate(requests, 1):
        for child in running:
            child.turn(request)
        print(f"round {number} of {len(requests)}", flush=True)
    for child in running:
        child.finish()
    return running
