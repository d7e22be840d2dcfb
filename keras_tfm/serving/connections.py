"""HTTP/1.1 for untrusted clients: limits on their connections, and on the time that each may take.

h11 parses. There is no server library underneath, because none withstood 1,100 half-open connections that reconnect
when closed: Uvicorn never closes them, Hypercorn does not limit their number, and neither limits the time that a client
takes to read a response.

Sockets are read only when the server needs more, so that the kernel and not this process buffers what clients send.
"""

import asyncio
import collections
import contextlib
import email.utils
import socket as sockets
import urllib.parse

import h11

from keras_tfm.serving.responses import RequestError, Unavailable
from keras_tfm.serving.telemetry import STOPPING, TOO_MANY, TOO_SLOW

BACKLOG = 1024  # connections that the kernel holds until they are accepted
CHUNK = 2**16  # bytes that are received at a time
MAX_HEAD = 2**14  # bytes
SEND_BUFFER = 2**17  # bytes of responses that the kernel holds for a client that does not read them
MAX_CHUNKS = 64  # chunks of a body without a pause; a client may send thousands at a time
PAUSE = 0.001  # seconds between two parts of large bodies, or two pipelined requests
GRACE = 3  # seconds that clients have once the server stops
LINGER = 2  # seconds that a client has to read an error while it still sends its request


class ConnectionLimit:
    """Open connections, each with an `address`, and which of them is closed for another. For one thread."""

    def __init__(self, limit, limit_per_address):
        self.limit, self.limit_per_address = limit, limit_per_address
        self.open, self.per_address = set(), collections.Counter()
        self.waiting = {}  # those that wait for their client, and may be evicted: in the order in which they began

    def add(self, connection):
        self.open.add(connection)
        self.per_address[connection.address] += 1

    def remove(self, connection):
        self.waiting.pop(connection, None)
        if connection in self.open:
            self.open.remove(connection)
            self.per_address[connection.address] -= 1
            if not self.per_address[connection.address]:
                del self.per_address[connection.address]

    def wait(self, connection):
        """Marks a connection as waiting, unless it was evicted."""
        if connection in self.open:
            self.waiting[connection] = None

    def evict(self, address):
        """Removes and returns the connection that must be closed before one from this address is added, or None.

        It is the one that has waited longest, of those from the address with the most connections.
        """
        if len(self.open) >= self.limit:
            evicted = max(self.waiting, key=lambda connection: self.per_address[connection.address], default=None)
        elif self.per_address[address] >= self.limit_per_address:
            evicted = next((connection for connection in self.waiting if connection.address == address), None)
        else:
            return None
        if evicted is None:
            raise Unavailable("the server has too many connections: try again later")
        self.remove(evicted)
        return evicted


class Connections:
    """Accepts connections, and closes those that keep the server waiting. For one thread, that of the event loop.

    `respond` is a coroutine function from a `Request` to a `Response`; `count_closed` takes one of `CLOSE_REASONS`.
    """

    def __init__(self, respond, settings, log, count_closed):
        self.respond, self.settings, self.log, self._count_closed = respond, settings, log, count_closed
        self.limit = ConnectionLimit(settings.max_connections, settings.max_client_connections)
        self.end = None  # once the server stops: the time of the event loop until which requests may come
        self._throttle = asyncio.Lock()

    async def serve(self, listener, stop):
        """Accepts connections until the event `stop`, then answers the requests that have come or come soon."""
        loop = asyncio.get_running_loop()
        listener.setblocking(False)
        # Connections inherit these. Without the first, the end of a response is delayed by 40 ms.
        listener.setsockopt(sockets.IPPROTO_TCP, sockets.TCP_NODELAY, 1)
        listener.setsockopt(sockets.SOL_SOCKET, sockets.SO_SNDBUF, SEND_BUFFER)
        self._listen(listener)
        await stop.wait()
        self.end = loop.time() + GRACE
        self._accept(listener, BACKLOG)  # what the kernel has accepted
        loop.remove_reader(listener)
        listener.close()
        for connection in self.limit.waiting:
            with contextlib.suppress(RuntimeError):  # the timeout has just expired
                connection.timeout.reschedule(min(connection.timeout.when(), self.end))
        while self.limit.open:
            await asyncio.wait([connection.task for connection in self.limit.open])

    async def throttle(self):
        """Pauses work on large requests: one of them continues each millisecond, in between others are served."""
        async with self._throttle:
            await asyncio.sleep(PAUSE)

    def report_closed(self, reason):
        self._count_closed(reason)
        self.log.write_rate_limited(reason, event="connection closed", reason=reason)

    def _listen(self, listener):
        if self.end is None:
            asyncio.get_running_loop().add_reader(listener, self._accept, listener)

    def _accept(self, listener, number=16):
        try:
            for _ in range(number):
                self._admit(*listener.accept())
        except (BlockingIOError, ConnectionAbortedError):
            pass  # there is no more, or the client has left
        except OSError as error:
            self.log.write_rate_limited("accept", event="connections cannot be accepted", error=error.strerror)
            loop = asyncio.get_running_loop()
            loop.remove_reader(listener)
            loop.call_later(0.5, self._listen, listener)

    def _admit(self, socket, address):
        """Serves a new connection; evicts another one if there are too many."""
        socket.setblocking(False)
        connection = Connection(self, socket, address[0])
        try:
            evicted = self.limit.evict(connection.address)
        except Unavailable as error:
            self.report_closed(TOO_MANY)
            with contextlib.suppress(OSError), socket:
                socket.send(connection.encode(error.response))
            return
        if evicted:
            self.report_closed(TOO_MANY)
            evicted.task.cancel()
        self.limit.add(connection)
        connection.task = asyncio.create_task(connection.run())


