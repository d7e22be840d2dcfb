import asyncio

import pytest

from keras_tfm.serving.answers import Refused
from keras_tfm.serving.bodies import FREE, Budget, read


class Request:
    """A request whose body comes in chunks."""

    def __init__(self, *chunks, length=None):
        self.chunks, self.headers = iter([*chunks, None]), {} if length is None else {"content-length": str(length)}

    async def chunk(self):
        return next(self.chunks)


def body(budget, *chunks, limit=10**6, **options):
    with budget.account() as account:
        return bytes(asyncio.run(read(Request(*chunks, **options), limit, account)))


def test_a_body_is_put_together():
    budget = Budget(10**6)
    for size in (0, 1, FREE, FREE + 1, 10**5):
        chunks = [bytes([number % 256]) * (size // 10) for number in range(10)] + [b"x" * (size % 10)]
        assert body(budget, *chunks) == b"".join(chunks)
    assert budget.taken == 0


def test_a_body_that_is_too_large_is_refused_before_it_is_read_or_as_soon_as_it_is():
    for request in (Request(length=101), Request(b"a" * 60, b"a" * 60)):
        with pytest.raises(Refused, match="at most 100 bytes") as caught, Budget(10**6).account() as account:
            asyncio.run(read(request, 100, account))
        assert caught.value.status == 413


def test_all_bodies_together_are_bounded_and_small_ones_always_pass():
    budget, large = Budget(100_000), b"a" * (60_000 + FREE)
    with budget.account() as first:
        first.grow(len(large))
        with pytest.raises(Refused, match="at most 100000 bytes: try again later") as caught:
            body(budget, large)
        assert caught.value.status == 503 and caught.value.headers == {"Retry-After": "1"} and budget.taken == 60_000
        first.grow(100_000 + FREE)  # all that is left
        assert body(budget, b"a" * FREE) == b"a" * FREE
    assert body(budget, large) == large and budget.taken == 0
