"""HTTP/1.1 for clients that nobody vouches for: bounds on their connections, and on the time that they take.

h11 parses; the rest is written here because no server that was tried withstands 1,100 connections with half a head that
are opened again when they are closed. Uvicorn never closes them. Hypercorn closes them after five seconds, but has no
limit on their number, so that others wait for seconds. Neither bounds the time that a client takes to read an answer.

Sockets are read only when the server wants to know more, so that the kernel and not this process holds what a client
sends unasked.
"""

import asyncio
import contextlib
import email.utils
import socket as sockets
import urllib.parse

import h11

from keras_tfm.serving.answers import Busy, Refused
from keras_tfm.serving.places import Places

BACKLOG = 1024  # connections that the kernel holds until they are accepted
CHUNK = 2**16  # bytes that are received at a time
LONGEST_HEAD = 2**14  # bytes
UNREAD = 2**17  # bytes of answers that the kernel holds for a client that does not read them
MANY = 64  # chunks of a body, of which a client may send thousands at a time
PACE = 0.001  # seconds between two parts of large bodies, or two requests that came together
GRACE = 3  # seconds that clients have once the server stops
LINGER = 2  # seconds that a client has to read why its request was refused while it still sends it


class Connections:
    """Accepts connections, and closes those that keep the server waiting. For one thread, that of the event loop.

    Args:
        answer: a coroutine function, from a `Request` to an `Answer`.
        settings: a `Settings`.
        log: a `Log`.
        count_closed: a function that is called with the reason whenever the server closes a connection.
    """

    def __init__(self, answer, settings, log, count_closed):
        self.answer, self.settings, self.log, self._count_closed = answer, settings, log, count_closed
        self.places = Places(settings.max_connections, settings.max_client_connections)
        self.end = None  # once the server stops: the time on the event loop's clock when requests must have come
        self._turn = asyncio.Lock()

    async def serve(self, listener, stop):
        """Accepts connections until the event `stop`, and answers the requests that have come by then or soon after."""
        listener.setblocking(False)
        # Connections inherit these. Without the first, the end of an answer waits 40 ms for a sign of the client.
        listener.setsockopt(sockets.IPPROTO_TCP, sockets.TCP_NODELAY, 1)
        listener.setsockopt(sockets.SOL_SOCKET, sockets.SO_SNDBUF, UNREAD)
        self._listen(listener)
        await stop.wait()
        self.end = asyncio.get_running_loop().time() + GRACE
        self._accept(listener, BACKLOG)  # what the kernel has accepted
        asyncio.get_running_loop().remove_reader(listener)
        listener.close()
        for connection in self.places:
            connection.hurry()
        while self.places:
            await asyncio.wait([connection.task for connection in self.places])

    async def turn(self):
        """Waits for a turn, of which there is one at a time, for what could keep all others from having theirs."""
        async with self._turn:
            await asyncio.sleep(PACE)

    def report_closed(self, reason):
        """Counts a connection that was not closed by its client, and says so now and then."""
        self._count_closed(reason)
        self.log.say_seldom(reason, event="connection closed", reason=reason)

    def _listen(self, listener):
        if self.end is None:
            asyncio.get_running_loop().add_reader(listener, self._accept, listener)

    def _accept(self, listener, most=16):
        """Accepts connections that the kernel holds, up to a number."""
        try:
            for _ in range(most):
                self._admit(*listener.accept())
        except (BlockingIOError, ConnectionAbortedError):
            pass  # there is no more, or the client has left
        except OSError as error:
            self.log.say_seldom("accept", event="connections cannot be accepted", error=error.strerror)
            loop = asyncio.get_running_loop()
            loop.remove_reader(listener)
            loop.call_later(0.5, self._listen, listener)  # when something may be free again

    def _admit(self, socket, address):
        """Serves a connection, in the place of another one if there are too many."""
        socket.setblocking(False)
        connection = Connection(self, socket, address[0])
        try:
            if (other := self.places.in_the_way(connection.address)) is not None:
                self.report_closed("too many connections")
                self.places.remove(other)
                other.task.cancel()
        except Busy as refusal:
            self.report_closed("too many connections")
            with contextlib.suppress(OSError), socket:
                socket.send(connection.written(refusal.answer))
            return
        self.places.add(connection)
        connection.task = asyncio.create_task(connection.run())


