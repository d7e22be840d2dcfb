"""Lines of JSON on standard error. Nobody waits for whoever reads them."""

import contextlib
import datetime
import json
import os
import queue
import sys
import threading
import time

CAPACITY = 1000  # lines that may wait to be written
STANDARD_ERROR = 2  # also for what workers write, which `keras_tfm.cli.developer_notes` filters


class Log:
    """Writes lines from a thread of its own. While nobody reads them, lines are dropped and counted.

    Args:
        descriptor: number of the file to write to, by default that of standard error.
    """

    def __init__(self, descriptor=None):
        if descriptor is None and sys.stderr is not None:  # it is None if whoever started this process has closed it
            descriptor = STANDARD_ERROR
            with contextlib.suppress(OSError):  # in a notebook, it is not a file
                descriptor = sys.stderr.fileno()
        self._descriptor, self._dropped, self._seldom = descriptor, 0, {}
        self._waiting = queue.Queue(CAPACITY)
        self._thread = threading.Thread(target=self._write, daemon=True)
        self._thread.start()

    def say(self, **fields):
        """Writes a line."""
        if self._dropped:
            dropped, self._dropped = self._dropped, 0
            self._put(self._descriptor, _line(event="lines dropped", lines=dropped), dropped)
        self._put(self._descriptor, _line(**fields))

    def say_seldom(self, key, **fields):
        """Writes a line at most once a second for each key; `times` counts those that were left out before."""
        last, times = self._seldom.get(key, (0.0, 0))
        now, times = time.monotonic(), times + 1
        if now - last < 1:
            self._seldom[key] = last, times
            return
        self._seldom[key] = now, 0
        self.say(**fields, **({"times": times} if times > 1 else {}))

    def copy(self, data):
        """Copies what a worker has written to its standard error."""
        self._put(STANDARD_ERROR, data)

    def close(self, seconds=1):
        """Waits until all lines are written, but not for longer than this."""
        with contextlib.suppress(queue.Full):
            self._waiting.put(None, timeout=seconds)
            self._thread.join(seconds)

    def _put(self, descriptor, data, lines=1):
        try:
            self._waiting.put_nowait((descriptor, data))
        except queue.Full:
            self._dropped += lines

    def _write(self):
        # `os.write` and not a file of Python, whose lock would abort the process if it ends while this thread waits.
        for descriptor, data in iter(self._waiting.get, None):
            with contextlib.suppress(OSError, TypeError):  # the reader is gone, or there never was one
                while data:
                    data = data[os.write(descriptor, data) :]


def _line(**fields):
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
    return f"{json.dumps({'time': now, **fields}, ensure_ascii=False)}\n".encode("utf-8", "replace")
