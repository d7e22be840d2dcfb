import contextlib
import dataclasses

import pytest

from keras_tfm.serving.responses import Unavailable

connections = pytest.importorskip("keras_tfm.serving.connections", reason="pip install 'keras_tfm[serve]'")


@dataclasses.dataclass(eq=False)
class Connection:
    address: str


def filled(*addresses):
    limit, opened = connections.ConnectionLimit(4, 3), [*map(Connection, addresses)]
    for connection in opened:
        limit.open.add(connection)
    return limit, opened


def test_nothing_is_evicted_below_the_limits():
    limit, opened = filled("a", "a")
    assert limit.evict("a") is None and limit.open == {*opened}
    limit.remove(opened[0])
    assert len(limit.open) == 1


def test_a_client_with_too_many_connections_loses_the_one_that_waits_for_longest():
    limit, (first, second, third) = filled("a", "a", "a")
    with limit.evictable(second), limit.evictable(first):
        assert limit.evict("b") is None and limit.evict("a") is second
    limit.open.add(second)
    with contextlib.ExitStack() as stack:
        with limit.evictable(second):
            stack.enter_context(limit.evictable(first))
        stack.enter_context(limit.evictable(second))  # it has sent something in between
        assert limit.evict("a") is first


def test_at_the_limit_the_client_with_the_most_connections_loses_one():
    limit, opened = filled("b", "a", "a", "c")
    with contextlib.ExitStack() as stack:
        for connection in opened:
            stack.enter_context(limit.evictable(connection))
        assert limit.evict("d") is opened[1]


def test_a_connection_whose_request_is_being_answered_is_not_evicted():
    limit, opened = filled("a", "a", "b", "b")
    with pytest.raises(Unavailable, match="too many connections"):
        limit.evict("c")
    with limit.evictable(opened[2]):
        assert limit.evict("c") is opened[2]
    limit.open.add(Connection("c"))
    with limit.evictable(opened[2]), pytest.raises(Unavailable):  # too late: it is closed
        limit.evict("c")
