"""`serve` and its settings."""

import asyncio
import contextlib
import dataclasses
import multiprocessing
import os
import pathlib
import signal
import socket
from typing import Any

from keras_tfm.common import extras
from keras_tfm.common.arguments import UserError, check, positive

PACKAGES = "h11", "prometheus_client"
# File descriptors that are not for connections: of the server, of each worker, and as many while all are replaced.
OWN_FILES, WORKER_FILES = 64, 2 * 16


def _setting(default, text):
    return dataclasses.field(default=default, metadata={"help": text, "allowed": None})


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """The options of `serve`; `keras-tfm serve --help` describes them.

    >>> Settings(max_batch=0)
    Traceback (most recent call last):
    keras_tfm.common.arguments.UserError: `max_batch` must be a positive integer. Received: max_batch=0
    """

    host: str = _setting("127.0.0.1", "address to listen at; 0.0.0.0 is every address of the machine")
    port: int = _setting(8501, "port to listen at; 0 is any free port")
    workers: int = _setting(1, "number of processes that hold the model and translate")
    threads: int | None = _setting(None, "threads of each worker (default: 1 for LiteRT, else its share of the cores)")
    max_batch: int = _setting(64, "maximum texts in a batch")
    max_wait: float = _setting(5.0, "milliseconds that a text waits for others to share its batch")
    max_queue: int = _setting(1024, "maximum texts that wait for a worker; beyond that, the response is 503")
    max_texts: int = _setting(256, "maximum texts of a request, or lines if a model splits them; beyond that, 413")
    max_characters: int = _setting(10_000, "maximum characters of a text; beyond that, the response is 413")
    timeout: float = _setting(60.0, "seconds until a request times out with 504, and a busy worker is replaced")
    max_connections: int = _setting(512, "maximum connections; beyond that, one that waits for its client is closed")
    max_client_connections: int = _setting(256, "maximum connections from one address")
    head_timeout: float = _setting(5.0, "seconds that a client has to send the head of a request")
    body_timeout: float = _setting(30.0, "seconds that a client has to send a body, and to read a response")
    idle_timeout: float = _setting(75.0, "seconds until a connection without requests is closed")
    log: bool = _setting(True, "write a line of JSON to standard error for each request")

    def __post_init__(self):
        for field in dataclasses.fields(self):
            if field.type is int and field.name != "port":
                positive(field.name, getattr(self, field.name))
            if field.name == "timeout" or field.name.endswith("_timeout"):
                check(field.name, getattr(self, field.name), getattr(self, field.name) > 0, "a positive number")
        positive("threads", self.threads, optional=True)
        check("port", self.port, 0 <= self.port < 2**16, "from 0 to 65535")
        check("max_wait", self.max_wait, self.max_wait >= 0, "at least 0")
        rule = f"at least `max_texts`, here {self.max_texts}"
        check("max_queue", self.max_queue, self.max_queue >= self.max_texts, rule)


def serve(folder: str | os.PathLike[str], settings: Settings | None = None, **options: Any) -> None:
    """Serves a translator until SIGTERM or SIGINT comes; SIGHUP loads the model again.

    Call it in the main thread, and in a program under `if __name__ == "__main__":`, since each worker is a process that
    imports the program again.

    Args:
        folder: a run, a saved translator or an export.
        settings: a `Settings`.
        **options: arguments of `Translator`, such as `num_beams`, unless the folder is an export.
    """
    extras.require(*PACKAGES)
    importing = multiprocessing.current_process().name != "MainProcess" and multiprocessing.parent_process() is None
    if importing:  # the program, in a new worker
        raise UserError('`serve` must be called under `if __name__ == "__main__":`. Received: a call in a worker')
    from keras_tfm.serving.connections import BACKLOG
    from keras_tfm.serving.telemetry import Log

    settings = settings or Settings()
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    with (
        socket.create_server((settings.host, settings.port), family=family, backlog=BACKLOG) as listener,
        contextlib.closing(Log()) as log,
    ):
        try:
            asyncio.run(_serve(listener, pathlib.Path(folder), _within_limits(settings, log), options, log))
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)
        log.write(event="stopped")


def _within_limits(settings, log):
    """The settings, with fewer connections if the process may not open enough files for them."""
    import resource  # which Windows does not have

    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    left = files - OWN_FILES - WORKER_FILES * settings.workers
    if left <= 0:
        raise UserError(f"the server needs more than {files - left} open files. Received: {files} (ulimit -n)")
    if settings.max_connections <= left:
        return settings
    reason = f"at most {files} files may be open (ulimit -n)"
    log.write(event="fewer connections", max_connections=left, reason=reason)
    return dataclasses.replace(settings, max_connections=left)


async def _serve(listener, folder, settings, options, log):
    from keras_tfm.serving import api, connections, queue, telemetry, workers

    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    metrics = telemetry.Metrics()
    texts = queue.Queue(settings)
    pool = workers.Workers(folder, settings, options, texts, log, metrics)
    respond = api.Api(pool, texts, settings, log, metrics, stopping=stop.is_set).respond
    clients = connections.Connections(respond, settings, log, metrics.count_closed)
    metrics.gauge("queue_texts", "Texts that wait for a worker", lambda: len(texts.texts))
    metrics.gauge("workers_ready", "Workers with a model", lambda: len(pool.ready))
    metrics.gauge("connections", "Open connections", lambda: len(clients.limit.open))

    def log_error(_, context):
        log.write_rate_limited("loop", event="error", error=repr(context.get("exception", context["message"])))

    loop.set_exception_handler(log_error)
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    loop.add_signal_handler(signal.SIGHUP, pool.reload)
    host, port = listener.getsockname()[:2]
    log.write(event="listening", address=f"http://{f'[{host}]' if ':' in host else host}:{port}{api.MODEL}:predict")
    start = asyncio.create_task(pool.start())
    start.add_done_callback(lambda task: stop.set() if not task.cancelled() and task.exception() else None)
    await clients.serve(listener, stop)
    pool.close()
    if start.done():
        start.result()  # raises the error that stopped the server, if any
