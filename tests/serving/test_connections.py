"""Clients that are slow, many, silent or malformed, against the part of the server that speaks HTTP."""

import asyncio
import collections
import contextlib
import json
import os
import resource
import socket
import time

import pytest
from conftest import once

from keras_tfm import serving
from keras_tfm.serving.responses import RequestError, Response

connections = pytest.importorskip("keras_tfm.serving.connections", reason="pip install 'keras_tfm[serve]'")
Log = pytest.importorskip("keras_tfm.serving.telemetry").Log
pytestmark = once

HALF = b"POST / HTTP/1.1\r\nHost: a\r\nX-Ha"
GET = b"GET /a HTTP/1.1\r\nHost: a\r\n\r\n"
LARGE = b"GET /large HTTP/1.1\r\nHost: a\r\n\r\n"  # more than a socket holds


class Site:
    """A server in the event loop of a test; it echoes what it gets."""

    def __init__(self, listener, settings, log):
        self.port, self.stop, self.closed = listener.getsockname()[1], asyncio.Event(), collections.Counter()
        self.go_on, self.writers = asyncio.Event(), []  # requests to /wait wait for the event
        self.connections = connections.Connections(self.respond, settings, log, lambda why: self.closed.update([why]))
        self.task = asyncio.create_task(self.connections.serve(listener, self.stop))

    async def respond(self, request):
        if request.path == "/wait":
            await self.go_on.wait()
        if request.path == "/large":
            return Response(200, bytes(10**7))
        body = b""
        try:
            if request.path != "/ignore":
                async for chunk in request.chunks():
                    body += chunk
        except RequestError as error:
            return error.response
        return Response.json({"path": request.path, "bytes": len(body)})

    async def connect(self, *parts, address="127.0.0.1"):
        """A connection that has sent some bytes."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, local_addr=(address, 0))
        writer.write(b"".join(parts))
        self.writers.append(writer)
        return reader, writer

    async def ask(self, *parts, **options):
        """Status, headers and JSON of a response."""
        reader, writer = await self.connect(*parts or [GET], **options)
        answer = await answer_from(reader)
        writer.close()
        return answer


async def answer_from(reader):
    head, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().lower().split("\r\n")
    headers = dict(line.split(": ") for line in lines if line)
    return int(head.split()[1]), headers, json.loads(await reader.readexactly(int(headers["content-length"])))


def on_a_site(test, **settings):
    """Runs a coroutine function of a `Site`, which must then stop."""

    async def run():
        listener = socket.create_server(("127.0.0.1", 0), backlog=connections.BACKLOG)
        with open(os.devnull, "wb") as file, contextlib.closing(Log(file.fileno())) as log:
            site = Site(listener, serving.Settings(**settings), log)
            try:
                await test(site)
            finally:
                site.stop.set()
                for writer in site.writers:
                    writer.close()
            await asyncio.wait_for(site.task, 10)
            assert not site.connections.limit.open

    asyncio.run(run())


@pytest.fixture
def short_grace(monkeypatch):
    monkeypatch.setattr(connections, "GRACE", 0.3)


# ── slow clients ──


def test_a_head_must_come_in_time():
    async def test(site):
        silent, half = [await site.connect(data) for data in (b"", HALF)]
        slow, sender = await site.connect(HALF)
        start = time.perf_counter()
        while not slow.at_eof() and not sender.is_closing():
            sender.write(b"a")  # which must not prolong its life
            await asyncio.sleep(0.02)
        assert await silent[0].read() == await half[0].read() == b"" and time.perf_counter() - start < 3
        assert site.closed == {"too slow": 3}

    on_a_site(test, head_timeout=0.3)


def test_a_body_must_come_in_time():
    async def test(site):
        status, headers, answer = await site.ask(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n", b"half")
        assert (status, answer) == (408, {"error": "the body must come within 0.3 seconds"})
        assert headers["connection"] == "close"

    on_a_site(test, body_timeout=0.3)


def test_a_connection_may_be_idle_for_a_while():
    async def test(site):
        reader, writer = await site.connect(GET)
        for pause in (0.3, 0.3):
            assert (await answer_from(reader))[0] == 200
            await asyncio.sleep(pause)
            writer.write(GET)
        await answer_from(reader)
        assert await reader.read() == b"" and not site.closed  # which is nothing to report

    on_a_site(test, head_timeout=0.1, idle_timeout=0.6)


def test_a_client_that_does_not_read_is_cut_off():
    async def test(site):
        with socket.create_connection(("127.0.0.1", site.port)) as silent:
            silent.sendall(LARGE)
            async with asyncio.timeout(10):
                while not site.closed:
                    assert (await site.ask())[0] == 200
            assert site.closed == {"too slow": 1}

    on_a_site(test, body_timeout=0.3)


# ── many clients ──


def test_waiting_connections_are_evicted_for_new_ones():
    async def test(site):
        reader, writer = await site.connect(b"GET /wait HTTP/1.1\r\nHost: a\r\n\r\n")
        waiting = [await site.connect(HALF) for _ in range(50)]
        start = time.perf_counter()
        assert (await site.ask())[0] == 200 and time.perf_counter() - start < 2
        assert len(site.connections.limit.open) <= 8 and site.closed["too many connections"] >= 43
        assert await waiting[0][0].read() == b""
        site.go_on.set()
        assert (await answer_from(reader))[0] == 200  # it was not waiting, so it was not evicted

    on_a_site(test, max_connections=8)


def test_one_client_cannot_evict_the_connections_of_others():
    async def test(site):
        kept = [await site.connect(HALF, address="127.0.0.2") for _ in range(2)]
        for _ in range(50):
            await site.connect(HALF)
        await asyncio.sleep(0.1)
        assert len(site.connections.limit.open) == 6
        for reader, writer in kept:
            writer.write(b"lf: b\r\nContent-Length: 0\r\n\r\n")
            assert (await answer_from(reader))[0] == 200

    on_a_site(test, max_connections=8, max_client_connections=4)


def test_if_all_connections_are_busy_new_ones_are_refused_with_503():
    async def test(site):
        busy = [await site.connect(b"GET /wait HTTP/1.1\r\nHost: a\r\n\r\n") for _ in range(4)]
        await asyncio.sleep(0.1)
        status, headers, answer = await site.ask(b"")
        assert (status, headers["retry-after"], headers["connection"]) == (503, "1", "close")
        assert answer == {"error": "the server has too many connections: try again later"}
        site.go_on.set()
        assert [(await answer_from(reader))[0] for reader, _ in busy] == [200] * 4

    on_a_site(test, max_connections=4)


def test_without_file_descriptors_the_server_waits_and_does_not_fill_the_log():
    async def run(listener, log):
        clients = [socket.create_connection(listener.getsockname(), 5) for _ in range(3)]
        before = resource.getrlimit(resource.RLIMIT_NOFILE)
        site = Site(listener, serving.Settings(), log)
        os.close(lowest := os.dup(listener.fileno()))
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, before[1]))  # no more than are open
        try:
            spent = time.process_time()
            await asyncio.sleep(0.7)
            assert time.process_time() - spent < 0.3 and not site.connections.limit.open
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, before)
        for client in clients:
            with client:
                client.sendall(GET)
                assert b"200" in await asyncio.to_thread(client.recv, 100)
        site.stop.set()
        await asyncio.wait_for(site.task, 10)

    read, write = os.pipe()
    with socket.create_server(("127.0.0.1", 0)) as listener, contextlib.closing(Log(write)) as log:
        asyncio.run(run(listener, log))
    os.close(write)
    with open(read, "rb") as file:
        lines = [json.loads(line) for line in file]
    assert 1 <= len(lines) <= 2 and {line["event"] for line in lines} == {"connections cannot be accepted"}
    assert lines[0]["error"] == "Too many open files"


# ── the end ──


@pytest.mark.usefixtures("short_grace")
def test_a_server_that_stops_waits_for_no_client_for_long():
    async def test(site):
        for data in (b"", HALF, GET, b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n"):
            reader, writer = await site.connect(data)
        with socket.create_connection(("127.0.0.1", site.port)) as silent:
            silent.sendall(LARGE)
            await asyncio.sleep(0.1)
            start = time.perf_counter()
            site.stop.set()
            assert (await answer_from(reader))[::2] == (503, {"error": "the server is stopping"})
            await asyncio.wait_for(site.task, 10)
            assert time.perf_counter() - start < 5

    on_a_site(test)


def test_a_server_that_stops_answers_what_has_come_and_what_comes_soon():
    async def test(site):
        idle, writer = await site.connect(GET)
        assert "connection" not in (await answer_from(idle))[1]
        busy, _ = await site.connect(b"GET /wait HTTP/1.1\r\nHost: a\r\n\r\n")
        pending = [socket.create_connection(("127.0.0.1", site.port), 5) for _ in range(30)]  # not accepted yet
        for connection in pending:
            connection.sendall(GET)
        site.stop.set()
        await asyncio.sleep(0.1)
        with pytest.raises(ConnectionRefusedError):
            await site.connect()
        writer.write(GET)
        site.go_on.set()
        for reader in (idle, busy):
            status, headers, _ = await answer_from(reader)
            assert (status, headers["connection"], await reader.read()) == (200, "close", b"")
        for connection in pending:
            with connection:
                assert b"200" in await asyncio.to_thread(connection.recv, 1000)

    on_a_site(test)


# ── the protocol ──


def test_bodies_may_be_chunked_announced_or_sent_at_once():
    async def test(site):
        chunked = b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
        assert (await site.ask(chunked, b"1\r\na\r\n" * 5000, b"0\r\n\r\n"))[2]["bytes"] == 5000
        long = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n"
        assert (await site.ask(long, b"\r\n", b"a" * 10**6))[2]["bytes"] == 10**6
        reader, writer = await site.connect(long, b"Expect: 100-continue\r\n\r\n")
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 \r\n\r\n"
        writer.write(b"a" * 10**6)
        assert (await answer_from(reader))[2]["bytes"] == 10**6

    on_a_site(test)


def test_requests_that_come_together_are_answered_in_their_order():
    async def test(site):
        reader, _ = await site.connect(*(b"GET /%d HTTP/1.1\r\nHost: a\r\n\r\n" % number for number in range(50)))
        assert [(await answer_from(reader))[2]["path"] for _ in range(50)] == [f"/{number}" for number in range(50)]

    on_a_site(test)


def test_a_client_that_is_still_sending_can_read_why_it_was_refused():
    async def test(site):
        head = b"POST /ignore HTTP/1.1\r\nHost: a\r\nContent-Length: 3000000\r\n\r\n"
        status, headers, _ = await site.ask(head, b"a" * 3_000_000)
        assert (status, headers["connection"]) == (200, "close")

    on_a_site(test)


@pytest.mark.parametrize(
    "data, status",
    [
        (b"no HTTP\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n\r\n", 400),  # without a host
        (b"GET / HTTP/1.1\r\nHost: a\r\nA: " + b"a" * 20_000, 431),
        (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", 400),
    ],
)
def test_what_is_not_http_is_refused(data, status):
    async def test(site):
        actual, headers, answer = await site.ask(data)
        assert (actual, headers["connection"]) == (status, "close") and answer["error"]
        assert (await site.ask())[0] == 200

    on_a_site(test)
