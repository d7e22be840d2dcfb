"""Progress of long work on standard error. Imports nothing heavy, so every module can use it."""

import sys
import time

TERMINAL_SECONDS, LOG_SECONDS = 0.1, 10.0  # time between two updates, on a terminal and in a log file
LOG_SHARE = 0.2  # of the time so far, until the next update in a log file: few lines, however long it takes


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
        if self.width:  # show the final state if anything was shown before
            self._show(last=True)

    def add(self, count=1):
        """Adds to the number of completed items."""
        self.done += count
        pause = TERMINAL_SECONDS if self.terminal else max(LOG_SECONDS, LOG_SHARE * (self.shown - self.began))
        if self.stream is not None and time.monotonic() >= self.shown + pause:
            self._show()

    def _show(self, last=False):
        self.shown = time.monotonic()
        seconds = self.shown - self.began
        line = f"{self.label}: {self.done:,}" + ("" if self.total is None else f"/{self.total:,}")
        line += f" {self.unit}" + "s" * ((self.total or self.done) != 1)
        if self.done and seconds:
            rate = self.done / seconds
            line += f", {rate:,.0f}/s" if rate >= 10 else f", {rate:.2g}/s"
            if last:
                line += f", {duration(seconds)}"
            elif self.total is not None:
                line += f", {duration((self.total - self.done) / rate)} left"
        self.stream.write("\r" + line.ljust(self.width) + "\n" * last if self.terminal else line + "\n")
        self.stream.flush()
        self.width = len(line)


def redraws():
    """Whether standard output can draw a line again, as a terminal or a notebook can."""
    return sys.stdout is not None and sys.stdout.isatty() or "ipykernel" in sys.modules


def duration(seconds):
    """A number of seconds in words.

    >>> duration(42), duration(150), duration(8000)
    ('42 s', '2 min 30 s', '2 h 13 min')
    """
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {seconds} s" if minutes else f"{seconds} s"
