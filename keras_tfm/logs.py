"""Keeps notes that TensorFlow and XLA write for their developers away from the users of the command."""

import os
import re
import signal
import sys

# TensorFlow's C++ code logs before it has read TF_CPP_MIN_LOG_LEVEL: information and warnings, and the error that a
# machine without an NVIDIA driver has none. LiteRT says what it computes with.
NOTE = re.compile(
    rb"WARNING: All log messages before absl::InitializeLog|INFO: Created TensorFlow Lite|normalizer\.cc|"
    rb"[IW]\d{4} \d\d:\d\d:\d|"
    rb"E0000 \d\d:\d\d:\d.*(cuInit|oneDNN supports|computation_placer|cuda_(dnn|fft|blas)|Unable to register)"
)


def without_developer_notes():
    """From now on, what C++ writes to standard error passes a filter; what Python writes there does not.

    The filter is a process of its own, so that the last words of a process that crashes come through.
    """
    if sys.stderr is None:  # closed by whoever started this
        return
    read, write = os.pipe()
    real = os.dup(sys.stderr.fileno())
    sys.stderr.flush()
    if os.fork() == 0:
        try:
            for number in (signal.SIGINT, signal.SIGTERM):  # for the command, which may have something to say
                signal.signal(number, signal.SIG_IGN)
            os.close(write)
            for line in os.fdopen(read, "rb"):
                if not NOTE.match(line):
                    os.write(real, line)
        finally:
            os._exit(0)  # also if nobody reads standard error: this process must not go on as a second command
    os.close(read)
    sys.stderr = os.fdopen(real, "w", buffering=1, encoding="utf-8", errors="backslashreplace")
    os.dup2(write, 2)
    os.close(write)
