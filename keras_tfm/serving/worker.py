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

from keras_tfm import artifacts
from keras_tfm.common.arguments import UserError
from keras_tfm.export import runners

# TensorFlow, JAX and the runtimes of exports read their number of threads from these.
THREADS = "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS", "NPROC", "OMP_NUM_THREADS"
SAMPLE = "a"  # a model that no longer translates this as it did at first is broken
HEADER = 8  # bytes that hold the size of an answer


class WorkerDied(Exception):
    """The process ended before it had answered."""


class BrokenModel(Exception):
    """A worker can no longer translate what it could at first."""


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
        expected = translator([SAMPLE])
    except Exception as error:
        _send(connection, UserError(str(error) or type(error).__name__))  # some errors cannot be pickled
        return
    splits = not isinstance(translator, runners.Runner)
    _send(connection, (getattr(translator, "origin", ""), translator.max_length if splits else None))
    batches = connection.makefile("rb")
    with contextlib.suppress(EOFError):
        while True:
            _send(connection, _translate(translator, pickle.load(batches), expected))


def _exit_with_the_server():
    multiprocessing.parent_process().join()
    os._exit(1)


def _send(connection, answer):
    data = pickle.dumps(answer)
    connection.sendall(len(data).to_bytes(HEADER) + data)


def _load(folder, threads, max_batch, options):
    os.environ.update(dict.fromkeys(THREADS, str(threads)))
    if artifacts.is_runnable(folder):
        return artifacts.load(folder, num_threads=threads, **options)
    logging.getLogger("tensorflow").setLevel(logging.ERROR)  # it warns of each width that is compiled
    return artifacts.load(folder, batch_size=max_batch, **options)


def _translate(translator, texts, expected):
    """Translations and the number of texts that were cut off, or an error, whose message must not contain texts."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            return translator(texts), sum("cut off" in str(warning.message) for warning in caught)
        except Exception as error:
            kind = BrokenModel if _is_broken(translator, expected) else ValueError
            return kind(type(error).__name__)


def _is_broken(translator, expected):
    """Whether the model has changed: files that were overwritten may be mapped into memory."""
    try:
        return translator([SAMPLE]) != expected
    except Exception:
        return True


# ── in the server ──


class Worker(asyncio.Protocol):
    """A process that holds the model, and answers one batch at a time.

    Args:
        copy: function that takes the bytes which the process writes to standard error.
        on_exit: function that is called with the worker when its process has ended.
        folder, threads, max_batch, options: the model, and how to load it.
    """

    def __init__(self, copy, on_exit, folder, threads, max_batch, options):
        self._copy, self._on_exit, self._loop = copy, on_exit, asyncio.get_running_loop()
        self._answer, self._received, self._transport = self._loop.create_future(), bytearray(), None
        context = multiprocessing.get_context("spawn")
        self._socket, connection = socket.socketpair()
        self._output, output = context.Pipe(duplex=False)
        arguments = connection, output, folder, threads, max_batch, options
        self.process = context.Process(target=_main, args=arguments, daemon=True)
        with connection, output:  # the other ends close with the process
            self.process.start()
        self._loop.add_reader(self._output.fileno(), self._copy_output)
        self.origin, self.max_length = "", None  # which state of an unfinished run it is; see `count_sentences`

    async def load(self):
        """Waits until the model is loaded."""
        self._transport, _ = await self._loop.create_connection(lambda: self, sock=self._socket)
        self.origin, self.max_length = await self._answer

    async def translate(self, texts):
        """Translations of strings, and the number of texts that were cut off."""
        if self._transport.is_closing():
            raise WorkerDied
        self._answer = self._loop.create_future()
        self._transport.write(pickle.dumps(texts))
        return await self._answer

    def close(self):
        """Lets the process finish its batch and exit."""
        self._transport.write_eof()

    def data_received(self, data):
        self._received += data
        size = HEADER + int.from_bytes(self._received[:HEADER])
        if len(self._received) >= size:
            answer = pickle.loads(self._received[HEADER:])
            self._received.clear()
            self._resolve(answer)

    def connection_lost(self, _):
        self._resolve(WorkerDied())
        self._on_exit(self)

    def _resolve(self, answer):
        if self._answer.done():  # or nobody waits any longer
            return
        if isinstance(answer, Exception):
            self._answer.set_exception(answer)
        else:
            self._answer.set_result(answer)

    def _copy_output(self):
        data = os.read(self._output.fileno(), 2**12)
        self._copy(data)
        if not data:
            self._loop.remove_reader(self._output.fileno())
            self._output.close()
