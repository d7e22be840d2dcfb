"""Progress of long work on standard error. Imports nothing heavy, so every module can use it."""

import sys
import time

TERMINAL_SECONDS, LOG_SECONDS = 0.1, 10.0  # time between two updates, on a terminal and in a log file


class Progress:
    """Shows the progress of some work: one line that is redrawn on a terminal, or a line now and then in a log.

    Args:
        total: number of items, or None if it is not known.
        label: what is being done, such as "translating".
        unit: what an item is, such as "sentence"; the plural is formed with s.
        verbose: 0 for no output.

    Nothing is written to a log if the work takes less than `LOG_SECONDS`. Use each object in one thread only.

    >>> with Progress(2, "translating", "sentence", verbose=0) as bar:
    ...     bar.add(2)
    """

    def __init__(self, total, label, unit="item", verbose=1):
        self.total, self.label, self.unit, self.done = total, label, unit, 0
        self.stream = sys.stderr if verbose else None
        self.terminal = self.stream is not None and self.stream.isatty()
        self.began = self.shown = time.monotonic()
        self.width = 0  # width of the last line, which the next one must cover
        if self.terminal:
            self._show()

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.close()

    def add(self, count=1):
        """Adds to the number of completed items."""
        self.done += count
        if time.monotonic() - self.shown >= (TERMINAL_SECONDS if self.terminal else LOG_SECONDS):
            self._show()

    def close(self):
        """Shows the final state if anything was shown before. Further calls do nothing."""
        if self.width:
            self._show(last=True)
        self.stream = None

    def _show(self, last=False):
        if self.stream is None:
            return
        self.shown = time.monotonic()
        line = self._line(self.shown - self.began, last)
        text = "\r" + line.ljust(self.width) + "\n" * last if self.terminal else line + "\n"
        self.stream.write(text)
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
    """A number of seconds in words.

    >>> duration(42), duration(150), duration(8000)
    ('42 s', '2 min 30 s', '2 h 13 min')
    """
    seconds = round(seconds)
    if seconds < 60:
        return f"{seconds} s"
    if seconds < 3600:
        return f"{seconds // 60} min {seconds % 60} s"
    return f"{seconds // 3600} h {seconds // 60 % 60} min"
