"""A log that nobody reads keeps nobody waiting; metrics."""

import contextlib
import fcntl
import json
import os
import time

import pytest
from conftest import once
from http_server import TEXTS, needs_extra, served

telemetry = pytest.importorskip("keras_tfm.serving.telemetry", reason="pip install 'keras_tfm[serve]'")

pytestmark = once


@pytest.fixture
def pipe():
    read, write = os.pipe()
    fcntl.fcntl(write, fcntl.F_SETPIPE_SZ, 4096)  # bytes that fit in before somebody reads
    yield read, write
    for end in (read, write):
        with contextlib.suppress(OSError):
            os.close(end)


def lines(read, last, text=b""):
    """What has been written, up to a line with some word; `text` has been read already."""
    while last not in text:
        text += os.read(read, 4096)
    return [json.loads(line) for line in text.splitlines()]


def test_lines_are_written_in_their_order(pipe):
    log = telemetry.Log(pipe[1])
    log.write(event="one", text="é\ud83d")
    log.write(event="two")
    first, second = lines(pipe[0], b"two")
    assert (first["event"], first["text"], second["event"]) == ("one", "é?", "two") and first["time"] <= second["time"]
    log.close()


def test_lines_that_nobody_reads_are_dropped_and_counted(pipe):
    log, start = telemetry.Log(pipe[1]), time.perf_counter()
    said = 3 * telemetry.CAPACITY
    for _ in range(said):
        log.write(event="unread")
    assert time.perf_counter() - start < 2
    text = b""
    while log._pending.qsize() > telemetry.CAPACITY // 2:
        text += os.read(pipe[0], 4096)
    log.write(event="last")
    events = [(line["event"], line.get("lines")) for line in lines(pipe[0], b"last", text)]
    dropped = [lines for event, lines in events if event == "lines dropped"]
    written = [event for event, _ in events].count("unread")
    assert sum(dropped) + written == said and sum(dropped) > telemetry.CAPACITY


def test_closing_a_log_that_nobody_reads_ends(pipe):
    log, start = telemetry.Log(pipe[1]), time.perf_counter()
    for _ in range(telemetry.CAPACITY):
        log.write(event="unread")
    log.close(0.2)
    assert time.perf_counter() - start < 5
    os.close(pipe[0])  # so that nothing waits any longer
    log.close(5)


def test_frequent_events_are_logged_once_a_second(pipe, monkeypatch):
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    log = telemetry.Log(pipe[1])
    for _ in range(500):
        now[0] += 0.01
        log.write_rate_limited("slow", event="slow")
        log.write_rate_limited("other", event="other")
    log.write(event="last")
    events = [(line["event"], line.get("times", 1)) for line in lines(pipe[0], b"last")]
    slow = [times for event, times in events if event == "slow"]
    assert slow[0] == 1 and 4 <= len(slow) <= 6 and len(events) == 2 * len(slow) + 1
    assert all(95 <= times <= 105 for times in slow[1:])


@needs_extra
@pytest.mark.xdist_group("serving")
def test_a_server_keeps_serving_if_nobody_reads_its_standard_error(pipe, tmp_path):
    log = tmp_path / "log"
    with served(log, "--max_wait=0", ready=False, stderr=pipe[1]) as server:
        text = b""
        while b"worker ready" not in text:
            text += os.read(pipe[0], 4096)
        log.write_bytes(text)
        for _ in range(60):  # of which 4096 bytes hold about half
            assert server.post(TEXTS[:1])[0] == 200
        os.kill(server.worker(), 9)  # the next one may write to standard error too
        server.wait(lambda: server.metric("worker_restarts_total") == 1 and server.is_ready())
        assert server.post(TEXTS[:1])[0] == 200
        server.process.terminate()
        assert server.process.wait(10) == 0


# ── metrics ──


@needs_extra
def test_metrics_are_exported_to_prometheus():
    metrics = telemetry.Metrics()
    metrics.count_batch(texts=3, cut=1, untranslated=2, seconds=0.5)
    metrics.count_closed("too slow")
    metrics.gauge("queue_texts", "Texts that wait for a worker", lambda: 7)
    written = metrics.response().body.decode()
    for line in ("texts_total 3.0", "cut_texts_total 1.0", "batch_texts_count 1.0", "queue_texts 7.0"):
        assert f"keras_tfm_{line}\n" in written
    assert 'keras_tfm_closed_connections_total{reason="too slow"} 1.0\n' in written
    assert 'keras_tfm_closed_connections_total{reason="stopping"} 0.0\n' in written  # before the first one


@needs_extra
def test_a_metric_has_one_meaning():
    metrics = telemetry.Metrics()
    metrics.gauge("connections", "Open connections", lambda: 1)
    with pytest.raises(ValueError, match="Duplicated"):
        metrics.gauge("connections", "Something else", lambda: 2)
