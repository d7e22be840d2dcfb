"""The workers of a server: started, replaced when they die, and all replaced when the model is reloaded."""

import asyncio
import os
import time

from keras_tfm import artifacts
from keras_tfm.common.arguments import UserError
from keras_tfm.serving.predict import Model
from keras_tfm.serving.responses import RequestError, Unavailable
from keras_tfm.serving.worker import BrokenModel, Worker, WorkerDied

ONE_THREAD = "litert", "web"  # which translate one text after the other: small ones take longer on several threads
MAX_ATTEMPTS = 2  # workers that a batch may crash
MAX_BACKOFF = 30  # seconds between attempts to load a model


class Workers:
    """Processes that hold the model of a folder. For one thread, that of the event loop."""

    def __init__(self, folder, settings, options, queue, log, metrics):
        threads = 1 if artifacts.format_of(folder) in ONE_THREAD else len(os.sched_getaffinity(0)) // settings.workers
        self._arguments = folder, settings.threads or max(1, threads), settings.max_batch, options
        self._settings, self._queue, self._log, self._metrics = settings, queue, log, metrics
        self.ready, self.version, self.model = set(), 1, Model()
        self._problem = "the model is being loaded"  # why there may be no worker for long
        self._alive, self._tasks, self._reloading = set(), set(), asyncio.Lock()

    def check(self):
        """Refuses a request while it is unknown when a worker will be ready."""
        if self._problem and not self.ready:
            raise Unavailable(f"no worker is ready: {self._problem}")

    async def start(self):
        """Starts all workers; raises an error if one cannot load the model."""
        self._log.write(event="loading", model=str(self._arguments[0]), workers=self._settings.workers, answering=503)
        try:
            await asyncio.gather(*(self._add() for _ in range(self._settings.workers)))
        except WorkerDied:
            raise UserError(f"{self._arguments[0]}: a worker died while it loaded the model") from None

    def reload(self):
        """Loads the model again. The workers are replaced once all new ones are ready; if one fails, none is."""
        self._run_in_background(self._reload())

    def close(self):
        """Ends all workers at once."""
        self.ready = set()
        for task in self._tasks:
            task.cancel()
        for worker in self._alive:
            worker.process.kill()

    def _run_in_background(self, coroutine):
        task = asyncio.create_task(coroutine)
        self._tasks.add(task)  # the event loop itself keeps only weak references
        task.add_done_callback(self._tasks.discard)

    async def _load(self):
        """A new worker that has loaded the model."""
        start, worker = time.monotonic(), Worker(self._log.copy, self._exited, *self._arguments)
        self._alive.add(worker)
        try:
            await worker.load()
        except BaseException:
            worker.process.kill()
            raise
        using = {"using": worker.model.origin} if worker.model.origin else {}
        seconds = round(time.monotonic() - start, 3)
        self._log.write(event="worker ready", process=worker.process.pid, seconds=seconds, **using)
        return worker

    def _admit(self, worker):
        self.model, self._problem = worker.model, ""
        self.ready.add(worker)
        self._run_in_background(self._work(worker))
        if worker not in self._alive:  # it died while it waited for others
            self._exited(worker)

    def _exited(self, worker):
        self._alive.discard(worker)
        if worker in self.ready:
            self.ready.discard(worker)
            self._metrics.restarts.inc()
            self._log.write(event="worker died", process=worker.process.pid)
            self._run_in_background(self._replace())

    async def _add(self):
        """Adds a worker, unless all were replaced in the meantime."""
        version, worker = self.version, await self._load()
        if self.version == version:
            self._admit(worker)
        else:
            worker.close()

    async def _replace(self):
        """Adds a worker in place of another one; retries until the model can be loaded."""
        backoff = 1
        while True:
            try:
                return await self._add()
            except Exception as error:
                self._problem = f"the model cannot be loaded: {error}"
                self._log.write(event="loading failed", error=str(error), again_in_seconds=backoff)
                await asyncio.sleep(backoff)
                backoff = min(2 * backoff, MAX_BACKOFF)

    async def _reload(self):
        async with self._reloading:
            self._log.write(event="reloading")
            loading = (self._load() for _ in range(self._settings.workers))
            loaded = await asyncio.gather(*loading, return_exceptions=True)
            errors = [result for result in loaded if isinstance(result, BaseException)]
            fresh = [result for result in loaded if isinstance(result, Worker)]
            if errors:
                retired = fresh
                self._log.write(event="reloading failed", error=str(errors[0]))
            else:
                retired, self.ready = self.ready, set()
                self.version += 1
                for worker in fresh:
                    self._admit(worker)
                self._log.write(event="reloaded", version=self.version)
            for worker in retired:
                worker.close()

    async def _work(self, worker):
        """Translates batches until the worker dies or is replaced."""
        while True:
            batch = await self._queue.next_batch()
            if worker not in self.ready or not worker.process.is_alive():
                self._queue.put_back(batch)
                return
            await self._translate(worker, batch)

    async def _translate(self, worker, batch):
        start, process, timeout = time.monotonic(), worker.process, self._settings.timeout
        for text in batch:
            text.started, text.attempts = start, text.attempts + 1
        try:
            async with asyncio.timeout(timeout):
                done = await worker.translate([text.string for text in batch])
            self._metrics.count_batch(len(batch), done.cut, len(done.untranslated), time.monotonic() - start)
            for place in done.untranslated:
                batch[place].untranslated = True
            for text, translation in zip(batch, done.translations, strict=True):
                if not text.translation.done():
                    text.translation.set_result(translation)
        except TimeoutError:
            self._log.write(event="worker hangs", process=process.pid, texts=len(batch))
            process.kill()
            _fail(batch, 504, f"there was no translation within {timeout:g} seconds")
        except (WorkerDied, BrokenModel) as error:
            if isinstance(error, BrokenModel):
                self._log.write(event="model broken", process=process.pid, error=str(error))
                process.kill()
            crashed = [text for text in batch if text.attempts == MAX_ATTEMPTS]
            _fail(crashed, 500, f"this batch crashed {MAX_ATTEMPTS} workers")
            self._queue.put_back(batch)
        except Exception as error:
            self._log.write_rate_limited("failed", event="translation failed", error=str(error), texts=len(batch))
            _fail(batch, 500, f"the translation failed: {error}")


def _fail(texts, status, message):
    for text in texts:
        if not text.translation.done():
            text.translation.set_exception(RequestError(status, message))
