"""A process that holds the model: what runs in it, and the server's handle of it.

Both send each other pickles over a pair of sockets. An executor of Python would do so from threads, which wait for the
event loop whenever that is busy.
"""

import asyncio
import contextlib
import logging
import multiprocessing
import os
import pickle
import signal
import socket
import threading
import warnings
from typing import NamedTuple

from keras_tfm import artifacts
from keras_tfm.common.arguments import UserError
from keras_tfm.export import runners
from keras_tfm.serving.predict import Model

# TensorFlow, JAX and the runtimes of exports read their number of threads from these.
THREADS = "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS", "NPROC", "OMP_NUM_THREADS"
SAMPLE = "a"  # a model that no longer translates this as it did at first is broken
HEADER = 8  # bytes that hold the size of a reply


class WorkerDied(Exception):
    """The process ended before it had replied."""


class BrokenModel(Exception):
    """A worker can no longer translate what it could at first."""


class Batch(NamedTuple):
    """What a worker made of some texts."""

    translations: list[str]
    untranslated: list[int]  # places of the texts that came back as they were, since placeholders would be lost
    cut: int  # number of texts that were cut off


# ── in the process ──


def _main(connection, output, *arguments):
    """Loads the model and translates batches until the server closes the connection."""
    # Standard error goes to the server. What it does not take at once is lost: the worker must not wait for it.
    os.set_blocking(output.fileno(), False)
    os.dup2(output.fileno(), 2)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # which a terminal or systemd may send to all
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=_exit_with_the_server, daemon=True).start()
    try:
        translator = _load(*arguments)
        translator.warm_up()
        expected = _sample(translator)
    except Exception as error:
        _send(connection, UserError(str(error) or type(error).__name__))  # some errors cannot be pickled
        return
    splits = translator.placeholders or not isinstance(translator, runners.Runner)
    languages = tuple(translator.languages), translator.target_language, bool(translator.placeholders)
    max_length = translator.max_length if splits else None
    _send(connection, Model(getattr(translator, "origin", ""), max_length, *languages))
    batches = connection.makefile("rb")
    with contextlib.suppress(EOFError):
        while True:
            _send(connection, _translate(translator, pickle.load(batches), expected))


def _exit_with_the_server():
    multiprocessing.parent_process().join()
    os._exit(1)


def _send(connection, reply):
    data = pickle.dumps(reply)
    connection.sendall(len(data).to_bytes(HEADER) + data)


def _load(folder, threads, max_batch, options):
    os.environ.update(dict.fromkeys(THREADS, str(threads)))
    if artifacts.is_runnable(folder):
        return artifacts.load(folder, num_threads=threads, **options)
    logging.getLogger("tensorflow").setLevel(logging.ERROR)  # it warns of each width that is compiled
    return artifacts.load(folder, batch_size=max_batch, **options)


def _translate(translator, texts, expected):
    """The `Batch` of texts, or an error, whose message must not contain texts."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            if translator.placeholders:
                translations, problems = zip(*translator.translate_protected(texts), strict=True)
            else:
                translations, problems = translator(texts), []
            untranslated = [place for place, problem in enumerate(problems) if problem]
            return Batch(list(translations), untranslated, sum("cut off" in str(each.message) for each in caught))
        except Exception as error:
            kind = BrokenModel if _is_broken(translator, expected) else ValueError
            return kind(type(error).__name__)


def _is_broken(translator, expected):
    """Whether the model has changed: files that were overwritten may be mapped into memory."""
    try:
        return _sample(translator) != expected
    except Exception:
        return True


def _sample(translator):
    return translator([SAMPLE], target_language=translator.languages[0] if translator.languages else None)


# ── in the server ──


class Worker(asyncio.Protocol):
    """A process that holds the model, and translates one batch at a time.

    Args:
        copy: function that takes the bytes which the process writes to standard error.
        on_exit: function that is called with the worker when its process has ended.
        folder, threads, max_batch, options: the model, and how to load it.
    """

    def __init__(self, copy, on_exit, folder, threads, max_batch, options):
        self._copy, self._on_exit, self._loop = copy, on_exit, asyncio.get_running_loop()
        self._reply, self._received, self._transport = self._loop.create_future(), bytearray(), None
        context = multiprocessing.get_context("spawn")
        self._socket, connection = socket.socketpair()
        self._output, output = context.Pipe(duplex=False)
        arguments = connection, output, folder, threads, max_batch, options
        self.process = context.Process(target=_main, args=arguments, daemon=True)
        with connection, output:  # the other ends close with the process
            self.process.start()
        self._loop.add_reader(self._output.fileno(), self._copy_output)
        self.model = Model()

    async def load(self):
        """Waits until the model is loaded."""
        self._transport, _ = await self._loop.create_connection(lambda: self, sock=self._socket)
        self.model = await self._reply

    async def translate(self, texts):
        """The `Batch` of strings."""
        if self._transport.is_closing():
            raise WorkerDied
        self._reply = self._loop.create_future()
        self._transport.write(pickle.dumps(texts))
        return await self._reply

    def close(self):
        """Lets the process finish its batch and exit."""
        self._transport.write_eof()

    def data_received(self, data):
        self._received += data
        size = HEADER + int.from_bytes(self._received[:HEADER])
        if len(self._received) >= size:
            reply = pickle.loads(self._received[HEADER:])
            self._received.clear()
            self._resolve(reply)

    def connection_lost(self, _):
        self._resolve(WorkerDied())
        self._on_exit(self)

    def _resolve(self, reply):
        if self._reply.done():  # or nobody waits any longer
            return
        if isinstance(reply, Exception):
            self._reply.set_exception(reply)
        else:
            self._reply.set_result(reply)

    def _copy_output(self):
        data = os.read(self._output.fileno(), 2**12)
        self._copy(data)
        if not data:
            self._loop.remove_reader(self._output.fileno())
            self._output.close()
