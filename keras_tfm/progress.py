"""Progress of long work on standard error; imports nothing heavy, so that every module may use it."""

import sys
import time

TERMINAL_SECONDS, LOG_SECONDS = 0.1, 10.0  # between two updates: of the line on a terminal, of the lines in a log file


class Progress:
    """Shows how far some work has come: a line that is redrawn on a terminal, now and then a new line elsewhere.

    Args:
        total: how many items there are, or None if nobody knows.
        label: what is being done, such as "translating".
        unit: one item, such as "sentence"; its plural ends with s.
        verbose: 0 for silence.

    Work that ends within `LOG_SECONDS` writes nothing into a log file. One object belongs to one thread.

    >>> with Progress(2, "translating", "sentence", verbose=0) as bar:
    ...     bar.add(2)
    """

    def __init__(self, total, label, unit="item", verbose=1):
        self.total, self.label, self.unit, self.done = total, label, unit, 0
        self.stream = sys.stderr if verbose else None
        self.terminal = self.stream is not None and self.stream.isatty()
        self.began = self.shown = time.monotonic()
        self.width = 0  # of the line last shown, which the next one must cover
        if self.terminal:
            self._show()

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.close()

    def add(self, count=1):
        """Counts items that are done."""
        self.done += count
        if time.monotonic() - self.shown >= (TERMINAL_SECONDS if self.terminal else LOG_SECONDS):
            self._show()

    def close(self):
        """Shows where the work has ended, unless nothing has been shown so far; further calls do nothing."""
        if self.width:
            self._show(last=True)
        self.stream = None

    def _show(self, last=False):
        if self.stream is None:
            return
        self.shown = time.monotonic()
        line = self._line(self.shown - self.began, last)
        if self.terminal:
            self.stream.write("\r" + line.ljust(self.width) + "\n" * last)
        else:
            self.stream.write(line + "\n")
        self.stream.flush()
        self.width = len(line)

    def _line(self, seconds, last):
        total = "" if self.total is None else f"/{self.total:,}"
        line = f"{self.label}: {self.done:,}{total} {self.unit}s"
        if not self.done or not seconds:
            return line
        rate = self.done / seconds
        line += f", {rate:,.0f}/s" if rate >= 10 else f", {rate:.2g}/s"
        if last:
            return f"{line}, {duration(seconds)}"
        return line if self.total is None else f"{line}, {duration((self.total - self.done) / rate)} left"


def duration(seconds):
    """Seconds in words.

    >>> duration(42), duration(150), duration(8000)
    ('42 s', '2 min 30 s', '2 h 13 min')
    """
    seconds = round(seconds)
    if seconds < 60:
        return f"{seconds} s"
    return (
        f"{seconds // 60} min {seconds % 60} s" if seconds < 3600 else f"{seconds // 3600} h {seconds // 60 % 60} min"
    )
