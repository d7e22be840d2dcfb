"""From requests to batches: a bounded queue of texts, and batches of them for the workers."""

import asyncio
import collections
import contextlib
import dataclasses
import time

from keras_tfm.serving.responses import RequestError, Unavailable
from keras_tfm.serving.worker import BrokenModel, WorkerDied

MAX_ATTEMPTS = 2  # workers that a batch may crash


@dataclasses.dataclass(eq=False)
class Text:
    """A text in the queue or in a batch, and its future translation."""

    string: str
    sentences: int  # that it is translated as
    translation: asyncio.Future
    arrived: float = dataclasses.field(default_factory=time.monotonic)
    started: float | None = None
    attempts: int = 0


class Queue:
    """Texts that wait for a worker. For one thread, that of the event loop."""

    def __init__(self, workers, settings, log, metrics):
        self.workers, self.settings, self.log, self.metrics = workers, settings, log, metrics
        self._too_late = f"there was no translation within {settings.timeout:g} seconds"
        self.texts, self._arrival, self._full = collections.deque(), asyncio.Event(), asyncio.Event()

    def size(self):
        """Sentences that wait."""
        return sum(text.sentences for text in self.texts)

    def check_capacity(self, sentences=1):
        """Refuses texts that do not fit into the queue."""
        if self.size() + sentences > self.settings.max_queue:
            rule = f"at most {self.settings.max_queue} texts may wait for a translation"
            raise Unavailable(f"{rule}: try again later. Received: {sentences} more")

    async def translate(self, strings, sentences):
        """Translations of strings, and the seconds that the first of them waited for a worker."""
        self.check_capacity(sum(sentences))
        future = asyncio.get_running_loop().create_future
        texts = [Text(string, number, future()) for string, number in zip(strings, sentences, strict=True)]
        self.texts.extend(texts)
        self._arrival.set()
        if self.size() >= self.settings.max_batch:
            self._full.set()
        try:
            async with asyncio.timeout(self.settings.timeout):
                translations = await asyncio.gather(*(text.translation for text in texts))
        except TimeoutError:
            raise RequestError(504, self._too_late) from None
        return translations, texts[0].started - texts[0].arrived

    async def dispatch(self):
        """Hands batches to workers, for ever."""
        while True:
            await self._arrival.wait()
            await self._fill()
            worker = await self.workers.take()
            if batch := self._take():
                self.workers.run_in_background(self._run(worker, batch))
            else:
                self.workers.give_back(worker)
            if not self.texts:
                self._arrival.clear()

    async def _fill(self):
        """Waits until there are texts for a full batch, or until the first of them has waited for `max_wait`."""
        left = self.texts[0].arrived + self.settings.max_wait / 1000 - time.monotonic()
        if self.size() < self.settings.max_batch and left > 0:
            self._full.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._full.wait(), left)

    def _take(self):
        """The texts of the next batch, without those whose requests have timed out."""
        batch, left = [], self.settings.max_batch
        while self.texts and (not batch or self.texts[0].sentences <= left):
            text = self.texts.popleft()
            if not text.translation.done():
                batch.append(text)
                left -= text.sentences
        return batch

    async def _run(self, worker, batch):
        """Has a batch translated, and answers its texts."""
        start = time.monotonic()
        for text in batch:
            text.started, text.attempts = start, text.attempts + 1
        try:
            async with asyncio.timeout(self.settings.timeout):
                translations, cut = await worker.translate([text.string for text in batch])
        except TimeoutError:
            self.log.write(event="worker hangs", process=worker.process.pid, texts=len(batch))
            worker.process.kill()
            _fail(batch, 504, self._too_late)
        except (WorkerDied, BrokenModel) as error:
            if isinstance(error, BrokenModel):
                self.log.write(event="model broken", process=worker.process.pid, error=str(error))
                worker.process.kill()
            self._retry(batch)
        except Exception as error:
            self.log.write_rate_limited("failed", event="translation failed", error=str(error), texts=len(batch))
            _fail(batch, 500, f"the translation failed: {error}")
            self.workers.give_back(worker)
        else:
            self.workers.give_back(worker)
            self.metrics.count_batch(len(batch), cut, time.monotonic() - start)
            for text, translation in zip(batch, translations, strict=True):
                if not text.translation.done():
                    text.translation.set_result(translation)

    def _retry(self, batch):
        """Puts the batch of a worker that died at the beginning of the queue, unless it has crashed others too."""
        crashed = [text for text in batch if text.attempts == MAX_ATTEMPTS]
        _fail(crashed, 500, f"this batch crashed {MAX_ATTEMPTS} workers")
        self.texts.extendleft(reversed([text for text in batch if not text.translation.done()]))
        if self.texts:
            self._arrival.set()


def _fail(texts, status, message):
    for text in texts:
        if not text.translation.done():
            text.translation.set_exception(RequestError(status, message))
