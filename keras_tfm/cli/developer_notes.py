"""Hides log messages that TensorFlow and XLA write for their own developers."""

import os
import re
import signal
import sys

# TensorFlow's C++ code logs before it reads TF_CPP_MIN_LOG_LEVEL: information, warnings, and an error on machines
# without an NVIDIA driver. LiteRT reports what it computes with.
NOTE = re.compile(
    rb"WARNING: All log messages before absl::InitializeLog|INFO: Created TensorFlow Lite|normalizer\.cc|"
    rb"[IW]\d{4} \d\d:\d\d:\d|"
    rb"E0000 \d\d:\d\d:\d.*(cuInit|oneDNN supports|computation_placer|cuda_(dnn|fft|blas)|Unable to register|"
    rb"node_def_util)"
)


def without_developer_notes():
    """Filters what C++ code writes to standard error from now on; Python's own output is not touched.

    The filter is a separate process, so what a crashing process writes last still comes through.
    """
    if sys.stderr is None:  # closed by whoever started this process
        return
    read, write = os.pipe()
    real = os.dup(sys.stderr.fileno())
    sys.stderr.flush()
    if os.fork() == 0:
        try:
            for number in (signal.SIGINT, signal.SIGTERM):  # the command handles them, and may print something
                signal.signal(number, signal.SIG_IGN)
            os.close(write)
            for line in os.fdopen(read, "rb"):
                if not NOTE.match(line):
                    os.write(real, line)
        finally:
            os._exit(0)  # whatever happens: this process must not continue as a second command
    os.close(read)
    sys.stderr = os.fdopen(real, "w", buffering=1, encoding="utf-8", errors="backslashreplace")
    os.dup2(write, 2)
    os.close(write)
