import io
import sys

import pytest
from conftest import once

from keras_tfm.common import progress
from keras_tfm.common.progress import Progress


class Terminal(io.StringIO):
    def isatty(self):
        return True


def written_to(stream, monkeypatch):
    """Makes a stream standard error. Tests call this themselves, since pytest replaces stderr after fixtures ran."""
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr(progress, "TERMINAL_SECONDS", 0)
    return stream


@once
def test_a_terminal_shows_one_line_that_says_what_is_done(monkeypatch):
    terminal = written_to(Terminal(), monkeypatch)
    with Progress(2000, "translating", "sentence") as bar:
        bar.add(500)
        bar.add(1500)
    text = terminal.getvalue()
    assert text.count("\n") == 1 and text.endswith("\n")
    first, middle, *_, last = text[1:-1].split("\r")
    assert first == "translating: 0/2,000 sentences"
    assert middle.startswith("translating: 500/2,000 sentences, ") and middle.endswith(" left")
    assert last.startswith("translating: 2,000/2,000 sentences, ") and "left" not in last


@once
def test_a_shorter_line_covers_the_longer_one(monkeypatch):
    terminal = written_to(Terminal(), monkeypatch)
    bar = Progress(None, "reading", "line")
    bar._show()
    bar.width = 60
    bar._show()
    assert len(terminal.getvalue().split("\r")[-1]) == 60


@once
def test_a_log_gets_a_line_now_and_then_and_none_for_short_work(monkeypatch):
    log = written_to(io.StringIO(), monkeypatch)
    with Progress(10, "translating", "sentence") as bar:
        for _ in range(10):
            bar.add()
    assert log.getvalue() == ""
    monkeypatch.setattr(progress, "LOG_SECONDS", 0)
    with Progress(None, "encoding", "pair") as bar:
        bar.add(3)
    first, last = log.getvalue().splitlines()
    assert first.startswith("encoding: 3 pairs, ") and last.startswith("encoding: 3 pairs, ") and "\r" not in first


@once
def test_a_log_of_long_work_is_not_long(monkeypatch):
    log = written_to(io.StringIO(), monkeypatch)
    clock = iter(range(100_000))
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(clock))
    with Progress(30_000, "translating", "sentence") as bar:
        for _ in range(30_000):  # about eight hours
            bar.add()
    assert 20 < log.getvalue().count("\n") < 60


@once
def test_verbose_0_prints_nothing(monkeypatch):
    terminal = written_to(Terminal(), monkeypatch)
    with Progress(3, "translating", "sentence", verbose=0) as bar:
        bar.add(3)
    assert terminal.getvalue() == ""
    monkeypatch.setattr(sys, "stderr", None)  # as in a program without a console
    with Progress(3, "translating", "sentence") as bar:
        bar.add(3)


@once
def test_an_error_ends_the_line_and_says_how_far_it_came(monkeypatch):
    terminal = written_to(Terminal(), monkeypatch)
    with pytest.raises(KeyError), Progress(3, "translating", "sentence") as bar:
        bar.add(1)
        raise KeyError
    assert terminal.getvalue().split("\r")[-1].startswith("translating: 1/3 sentences")
    assert terminal.getvalue().count("\n") == 1
