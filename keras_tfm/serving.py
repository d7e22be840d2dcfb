"""Serves a translator over HTTP, with the requests and answers of TensorFlow Serving's REST API.

    requests → a bounded queue of texts → batches → workers, each a process that holds the model

The process that speaks HTTP never loads the model, so it goes on when a worker dies: the texts of that worker go to
another one, and a new worker takes its place.
"""

import asyncio
import collections
import concurrent.futures
import contextlib
import dataclasses
import datetime
import json
import multiprocessing
import os
import pathlib
import signal
import socket
import sys
import threading
import time
import warnings
from concurrent.futures.process import BrokenProcessPool

from keras_tfm import exported, extras
from keras_tfm.arguments import check, positive

PACKAGES = "starlette", "uvicorn", "prometheus_client"
MODEL = "/v1/models/translator"
# TensorFlow, JAX and the libraries for products read their number of threads from these.
THREADS = "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS", "NPROC", "OMP_NUM_THREADS"
ONE_THREAD = "litert", "web"  # which translate one text after the other: small ones take longer on several threads
LONGEST_CHARACTER = 12  # bytes, as two escapes of JSON: "\ud83d\ude42"
TRIES = 2  # a batch that ends the life of this many workers is given up
LONGEST_PAUSE = 30  # seconds between attempts to load a model


def _setting(default, text):
    return dataclasses.field(default=default, metadata={"help": text, "allowed": None})


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """The options of `serve`; `keras-tfm serve --help` describes them.

    >>> Settings(max_batch=0)
    Traceback (most recent call last):
    ValueError: `max_batch` must be a positive integer. Received: max_batch=0
    """

    host: str = _setting("127.0.0.1", "address to listen at; 0.0.0.0 is every address of the machine")
    port: int = _setting(8501, "port to listen at; 0 is any free port")
    workers: int = _setting(1, "number of processes that hold the model and translate")
    threads: int | None = _setting(None, "threads of each worker (default: 1 for LiteRT, else its share of the cores)")
    max_batch: int = _setting(64, "maximum texts in a batch")
    max_wait: float = _setting(5.0, "milliseconds that a text waits for others to share its batch")
    max_queue: int = _setting(1024, "maximum texts that wait for a worker; beyond that, the answer is 503")
    max_texts: int = _setting(256, "maximum texts of a request; beyond that, the answer is 413")
    max_characters: int = _setting(10_000, "maximum characters of a text; beyond that, the answer is 413")
    timeout: float = _setting(60.0, "seconds until a request is answered 504, and until a busy worker is replaced")
    log: bool = _setting(True, "write a line of JSON to standard error for each request")

    def __post_init__(self):
        for name in ("workers", "max_batch", "max_queue", "max_texts", "max_characters"):
            positive(name, getattr(self, name))
        positive("threads", self.threads, optional=True)
        check("port", self.port, 0 <= self.port < 2**16, "from 0 to 65535")
        check("max_wait", self.max_wait, self.max_wait >= 0, "at least 0")
        check("timeout", self.timeout, self.timeout > 0, "a positive number")
        rule = f"at least `max_texts`, here {self.max_texts}"
        check("max_queue", self.max_queue, self.max_queue >= self.max_texts, rule)


def serve(folder, settings=None, **options):
    """Serves a translator until SIGTERM or SIGINT comes; SIGHUP loads the model again. Call it in the main thread.

    Args:
        folder: a run, a saved translator or an export.
        settings: a `Settings`.
        **options: arguments of `Translator`, such as `beams`, unless the folder is an export.
    """
    uvicorn = extras.load("uvicorn")
    settings = settings or Settings()
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    with socket.create_server((settings.host, settings.port), family=family) as listener:
        # Otherwise the body of an answer waits 40 ms for a sign that its head has arrived.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        translators = Translators(pathlib.Path(folder), settings, options)
        api = Api(translators)
        config = {"log_config": None, "log_level": "warning", "access_log": False, "server_header": False}
        config |= {"ws": "none", "timeout_keep_alive": 75}  # longer than load balancers keep a connection
        server = uvicorn.Server(uvicorn.Config(api.routes(), lifespan="on", **config))

        def stop(*_):
            server.should_exit = True

        # Uvicorn handles these while it runs, and raises them again at its end.
        handlers = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
        translators.give_up, api.stopping = stop, lambda: server.should_exit
        host, port = listener.getsockname()[:2]
        say(event="listening", address=f"http://{f'[{host}]' if ':' in host else host}:{port}{MODEL}:predict")
        try:
            server.run([listener])
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)
    if translators.failure:
        raise translators.failure
    say(event="stopped")


