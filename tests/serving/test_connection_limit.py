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
        limit.add(connection)
    return limit, opened


def test_nothing_is_evicted_below_the_limits():
    limit, opened = filled("a", "a")
    assert limit.evict("a") is None and limit.open == {*opened}
    limit.remove(opened[0])
    assert len(limit.open) == 1


def test_a_client_with_too_many_connections_loses_the_one_that_waits_for_longest():
    limit, (first, second, third) = filled("a", "a", "a")
    limit.wait(second)
    limit.wait(first)
    assert limit.evict("b") is None and limit.evict("a") is second
    limit.add(second)
    limit.wait(second)  # later than the first
    assert limit.evict("a") is first


def test_at_the_limit_the_client_with_the_most_connections_loses_one():
    limit, opened = filled("b", "a", "a", "c")
    for connection in opened:
        limit.wait(connection)
    assert limit.evict("d") is opened[1]


def test_a_connection_whose_request_is_being_answered_is_not_evicted():
    limit, opened = filled("a", "a", "b", "b")
    with pytest.raises(Unavailable, match="too many connections"):
        limit.evict("c")
    limit.wait(opened[2])
    assert limit.evict("c") is opened[2]
    limit.wait(opened[2])  # too late: it is closed
    limit.add(Connection("c"))
    with pytest.raises(Unavailable):
        limit.evict("c")
    for connection in [*limit.open]:
        limit.remove(connection)
    assert not limit.per_address and not limit.waiting
