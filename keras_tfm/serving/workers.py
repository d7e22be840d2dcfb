"""The workers of a server: started, replaced when they die, and all replaced when the model is loaded again."""

import asyncio
import os
import time

from keras_tfm import artifacts
from keras_tfm.common.arguments import UserError
from keras_tfm.serving.answers import Busy
from keras_tfm.serving.worker import Worker, WorkerDied

ONE_THREAD = "litert", "web"  # which translate one text after the other: small ones take longer on several threads
LONGEST_PAUSE = 30  # seconds between attempts to load a model


class Workers:
    """Processes that hold the model of a folder. For one thread, that of the event loop.

    Args:
        folder, settings, options: see `serve`.
        log: a `Log`.
        restarted: a function that is called for each worker that died.
    """

    def __init__(self, folder, settings, options, log, restarted):
        threads = max(1, len(os.sched_getaffinity(0)) // settings.workers)
        if artifacts.format_of(folder) in ONE_THREAD:
            threads = 1
        self._arguments = folder, settings.threads or threads, settings.max_batch, options
        self._number, self._log, self._restarted = settings.workers, log, restarted
        self.ready, self.version, self.max_length = set(), 1, None
        self._trouble = "the model is being loaded"  # why there may be no worker for long
        self._idle, self._reloading, self._tasks = asyncio.Queue(), asyncio.Lock(), set()
        self._started = set()  # those that may be alive, ready or not

    def check(self):
        """Refuses a request if nobody knows when there will be a worker for it."""
        if self._trouble and not self.ready:
            raise Busy(f"no worker is ready: {self._trouble}")

    async def take(self):
        """An idle worker; `give_back` it afterwards."""
        while (worker := await self._idle.get()) not in self.ready or not worker.process.is_alive():
            pass  # it was replaced, or died
        return worker

    def give_back(self, worker):
        self._idle.put_nowait(worker)

    async def start(self):
        """Starts all workers; raises an error if one cannot load the model."""
        try:
            await asyncio.gather(*(self._add() for _ in range(self._number)))
        except WorkerDied:
            raise UserError(f"{self._arguments[0]}: a worker died while it loaded the model") from None

    def close(self):
        """Ends all workers, at once."""
        self.ready = set()
        for task in self._tasks:
            task.cancel()
        for worker in self._started:
            worker.kill()

    def _background(self, coroutine):
        task = asyncio.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _add(self):
        """Adds a worker, unless all were replaced in the meantime."""
        version, worker = self.version, await self._loaded()
        if self.version == version:
            self._admit(worker)
        else:
            worker.close()

    async def _replace(self):
        """Adds a worker in place of another one; tries until the model can be loaded."""
        pause = 1
        while True:
            try:
                return await self._add()
            except Exception as error:
                self._trouble = f"the model cannot be loaded: {error}"
                self._log.say(event="loading failed", error=str(error), again_in_seconds=pause)
                await asyncio.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE)

    async def _loaded(self):
        """A new worker that is ready to translate."""
        start, worker = time.monotonic(), Worker(self._log.copy, *self._arguments)
        self._started = {one for one in self._started if one.process.is_alive()} | {worker}
        try:
            await worker.load()
        except BaseException:
            worker.kill()
            raise
        about = {"using": worker.about.origin} if worker.about.origin else {}
        seconds = round(time.monotonic() - start, 3)
        self._log.say(event="worker ready", process=worker.process.pid, seconds=seconds, **about)
        return worker

    def _admit(self, worker):
        self.ready.add(worker)
        self.max_length, self._trouble = worker.about.max_length, ""
        self._idle.put_nowait(worker)
        asyncio.get_running_loop().add_reader(worker.process.sentinel, self._ended, worker)

    def _ended(self, worker):
        """Called when the process of a worker has ended, whether or not it was busy."""
        asyncio.get_running_loop().remove_reader(worker.process.sentinel)
        if worker in self.ready:
            self.ready.discard(worker)
            worker.close()
            self._restarted()
            self._log.say(event="worker died", process=worker.process.pid)
            self._background(self._replace())

    def reload(self):
        """Loads the model again. The workers are replaced once all new ones are ready; if one fails, none is."""
        self._background(self._reload())

    async def _reload(self):
        async with self._reloading:
            self._log.say(event="reloading")
            loading = (self._loaded() for _ in range(self._number))
            fresh = await asyncio.gather(*loading, return_exceptions=True)
            errors = [one for one in fresh if isinstance(one, BaseException)]
            if errors:
                for worker in fresh:
                    if worker not in errors:
                        worker.close()
                self._log.say(event="reloading failed", error=str(errors[0]))
                return
            old, self.ready = self.ready, set()
            self.version += 1
            for worker in fresh:
                self._admit(worker)
            await asyncio.sleep(0)  # until batches that were meant for the old ones just now have reached them
            for worker in old:
                worker.close()
            self._log.say(event="reloaded", version=self.version)
