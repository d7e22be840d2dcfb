"""Log and metrics: JSON lines on standard error, and Prometheus."""

import contextlib
import datetime
import json
import os
import queue
import sys
import threading
import time

import prometheus_client as prometheus

from keras_tfm.serving.responses import Response

CAPACITY = 1000  # lines that may wait to be written
STANDARD_ERROR = 2  # also for what workers write, which `keras_tfm.cli.developer_notes` filters
CLOSE_REASONS = TOO_SLOW, STOPPING, TOO_MANY = "too slow", "stopping", "too many connections"


class Log:
    """Writes JSON lines to a file descriptor, by default that of standard error.

    A thread writes, so that the server never waits for a reader. While nobody reads, lines are dropped and counted.
    """

    def __init__(self, descriptor=None):
        if descriptor is None and sys.stderr is not None:  # None if the parent process has closed it
            descriptor = STANDARD_ERROR
            with contextlib.suppress(OSError):  # in a notebook, it is not a file
                descriptor = sys.stderr.fileno()
        self._descriptor, self._dropped, self._limited = descriptor, 0, {}
        self._pending = queue.Queue(CAPACITY)
        self._thread = threading.Thread(target=self._write_pending, daemon=True)
        self._thread.start()

    def write(self, **fields):
        if self._dropped:
            dropped, self._dropped = self._dropped, 0
            self._put(self._descriptor, _line(event="lines dropped", lines=dropped), dropped)
        self._put(self._descriptor, _line(**fields))

    def write_rate_limited(self, key, **fields):
        """Writes at most one line a second for each key; `times` counts the calls since the last line."""
        last, times = self._limited.get(key, (0.0, 0))
        now, times = time.monotonic(), times + 1
        if now - last < 1:
            self._limited[key] = last, times
            return
        self._limited[key] = now, 0
        self.write(**fields, **({"times": times} if times > 1 else {}))

    def copy(self, data):
        """Copies what a worker has written to its standard error."""
        self._put(STANDARD_ERROR, data)

    def close(self, timeout=1):
        """Waits until all lines are written, at most for this many seconds."""
        with contextlib.suppress(queue.Full):
            self._pending.put(None, timeout=timeout)
            self._thread.join(timeout)

    def _put(self, descriptor, data, lines=1):
        try:
            self._pending.put_nowait((descriptor, data))
        except queue.Full:
            self._dropped += lines

    def _write_pending(self):
        # `os.write`, since the lock of a Python file would abort the process if it ends while this thread waits.
        for descriptor, data in iter(self._pending.get, None):
            with contextlib.suppress(OSError, TypeError):  # the reader is gone, or there never was one
                while data:
                    data = data[os.write(descriptor, data) :]


def _line(**fields):
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
    return f"{json.dumps({'time': now, **fields}, ensure_ascii=False)}\n".encode("utf-8", "replace")


class Metrics:
    """Counters, histograms and gauges for Prometheus."""

    def __init__(self):
        self.registry = prometheus.CollectorRegistry()
        self._common = common = {"namespace": "keras_tfm", "registry": self.registry}
        sizes = [1, 2, 4, 8, 16, 32, 64, 128, 256]
        prometheus.ProcessCollector(registry=self.registry)
        self.requests = prometheus.Counter("requests", "Requests by status", ["status"], **common)
        self.request_seconds = prometheus.Histogram("request_seconds", "Time from a request to its response", **common)
        self.texts = prometheus.Counter("texts", "Translated texts", **common)
        self.cut_texts = prometheus.Counter("cut_texts", "Texts cut off at the maximum length", **common)
        kept = "Texts that came back as they were, since placeholders would be lost"
        self.untranslated_texts = prometheus.Counter("untranslated_texts", kept, **common)
        self.batch_texts = prometheus.Histogram("batch_texts", "Texts in a batch", buckets=sizes, **common)
        self.batch_seconds = prometheus.Histogram("batch_seconds", "Time of a batch in a worker", **common)
        self.restarts = prometheus.Counter("worker_restarts", "Workers that died and were replaced", **common)
        self.closed = prometheus.Counter("closed_connections", "Connections closed by the server", ["reason"], **common)
        for reason in CLOSE_REASONS:
            self.closed.labels(reason)  # from now on 0, not absent

    def gauge(self, name, text, function):
        """Adds a gauge with the value of a function."""
        prometheus.Gauge(name, text, **self._common).set_function(function)

    def count_closed(self, reason):
        self.closed.labels(reason).inc()

    def count_batch(self, texts, cut, untranslated, seconds):
        self.texts.inc(texts)
        self.cut_texts.inc(cut)
        self.untranslated_texts.inc(untranslated)
        self.batch_texts.observe(texts)
        self.batch_seconds.observe(seconds)

    def response(self):
        """All values, in the format of Prometheus."""
        return Response(200, prometheus.generate_latest(self.registry), prometheus.CONTENT_TYPE_LATEST)
