"""A process that holds the model: what runs in it, and the server's handle of it.

Both send each other pickled objects over a pair of sockets. An executor of Python would do so from threads, which wait
for the event loop whenever that is busy.
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

# TensorFlow, JAX and the libraries for products read their number of threads from these.
THREADS = "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS", "NPROC", "OMP_NUM_THREADS"
SAMPLE = "a"  # a model that translates this as it did at first is not broken
HEAD = 8  # bytes that say how many follow


class About(NamedTuple):
    """What a worker says about its model."""

    origin: str  # which state of an unfinished run it is
    max_length: int | None  # number of tokens from which lines are split into sentences; None if they never are


class WorkerDied(Exception):
    """The process ended before it had answered."""


class BrokenModel(Exception):
    """A worker can no longer translate what it could at first."""


def _framed(value):
    data = pickle.dumps(value)
    return len(data).to_bytes(HEAD) + data


# ── in the process ──


def _main(connection, output, *arguments):
    """Loads the model, and then translates what comes, until the server closes the connection."""
    # Standard error goes to the server. What it does not take at once is lost, as nothing here must wait for it.
    os.set_blocking(output.fileno(), False)
    os.dup2(output.fileno(), 2)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # which a terminal or systemd may send to all
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=_end_with_the_server, daemon=True).start()
    stream = connection.makefile("rb")
    connection.sendall(_framed(_result(_load, *arguments)))
    while head := stream.read(HEAD):
        texts = pickle.loads(stream.read(int.from_bytes(head)))
        connection.sendall(_framed(_result(_translate, texts)))


def _end_with_the_server():
    multiprocessing.parent_process().join()
    os._exit(1)


def _result(function, *arguments):
    """What a function returns, or the error that it raises."""
    try:
        return function(*arguments)
    except Exception as error:
        return error


def _load(folder, threads, max_batch, options):
    """Loads and warms up the translator of this process."""
    global _translator, _answer
    os.environ.update(dict.fromkeys(THREADS, str(threads)))
    try:
        _translator = _load_translator(folder, threads, max_batch, options)
        _translator.warm_up()
        _answer = _translator([SAMPLE])
    except Exception as error:
        raise UserError(str(error) or type(error).__name__) from None  # not all errors can go to another process
    splits = not isinstance(_translator, runners.Runner)
    return About(getattr(_translator, "origin", ""), _translator.max_length if splits else None)


def _load_translator(folder, threads, max_batch, options):
    if artifacts.is_runnable(folder):
        return artifacts.load(folder, num_threads=threads, **options)
    logging.getLogger("tensorflow").setLevel(logging.ERROR)  # it warns of each width that is compiled
    return artifacts.load(folder, batch_size=max_batch, **options)


def _translate(texts):
    """Translations of strings, and the number of texts that were cut off, whose warnings must not reach the log."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            answers = _translator(texts)
        except Exception as error:
            name = type(error).__name__  # its message may contain texts
            raise (ValueError(name) if _works() else BrokenModel(name)) from None
    return answers, sum("cut off" in str(warning.message) for warning in caught)


def _works():
    """Whether the model is what it was. A file that was overwritten may be mapped into memory."""
    try:
        return _translator([SAMPLE]) == _answer
    except Exception:
        return False


# ── in the server ──


class Worker:
    """A process that holds the model; it can be watched, killed, and closed after what it is doing.

    Args:
        copy: a function that takes the bytes which the process writes to standard error.
        *arguments: of `_load`.
    """

    def __init__(self, copy, *arguments):
        self._copy, self._loop = copy, asyncio.get_running_loop()
        context = multiprocessing.get_context("spawn")
        self._connection, connection = socket.socketpair()
        self._output, output = context.Pipe(duplex=False)
        self.process = context.Process(target=_main, args=(connection, output, *arguments), daemon=True)
        with connection, output:  # so that they are closed when the process ends
            self.process.start()
        self._connection.setblocking(False)
        self._loop.add_reader(self._output.fileno(), self._copy_output)
        self._busy = self._ended = False
        self.about = None

    async def load(self):
        """Waits until the model is loaded."""
        with self._at_work():
            self.about = await self._receive()

    async def translate(self, texts):
        """Translations of strings, and the number of texts that were cut off."""
        with self._at_work():
            await self._send(texts)
            return await self._receive()

    def close(self):
        """Lets the process finish its batch, and end."""
        with contextlib.suppress(OSError):  # it has ended already
            self._connection.shutdown(socket.SHUT_WR)

    def kill(self):
        self.process.kill()

    @contextlib.contextmanager
    def _at_work(self):
        """The socket is open during the block: what the process sent before it ended can still be read."""
        self._busy = True
        try:
            yield
        finally:
            self._busy = False
            self._close_if_over()

    def _close_if_over(self):
        if self._ended and not self._busy:
            self._connection.close()

    async def _send(self, value):
        try:
            await self._loop.sock_sendall(self._connection, _framed(value))
        except OSError:
            raise WorkerDied from None

    async def _receive(self):
        """What the process sends next; an error is raised."""
        value = pickle.loads(await self._read(int.from_bytes(await self._read(HEAD))))
        if isinstance(value, Exception):
            raise value
        return value

    async def _read(self, size):
        data = bytearray()
        while len(data) < size:
            try:
                part = await self._loop.sock_recv(self._connection, min(size - len(data), 2**16))
            except OSError:
                part = b""
            if not part:
                raise WorkerDied
            data += part
        return data

    def _copy_output(self):
        data = os.read(self._output.fileno(), 2**12)
        if data:
            self._copy(data)
        else:
            self._loop.remove_reader(self._output.fileno())
            self._output.close()
            self._ended = True
            self._close_if_over()