class Connection:
    """A connection, and the requests that come over it, one after the other."""

    def __init__(self, owner, socket, address):
        self.owner, self.settings, self.address = owner, owner.settings, address
        self.protocol = h11.Connection(h11.SERVER, LONGEST_HEAD)
        self.task = None
        self._socket, self._timeout, self._loop = socket, None, asyncio.get_running_loop()
        self._method = b""

    async def run(self):
        """Answers requests until the connection is closed."""
        try:
            kept_alive = False
            while await self._exchange(kept_alive):
                kept_alive = True
                if self.protocol.trailing_data[0]:  # the next request has come already
                    await self.turn(self._loop.time() + self.settings.idle_timeout)
        except TimeoutError:
            self.owner.report_closed("too slow" if self.owner.end is None else "stopping")
        except OSError:
            pass  # the client is gone
        except Exception as error:
            self.owner.log.say_seldom("error", event="error", error=f"{type(error).__name__}: {error}")
        finally:
            self._socket.close()
            self.owner.places.remove(self)

    def hurry(self):
        """Bounds the time that the server still waits for the client by `owner.end`."""
        if self._timeout is not None:
            with contextlib.suppress(RuntimeError):  # it has just run out
                self._timeout.reschedule(min(self._timeout.when(), self.owner.end))

    # ── bytes ──

    async def _wait(self, awaitable, until):
        """The result of something that depends on the client, which has time until then."""
        self.owner.places.set_waiting(self, True)
        try:
            async with asyncio.timeout_at(until) as self._timeout:
                return await awaitable
        finally:
            self._timeout = None
            self.owner.places.set_waiting(self, False)

    async def receive(self, until):
        """Hands to the protocol what the client sends next."""
        until = min(until, self.owner.end or until)
        self.protocol.receive_data(await self._wait(self._loop.sock_recv(self._socket, CHUNK), until))

    async def send(self, data):
        """Sends bytes."""
        seconds = self.settings.body_timeout if self.owner.end is None else GRACE
        await self._wait(self._loop.sock_sendall(self._socket, data), self._loop.time() + seconds)

    async def turn(self, until):
        """Waits for a turn of `owner`, as if it were for the client: meanwhile, others may need the place more."""
        await self._wait(self.owner.turn(), until)

    async def _linger(self):
        """Lets a client that still sends read its answer: closing at once would discard it."""
        self._socket.shutdown(sockets.SHUT_WR)
        with contextlib.suppress(TimeoutError):
            await self._wait(self._ignore_all(), self._loop.time() + LINGER)

    async def _ignore_all(self):
        while await self._loop.sock_recv(self._socket, CHUNK):
            await self.owner.turn()

    # ── requests and answers ──

    async def _exchange(self, kept_alive):
        """Answers a request; returns whether another one may follow."""
        self._method = b""
        try:
            head = await self._head(kept_alive)
            if not isinstance(head, h11.Request):
                return False
            self._method = head.method
            answer = await self.owner.answer(Request(self, head))
        except h11.RemoteProtocolError as error:
            answer = Refused(error.error_status_hint, str(error)).answer
        self._skip_what_has_come()
        await self.send(self.written(answer))
        if self.protocol.our_state is self.protocol.their_state is h11.DONE:
            self.protocol.start_next_cycle()
            return True
        if self.protocol.their_state in (h11.SEND_BODY, h11.ERROR):
            await self._linger()
        return False

    async def _head(self, kept_alive):
        """The head of the next request, or something else if there will be none."""
        until = self._loop.time() + (self.settings.idle_timeout if kept_alive else self.settings.head_timeout)
        idle = kept_alive
        while (event := self.protocol.next_event()) is h11.NEED_DATA:
            try:
                await self.receive(until)
            except TimeoutError:
                if idle:  # which is no fault of the client
                    return None
                raise
            idle = False
            until = min(until, self._loop.time() + self.settings.head_timeout)
        return event

    def _skip_what_has_come(self):
        """Ignores what has come of a body that was not read: at least its end, if the request has none."""
        with contextlib.suppress(h11.RemoteProtocolError):
            while self.protocol.their_state is h11.SEND_BODY and self.protocol.next_event() is not h11.NEED_DATA:
                pass

    def written(self, answer):
        """The bytes of an answer."""
        headers = {"content-type": answer.content_type, "content-length": str(len(answer.body)), **answer.headers}
        headers["date"] = email.utils.formatdate(usegmt=True)
        if self.owner.end is not None or self.protocol.their_state is not h11.DONE:
            headers["connection"] = "close"
        head = h11.Response(status_code=answer.status, headers=[*headers.items()])
        body = h11.Data(data=b"" if self._method == b"HEAD" else answer.body)
        return b"".join(map(self.protocol.send, [head, body, h11.EndOfMessage()]))


class Request:
    """The head of a request, and its body as it comes."""

    def __init__(self, connection, head):
        self.method = head.method.decode()
        self.path = urllib.parse.unquote(head.target.decode("latin-1").partition("?")[0])
        self.headers = {name.decode(): value.decode("latin-1") for name, value in head.headers}  # names in lower case
        self._connection, self._until = connection, None
        self._received = self._chunks = 0

    async def chunk(self):
        """The next part of the body, or None after the last one."""
        connection, protocol = self._connection, self._connection.protocol
        if self._until is None:
            self._until = asyncio.get_running_loop().time() + connection.settings.body_timeout
            if protocol.they_are_waiting_for_100_continue:
                await connection.send(protocol.send(h11.InformationalResponse(status_code=100, headers=[])))
        try:
            while (event := protocol.next_event()) is h11.NEED_DATA:
                if self._received:  # a large body
                    await connection.turn(self._until)
                await connection.receive(self._until)
                self._received += 1
            self._chunks += 1
            if self._chunks % MANY == 0:
                await connection.turn(self._until)
        except TimeoutError:
            if connection.owner.end is not None:
                raise Busy("the server is stopping") from None
            raise Refused(408, f"the body must come within {connection.settings.body_timeout:g} seconds") from None
        except h11.RemoteProtocolError as error:
            raise Refused(400, f"the body is not whole: {error}") from None
        return event.data if isinstance(event, h11.Data) else None
