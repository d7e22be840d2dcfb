"""From requests to batches: a bounded queue of texts, of which workers take as many at a time as they can."""

import asyncio
import collections
import contextlib
import dataclasses
import time

from keras_tfm.serving.answers import Busy, Refused
from keras_tfm.serving.worker import BrokenModel, WorkerDied

TRIES = 2  # a batch that ends the life of this many workers is given up


@dataclasses.dataclass(eq=False)
class Text:
    """A text in the queue or in a batch, and its future translation."""

    string: str
    pieces: int  # sentences that it is translated as
    answer: asyncio.Future
    arrived: float = dataclasses.field(default_factory=time.monotonic)
    started: float | None = None
    tries: int = 0


class Queue:
    """Texts that wait for a worker. For one thread, that of the event loop.

    Args:
        workers: the `Workers`.
        settings: a `Settings`.
        log: a `Log`.
        count_batch: a function that is called with texts, texts that were cut off, and seconds of each batch.
    """

    def __init__(self, workers, settings, log, count_batch):
        self.workers, self.settings, self.log, self._count_batch = workers, settings, log, count_batch
        self.texts, self._tasks = collections.deque(), set()
        self._arrival, self._full = asyncio.Event(), asyncio.Event()

    def size(self):
        """Sentences that wait."""
        return sum(text.pieces for text in self.texts)

    def check_room(self, pieces=1):
        """Refuses texts for which the queue has no room."""
        if self.size() + pieces > self.settings.max_queue:
            rule = f"at most {self.settings.max_queue} texts may wait for a translation"
            raise Busy(f"{rule}: try again later. Received: {pieces} more")

    async def translate(self, strings, pieces):
        """Translations of strings of so many pieces, and the seconds that the first of them waited for a worker."""
        self.check_room(sum(pieces))
        loop = asyncio.get_running_loop()
        texts = [Text(string, count, loop.create_future()) for string, count in zip(strings, pieces, strict=True)]
        self.texts.extend(texts)
        self._arrival.set()
        if self.size() >= self.settings.max_batch:
            self._full.set()
        try:
            async with asyncio.timeout(self.settings.timeout):
                answers = await asyncio.gather(*(text.answer for text in texts))
        except TimeoutError:
            raise Refused(504, f"there was no translation within {self.settings.timeout:g} seconds") from None
        return answers, texts[0].started - texts[0].arrived

    async def dispatch(self):
        """Hands batches to workers, for ever."""
        while True:
            await self._arrival.wait()
            await self._fill()
            worker = await self.workers.take()
            batch = self._take()
            if batch:
                task = asyncio.create_task(self._run(worker, batch))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
            else:
                self.workers.give_back(worker)
            if not self.texts:
                self._arrival.clear()

    async def _fill(self):
        """Waits until there are texts for a full batch, or until the first of them has waited long enough."""
        left = self.texts[0].arrived + self.settings.max_wait / 1000 - time.monotonic()
        if self.size() < self.settings.max_batch and left > 0:
            self._full.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._full.wait(), left)

    def _take(self):
        """The next texts of the queue, without those whose requests are answered already: they waited too long."""
        batch, left = [], self.settings.max_batch
        while self.texts and (not batch or self.texts[0].pieces <= left):
            text = self.texts.popleft()
            if not text.answer.done():
                batch.append(text)
                left -= text.pieces
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
            self.log.say(event="worker hangs", process=worker.process.pid, texts=len(batch))
            worker.kill()
            refuse(batch, 504, f"there was no translation within {self.settings.timeout:g} seconds")
        except (WorkerDied, BrokenModel) as error:
            if isinstance(error, BrokenModel):
                self.log.say(event="model broken", process=worker.process.pid, error=str(error))
                worker.kill()
            self._try_again(batch)
        except Exception as error:
            self.log.say_seldom("failed", event="translation failed", error=str(error), texts=len(batch))
            refuse(batch, 500, f"the translation failed: {error}")
            self.workers.give_back(worker)
        else:
            self.workers.give_back(worker)
            self._count_batch(len(batch), cut, time.monotonic() - start)
            for text, answer in zip(batch, answers, strict=True):
                if not text.answer.done():
                    text.answer.set_result(answer)

    def _try_again(self, batch):
        """Puts the batch of a worker that died at the beginning of the queue."""
        refuse([text for text in batch if text.tries == TRIES], 500, f"{TRIES} workers died of this batch")
        self.texts.extendleft(reversed([text for text in batch if not text.answer.done()]))
        if self.texts:
            self._arrival.set()


def refuse(texts, status, message):
    """Answers texts with a refusal, unless they are answered already."""
    for text in texts:
        if not text.answer.done():
            text.answer.set_exception(Refused(status, message))
