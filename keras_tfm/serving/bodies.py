"""The bodies of requests in memory: how many bytes one of them, and all of them together, may have."""

import contextlib
import mmap

from keras_tfm.serving.answers import Busy, Refused

FREE = 2**14  # bytes of each body that do not count, so that small requests are served while others send large ones


class Budget:
    """A number of bytes that the bodies of all requests share. For one thread."""

    def __init__(self, limit):
        self.limit, self.taken = limit, 0

    @contextlib.contextmanager
    def account(self):
        """What a request takes of the budget, until the block ends."""
        account = Account(self)
        try:
            yield account
        finally:
            self.taken -= account.taken


class Account:
    """The bytes of one request."""

    def __init__(self, budget):
        self.budget, self.taken = budget, 0

    def grow(self, size):
        """Makes the account cover a body of this size, or refuses it."""
        more = max(size - FREE, 0) - self.taken
        if self.budget.taken + more > self.budget.limit:
            raise Busy(f"all requests together must have at most {self.budget.limit} bytes: try again later")
        self.budget.taken += more
        self.taken += more


class Body:
    """The bytes of a body, which come in chunks.

    A large body is a mapping of its own: pages that go back to the system with it. As a `bytearray`, it would move
    about in Python's heap while it grows, and leave holes twice its size.
    """

    def __init__(self, limit):
        self.size, self._limit, self._bytes = 0, limit, bytearray()

    def add(self, chunk):
        self.size += len(chunk)
        if self.size <= FREE:
            self._bytes += chunk
            return
        if isinstance(self._bytes, bytearray):
            small, self._bytes = self._bytes, mmap.mmap(-1, self._limit, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            self._bytes.write(small)
        self._bytes.write(chunk)

    def view(self):
        return memoryview(self._bytes)[: self.size]


async def read(request, limit, account):
    """The body of a request as a memoryview, unless it is larger than `limit`, or than what the account can cover."""
    too_large = Refused(413, f"the body must have at most {limit} bytes")
    if int(request.headers.get("content-length", 0)) > limit:
        raise too_large
    body = Body(limit)
    while (chunk := await request.chunk()) is not None:
        if body.size + len(chunk) > limit:
            raise too_large
        account.grow(body.size + len(chunk))
        body.add(chunk)
    return body.view()
