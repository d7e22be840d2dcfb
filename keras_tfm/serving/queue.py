"""From requests to batches: a bounded queue of texts."""

import asyncio
import collections
import contextlib
import dataclasses
import time
from typing import NamedTuple

from keras_tfm.serving.responses import RequestError, Unavailable


@dataclasses.dataclass(eq=False)
class Text:
    """A text in the queue or in a batch, and its future translation."""

    string: str
    sentences: int  # that it is translated as
    translation: asyncio.Future
    arrived: float = dataclasses.field(default_factory=time.monotonic)
    started: float | None = None
    attempts: int = 0  # batches that it has been part of
    untranslated: bool = False  # whether the translation is the text itself, since placeholders would be lost


class Results(NamedTuple):
    """What became of the texts of a request."""

    translations: list[str]
    untranslated: list[int]  # places of the texts that came back as they were
    waited: float  # seconds until a worker took the first of them


class Queue:
    """Texts that wait for a worker. For one thread, that of the event loop."""

    def __init__(self, settings):
        self.settings, self.texts = settings, collections.deque()
        self._arrival, self._batching = asyncio.Event(), asyncio.Lock()

    def size(self):
        """Sentences that wait."""
        return sum(text.sentences for text in self.texts)

    def check_capacity(self, sentences=1):
        """Refuses texts that do not fit into the queue."""
        if self.size() + sentences > self.settings.max_queue:
            rule = f"at most {self.settings.max_queue} texts may wait for a translation"
            raise Unavailable(f"{rule}: try again later. Received: {sentences} more")

    async def translate(self, strings, sentences):
        """The `Results` of strings."""
        self.check_capacity(sum(sentences))
        future = asyncio.get_running_loop().create_future
        texts = [Text(string, number, future()) for string, number in zip(strings, sentences, strict=True)]
        self.texts.extend(texts)
        self._arrival.set()
        try:
            async with asyncio.timeout(self.settings.timeout):
                translations = await asyncio.gather(*(text.translation for text in texts))
        except TimeoutError:
            raise RequestError(504, f"there was no translation within {self.settings.timeout:g} seconds") from None
        untranslated = [place for place, text in enumerate(texts) if text.untranslated]
        return Results(translations, untranslated, texts[0].started - texts[0].arrived)

    async def next_batch(self):
        """Waits for a full batch, or until the first text has waited for `max_wait`, and removes it from the queue."""
        async with self._batching:
            while True:
                await self._arrive(1)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout_at(self.texts[0].arrived + self.settings.max_wait / 1000):
                        await self._arrive(self.settings.max_batch)
                if batch := self._take():
                    return batch

    def put_back(self, batch):
        """Puts a batch at the beginning of the queue."""
        self.texts.extendleft(reversed([text for text in batch if not text.translation.done()]))
        self._arrival.set()

    async def _arrive(self, sentences):
        while self.size() < sentences:
            self._arrival.clear()
            await self._arrival.wait()

    def _take(self):
        """The texts of the next batch, without those whose requests have timed out."""
        batch, left = [], self.settings.max_batch
        while self.texts and (not batch or self.texts[0].sentences <= left):
            text = self.texts.popleft()
            if not text.translation.done():
                batch.append(text)
                left -= text.sentences
        return batch