def say(**fields):
    """Writes a line of JSON to standard error. A reader that is gone does not matter."""
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
    with contextlib.suppress(OSError):
        print(json.dumps({"time": now, **fields}, ensure_ascii=False), file=sys.stderr, flush=True)


# ── in a worker ──


def _load(folder, threads, max_batch, options):
    """Loads and warms up the translator of this process; returns what it says about its origin."""
    global _translator
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # which a terminal or systemd may send to all
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=_end_with_the_server, daemon=True).start()
    os.environ.update(dict.fromkeys(THREADS, str(threads)))
    try:
        _translator = _load_translator(folder, threads, max_batch, options)
        _translator.warm_up()
    except Exception as error:
        raise ValueError(str(error) or type(error).__name__) from None  # not all errors can go to another process
    return getattr(_translator, "origin", "")


def _load_translator(folder, threads, max_batch, options):
    form = exported.form(folder)
    if form is None:
        from keras_tfm.translator import Translator

        return Translator.load(folder, batch_size=max_batch, **options)
    runner = exported.RUNNERS[form]
    return runner(folder, threads) if issubclass(runner, exported.TokenRunner) else runner(folder)


def _end_with_the_server():
    multiprocessing.parent_process().join()
    os._exit(1)


def _translate(texts):
    """Translations of strings, and the number of texts that were cut off, whose warnings must not reach the log."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        try:
            answers = _translator(texts)
        except Exception as error:
            raise ValueError(type(error).__name__) from None  # its message may contain texts
    return answers, sum("cut off" in str(warning.message) for warning in found)


class Worker:
    """A process that holds the model; it can be watched, killed, and closed after what it is doing."""

    def __init__(self, *arguments):
        before = {*multiprocessing.active_children()}
        self.executor = concurrent.futures.ProcessPoolExecutor(1, multiprocessing.get_context("spawn"))
        # Unlike an error in an executor's `initializer`, one in this first task comes back with its reason.
        self.loading = asyncio.wrap_future(self.executor.submit(_load, *arguments))
        (self.process,) = {*multiprocessing.active_children()} - before

    async def translate(self, texts):
        return await asyncio.wrap_future(self.executor.submit(_translate, texts))

    def close(self):
        """Lets the process finish its batch, and end."""
        self.executor.shutdown(wait=False)

    def kill(self):
        self.process.kill()
        self.close()


# ── from requests to batches ──


class Refused(Exception):
    """The answer to a request is not a translation but this status and message."""

    def __init__(self, status, message, **headers):
        super().__init__(message)
        self.status, self.headers = status, headers


@dataclasses.dataclass(eq=False)
class Text:
    """A text in the queue or in a batch, and its future translation."""

    string: str
    answer: asyncio.Future
    arrived: float = dataclasses.field(default_factory=time.monotonic)
    started: float | None = None
    tries: int = 0


class Translators:
    """Workers, and the queue of texts that wait for them. For one thread, that of the event loop."""

    def __init__(self, folder, settings, options):
        threads = max(1, len(os.sched_getaffinity(0)) // settings.workers)
        if exported.form(folder) in ONE_THREAD:
            threads = 1
        threads = settings.threads or threads
        self.arguments = folder, threads, settings.max_batch, options
        self.settings, self.version = settings, 1
        self.metrics = Metrics(self)
        self.give_up, self.failure = lambda: None, None  # a callback, and the reason for it
        self.queue, self.workers, self._tasks = collections.deque(), set(), set()
        self._idle, self._arrival, self._full = asyncio.Queue(), asyncio.Event(), asyncio.Event()
        self._reloading = asyncio.Lock()

    @contextlib.asynccontextmanager
    async def running(self):
        """Workers start when the block starts, and end with it."""
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGHUP, lambda: self._background(self.reload()))
        self._background(self._start())
        self._background(self._dispatch())
        try:
            yield
        finally:
            loop.remove_signal_handler(signal.SIGHUP)
            tasks, workers, self.workers = [*self._tasks], self.workers, set()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for worker in workers:
                worker.kill()  # which has nothing to do any more

    def _background(self, coroutine):
        task = asyncio.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # ── texts ──

    def check_room(self, count=1):
        """Refuses texts for which the queue has no room."""
        if len(self.queue) + count > self.settings.max_queue:
            rule = f"at most {self.settings.max_queue} texts may wait for a translation"
            raise Refused(503, f"{rule}: try again later. Received: {count} more", **{"Retry-After": "1"})

    async def translate(self, strings):
        """Translations of strings, and the seconds that the first of them waited for a worker."""
        self.check_room(len(strings))
        loop = asyncio.get_running_loop()
        texts = [Text(string, loop.create_future()) for string in strings]
        self.queue.extend(texts)
        self._arrival.set()
        if len(self.queue) >= self.settings.max_batch:
            self._full.set()
        try:
            async with asyncio.timeout(self.settings.timeout):
                answers = await asyncio.gather(*(text.answer for text in texts))
        except TimeoutError:
            raise Refused(504, f"there was no translation within {self.settings.timeout:g} seconds") from None
        return answers, texts[0].started - texts[0].arrived

    async def _dispatch(self):
        """Hands batches to workers, for ever."""
        while True:
            await self._arrival.wait()
            await self._fill()
            while (worker := await self._idle.get()) not in self.workers:
                pass  # it died, or was replaced
            batch = self._take()
            if batch:
                self._background(self._run(worker, batch))
            else:
                self._idle.put_nowait(worker)
            if not self.queue:
                self._arrival.clear()

    async def _fill(self):
        """Waits until there are texts for a full batch, or until the first of them has waited long enough."""
        left = self.queue[0].arrived + self.settings.max_wait / 1000 - time.monotonic()
        if len(self.queue) < self.settings.max_batch and left > 0:
            self._full.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._full.wait(), left)

    def _take(self):
        """The next texts of the queue, without those whose requests are answered already: they waited too long."""
        batch = []
        while self.queue and len(batch) < self.settings.max_batch:
            text = self.queue.popleft()
            if not text.answer.done():
                batch.append(text)
        return batch

    async def _run(self, worker, batch):
        """Has a batch translated, and answers its texts."""
        start = time.monotonic()
        for text in batch:
            text.started, text.tries = start, text.tries + 1
        try:
            async with asyncio.timeout(self.settings.timeout):
                answers, cut = await worker.translate([text.string for text in batch])
        except TimeoutError:
            say(event="worker hangs", process=worker.process.pid, texts=len(batch))
            worker.process.kill()
            refuse(batch, 504, f"there was no translation within {self.settings.timeout:g} seconds")
        except BrokenProcessPool:
            refuse([text for text in batch if text.tries == TRIES], 500, f"{TRIES} workers died of this batch")
            self.queue.extendleft(reversed([text for text in batch if not text.answer.done()]))
            if self.queue:
                self._arrival.set()
        except Exception as error:
            say(event="translation failed", error=str(error), texts=len(batch))
            refuse(batch, 500, f"the translation failed: {error}")
            self._idle.put_nowait(worker)
        else:
            self._idle.put_nowait(worker)
            self.metrics.count_batch(len(batch), cut, time.monotonic() - start)
            for text, answer in zip(batch, answers, strict=True):
                if not text.answer.done():
                    text.answer.set_result(answer)

    # ── workers ──

    async def _start(self):
        """Starts all workers; if one cannot load the model, nothing is served."""
        try:
            await asyncio.gather(*(self._add(patient=False) for _ in range(self.settings.workers)))
        except BrokenProcessPool:
            self.failure = ValueError(f"{self.arguments[0]}: a worker died while it loaded the model")
        except Exception as error:
            self.failure = error
        if self.failure:
            self.give_up()

    async def _add(self, patient=True):
        """Adds a worker; if it is `patient`, it tries until the model can be loaded."""
        version, pause = self.version, 1
        while True:
            try:
                worker = await self._loaded()
                break
            except Exception as error:
                if not patient:
                    raise
                say(event="loading failed", error=str(error), again_in_seconds=pause)
                await asyncio.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE)
        if self.version == version:
            self._admit(worker)
        else:  # all were replaced in the meantime
            worker.close()

    async def _loaded(self):
        """A new worker that is ready to translate."""
        start, worker = time.monotonic(), Worker(*self.arguments)
        try:
            origin = await worker.loading
        except BaseException:
            worker.kill()
            raise
        about = {"using": origin} if origin else {}
        say(event="worker ready", process=worker.process.pid, seconds=round(time.monotonic() - start, 3), **about)
        return worker

    def _admit(self, worker):
        self.workers.add(worker)
        self._idle.put_nowait(worker)
        asyncio.get_running_loop().add_reader(worker.process.sentinel, self._ended, worker)

    def _ended(self, worker):
        """Called when the process of a worker has ended, whether or not it was busy."""
        asyncio.get_running_loop().remove_reader(worker.process.sentinel)
        if worker in self.workers:
            self.workers.discard(worker)
            worker.close()
            self.metrics.restarts.inc()
            say(event="worker died", process=worker.process.pid)
            self._background(self._add())

    async def reload(self):
        """Loads the model again. The workers are replaced once all new ones are ready; if one fails, none is."""
        async with self._reloading:
            say(event="reloading")
            loading = (self._loaded() for _ in range(self.settings.workers))
            fresh = await asyncio.gather(*loading, return_exceptions=True)
            errors = [one for one in fresh if isinstance(one, BaseException)]
            if errors:
                for worker in fresh:
                    if worker not in errors:
                        worker.close()
                say(event="reloading failed", error=str(errors[0]))
                return
            old, self.workers = self.workers, set()
            self.version += 1
            for worker in fresh:
                self._admit(worker)
            await asyncio.sleep(0)  # until batches that were meant for the old ones just now have reached them
            for worker in old:
                worker.close()
            say(event="reloaded", version=self.version)


def refuse(texts, status, message):
    """Answers texts with a refusal, unless they are answered already."""
    for text in texts:
        if not text.answer.done():
            text.answer.set_exception(Refused(status, message))


class Metrics:
    """What Prometheus can ask for."""

    def __init__(self, translators):
        prometheus = extras.load("prometheus_client")
        self.registry = registry = prometheus.CollectorRegistry()
        self._written = lambda: prometheus.generate_latest(registry)
        self.media_type = prometheus.CONTENT_TYPE_LATEST
        prometheus.ProcessCollector(registry=registry)

        def metric(kind, name, text, *labels, **options):
            return getattr(prometheus, kind)(f"keras_tfm_{name}", text, labels, registry=registry, **options)

        sizes = {"buckets": [1, 2, 4, 8, 16, 32, 64, 128, 256]}
        self.requests = metric("Counter", "requests", "Requests, by the status of their answers", "status")
        self.request_seconds = metric("Histogram", "request_seconds", "Time from a request to its answer")
        self.texts = metric("Counter", "texts", "Texts that were translated")
        self.cut = metric("Counter", "cut_texts", "Texts that were too long, and whose end was cut off")
        self.batch_texts = metric("Histogram", "batch_texts", "Texts in a batch", **sizes)
        self.batch_seconds = metric("Histogram", "batch_seconds", "Time of a batch in a worker")
        self.restarts = metric("Counter", "worker_restarts", "Workers that died and were replaced")
        metric("Gauge", "queue_texts", "Texts that wait for a worker").set_function(lambda: len(translators.queue))
        metric("Gauge", "workers_ready", "Workers with a model").set_function(lambda: len(translators.workers))

    def count_batch(self, texts, cut, seconds):
        self.texts.inc(texts)
        self.cut.inc(cut)
        self.batch_texts.observe(texts)
        self.batch_seconds.observe(seconds)

    def written(self):
        """All values in the format of Prometheus."""
        return self._written()


# ── HTTP ──


class Api:
    """The routes of the server."""

    def __init__(self, translators):
        self.translators, self.settings = translators, translators.settings
        self.stopping = lambda: False
        self.responses = extras.load("starlette.responses")

    def routes(self):
        """The application, for a server that speaks ASGI."""
        applications, routing = extras.load("starlette.applications"), extras.load("starlette.routing")
        routes = {MODEL: self.status, "/healthz": self.health, "/readyz": self.ready, "/metrics": self.metrics}
        routes = [routing.Route(path, handler) for path, handler in routes.items()]
        routes.append(routing.Route(f"{MODEL}:predict", self.predict, methods=["POST"]))
        http_error = extras.load("starlette.exceptions").HTTPException
        return applications.Starlette(
            routes=routes,
            exception_handlers={http_error: self.error},
            lifespan=lambda _: self.translators.running(),
        )

    async def predict(self, request):
        start, strings, waited = time.monotonic(), [], 0.0
        try:
            strings = self.strings(await self.body(request))
            answers, waited = await self.translators.translate(strings)
            response = self.responses.JSONResponse({"predictions": answers})
        except Refused as refusal:
            response = self.responses.JSONResponse({"error": str(refusal)}, refusal.status, refusal.headers)
        seconds = time.monotonic() - start
        self.translators.metrics.requests.labels(response.status_code).inc()
        self.translators.metrics.request_seconds.observe(seconds)
        if self.settings.log:
            times = {"milliseconds": round(1000 * seconds, 1), "waited": round(1000 * waited, 1)}
            say(status=response.status_code, texts=len(strings), characters=sum(map(len, strings)), **times)
        return response

    async def body(self, request):
        """The body of a request, unless it is larger than a request within the other limits can be."""
        limit = LONGEST_CHARACTER * self.settings.max_texts * self.settings.max_characters
        too_large = Refused(413, f"the body must have at most {limit} bytes")
        self.translators.check_room()  # before a large body is read in vain
        if int(request.headers.get("content-length", 0)) > limit:
            raise too_large
        body = bytearray()
        try:
            async with asyncio.timeout(self.settings.timeout):
                async for chunk in request.stream():
                    body += chunk
                    if len(body) > limit:
                        raise too_large
        except TimeoutError:
            raise Refused(408, f"the body must come within {self.settings.timeout:g} seconds") from None
        except extras.load("starlette.requests").ClientDisconnect:
            raise Refused(499, "the client is gone") from None
        return body

    def strings(self, body):
        """The texts of a request."""
        rule = 'the body must be a JSON object, {"instances": ["a text", …]}'
        try:
            request = json.loads(body)
        except (ValueError, RecursionError):
            received = f"{len(body)} bytes that are not JSON" if body else "no body"
            raise Refused(422, f"{rule}. Received: {received}") from None
        if not isinstance(request, dict):
            raise Refused(422, f"{rule}. Received: {shortened(request)}")
        signature = request.get("signature_name", "serving_default")
        if signature != "serving_default":
            rule = "`signature_name` must be serving_default; other signatures need TensorFlow Serving and a SavedModel"
            raise Refused(422, f"{rule}. Received: {shortened(signature)}")
        texts = request.get("instances")
        if not isinstance(texts, list) or not texts or not all(isinstance(text, str) for text in texts):
            found = "no instances" if texts is None else shortened(texts)
            raise Refused(422, f"`instances` must be a list of one or more strings. Received: {found}")
        if len(texts) > self.settings.max_texts:
            rule = f"`instances` must be at most {self.settings.max_texts} strings"
            raise Refused(413, f"{rule}. Received: {len(texts)}")
        if max(map(len, texts)) > self.settings.max_characters:
            rule = f"`instances` must be strings of at most {self.settings.max_characters} characters"
            raise Refused(413, f"{rule}. Received: {max(map(len, texts))}")
        return [text.encode("utf-8", "replace").decode() for text in texts]  # without halves of surrogate pairs

    async def status(self, _):
        """As TensorFlow Serving answers."""
        state = "UNLOADING" if self.stopping() else "AVAILABLE" if self.translators.workers else "LOADING"
        version = {"version": str(self.translators.version), "state": state}
        version["status"] = {"error_code": "OK", "error_message": ""}
        return self.responses.JSONResponse({"model_version_status": [version]})

    async def health(self, _):
        return self.responses.PlainTextResponse("alive\n")

    async def ready(self, _):
        state = "stopping" if self.stopping() else "ready" if self.translators.workers else "loading"
        return self.responses.PlainTextResponse(f"{state}\n", 200 if state == "ready" else 503)

    async def metrics(self, _):
        metrics = self.translators.metrics
        return self.responses.Response(metrics.written(), media_type=metrics.media_type)

    async def error(self, _, error):
        """Answers what no route does in the form of all other errors."""
        return self.responses.JSONResponse({"error": error.detail}, error.status_code, error.headers)


def shortened(value, length=80):
    """The JSON of a value, cut to a length, without halves of surrogate pairs."""
    text = json.dumps(value, ensure_ascii=False).encode("utf-8", "replace").decode()
    return text if len(text) <= length else f"{text[:length]} …"