class Connection:
    """A connection, and the requests that come over it, one after the other."""

    def __init__(self, owner, socket, address):
        self.owner, self.settings, self.address = owner, owner.settings, address
        self.protocol, self.task, self.timeout = h11.Connection(h11.SERVER, MAX_HEAD), None, None
        self._socket, self._loop, self._method = socket, asyncio.get_running_loop(), b""

    async def run(self):
        """Answers requests until the connection is closed."""
        try:
            kept_alive = False
            while await self._exchange(kept_alive):
                kept_alive = True
                if self.protocol.trailing_data[0]:  # pipelined: the next request has come already
                    await self.throttle(self._loop.time() + self.settings.idle_timeout)
        except TimeoutError:
            self.owner.report_closed(TOO_SLOW if self.owner.end is None else STOPPING)
        except OSError:
            pass  # the client is gone
        except Exception as error:
            self.owner.log.write_rate_limited("error", event="error", error=f"{type(error).__name__}: {error}")
        finally:
            self._socket.close()
            self.owner.limit.remove(self)

    # ── bytes ──

    async def _wait(self, awaitable, until):
        """The result of an awaitable that depends on the client, who has time until then."""
        self.owner.limit.wait(self)
        try:
            async with asyncio.timeout_at(until) as self.timeout:
                return await awaitable
        finally:
            self.owner.limit.waiting.pop(self, None)

    async def receive(self, until):
        """Hands to the protocol what the client sends next."""
        data = await self._wait(self._loop.sock_recv(self._socket, CHUNK), min(until, self.owner.end or until))
        self.protocol.receive_data(data)

    async def send(self, data):
        seconds = self.settings.body_timeout if self.owner.end is None else GRACE
        await self._wait(self._loop.sock_sendall(self._socket, data), self._loop.time() + seconds)

    async def throttle(self, until):
        """`Connections.throttle`; the connection may be evicted meanwhile.

        Only this ends one whose client always has more to send: what has come already is received without waiting.
        """
        await self._wait(self.owner.throttle(), min(until, self.owner.end or until))

    async def _linger(self):
        """Lets a client that still sends read its response, which closing at once would discard."""
        self._socket.shutdown(sockets.SHUT_WR)
        until = self._loop.time() + LINGER
        with contextlib.suppress(TimeoutError):
            while await self._wait(self._loop.sock_recv(self._socket, CHUNK), until):
                await self._wait(self.owner.throttle(), until)

    # ── requests and responses ──

    async def _exchange(self, kept_alive):
        """Answers a request; returns whether another one may follow."""
        self._method = b""
        try:
            head = await self._head(kept_alive)
            if not isinstance(head, h11.Request):
                return False
            self._method = head.method
            response = await self.owner.respond(Request(self, head))
        except h11.RemoteProtocolError as error:
            response = RequestError(error.error_status_hint, str(error)).response
        with contextlib.suppress(h11.RemoteProtocolError):  # skips the received part of a body that was not read
            while self.protocol.their_state is h11.SEND_BODY and self.protocol.next_event() is not h11.NEED_DATA:
                pass
        await self.send(self.encode(response))
        if self.protocol.our_state is self.protocol.their_state is h11.DONE:
            self.protocol.start_next_cycle()
            return True
        if self.protocol.their_state in (h11.SEND_BODY, h11.ERROR):
            await self._linger()
        return False

    async def _head(self, kept_alive):
        """The head of the next request, or another event if there is none."""
        until = self._loop.time() + (self.settings.idle_timeout if kept_alive else self.settings.head_timeout)
        while (event := self.protocol.next_event()) is h11.NEED_DATA:
            try:
                await self.receive(until)
            except TimeoutError:
                if kept_alive:  # and idle, which is not the client's fault
                    return None
                raise
            kept_alive = False
            until = min(until, self._loop.time() + self.settings.head_timeout)
        return event

    def encode(self, response):
        """The bytes of a response."""
        headers = {"content-type": response.content_type, "content-length": str(len(response.body))}
        headers |= {**response.headers, "date": email.utils.formatdate(usegmt=True)}
        if self.owner.end is not None or self.protocol.their_state is not h11.DONE:
            headers["connection"] = "close"
        head = h11.Response(status_code=response.status, headers=[*headers.items()])
        body = h11.Data(data=b"" if self._method == b"HEAD" else response.body)
        return b"".join(map(self.protocol.send, [head, body, h11.EndOfMessage()]))


class Request:
    """The head of a request, and its body as it comes."""

    def __init__(self, connection, head):
        self.method = head.method.decode()
        self.path = urllib.parse.unquote(head.target.decode("latin-1").partition("?")[0])
        self.headers = {name.decode(): value.decode("latin-1") for name, value in head.headers}  # names in lower case
        self._connection = connection

    async def chunks(self):
        """Yields the parts of the body."""
        connection, protocol = self._connection, self._connection.protocol
        until = asyncio.get_running_loop().time() + connection.settings.body_timeout
        if protocol.they_are_waiting_for_100_continue:
            await connection.send(protocol.send(h11.InformationalResponse(status_code=100, headers=[])))
        large, chunks = False, 0
        try:
            while not isinstance(event := protocol.next_event(), h11.EndOfMessage):
                if event is h11.NEED_DATA:
                    if large:
                        await connection.throttle(until)
                    await connection.receive(until)
                    large = True
                else:
                    yield event.data
                    chunks += 1
                    if chunks % MAX_CHUNKS == 0:
                        await connection.throttle(until)
        except TimeoutError:
            if connection.owner.end is not None:
                raise Unavailable("the server is stopping") from None
            raise RequestError(408, f"the body must come within {connection.settings.body_timeout:g} seconds") from None
        except h11.RemoteProtocolError as error:
            raise RequestError(400, f"the body is incomplete: {error}") from None
