"""One process with the LiteRT model of dates, and what the server hears of it."""

import asyncio
import multiprocessing
import os
import shutil
import signal

import pytest
from conftest import once
from http_server import DATES, LITERT, TEXTS

from keras_tfm.serving.worker import Worker, WorkerDied

pytestmark = [once, pytest.mark.xdist_group("serving")]


def with_a_worker(test, folder=LITERT):
    """Runs a coroutine function of a worker, which must then end; returns what it wrote to standard error."""

    async def run():
        written, exited = [], []
        worker = Worker(written.append, exited.append, folder, 1, 64, {})
        try:
            await test(worker)
        finally:
            worker.close()
            await asyncio.to_thread(worker.process.join, 10)
            await asyncio.sleep(0.1)
        assert worker.process.exitcode is not None and exited == [worker]
        return b"".join(written)

    return asyncio.run(run())


def test_a_worker_translates_and_ends_after_what_it_is_doing():
    async def test(worker):
        await worker.load()
        assert worker.model == ("", None, (), None, False)  # an export, which splits no texts, into one language
        assert await worker.translate(TEXTS) == (DATES, [], 0)
        done = await worker.translate(["a " * 50_000] * 4)  # more than a socket holds
        assert len(done.translations) == done.cut == 4
        answer = asyncio.create_task(worker.translate(TEXTS))
        await asyncio.sleep(0)
        worker.close()
        assert await answer == (DATES, [], 0)

    with_a_worker(test)
    assert not multiprocessing.active_children()


def test_a_worker_that_dies_is_noticed_and_its_last_words_are_kept(monkeypatch):
    monkeypatch.setenv("PYTHONFAULTHANDLER", "1")

    async def test(worker):
        await worker.load()
        os.kill(worker.process.pid, signal.SIGSTOP)  # so that it does not answer before it dies
        answer = asyncio.create_task(worker.translate(TEXTS))
        await asyncio.sleep(0.1)
        os.kill(worker.process.pid, signal.SIGABRT)
        os.kill(worker.process.pid, signal.SIGCONT)
        with pytest.raises(WorkerDied):
            await answer
        worker.process.join()
        with pytest.raises(WorkerDied):
            await worker.translate(TEXTS)

    assert b"Aborted" in with_a_worker(test)


def test_a_model_that_cannot_be_loaded_is_an_error_with_its_reason(tmp_path):
    model = shutil.copytree(LITERT, tmp_path / "model")
    (model / "model.tflite").write_bytes(b"")

    async def test(worker):
        with pytest.raises(ValueError, match="model.tflite: damaged"):
            await worker.load()

    with_a_worker(test, model)
