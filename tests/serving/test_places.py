import dataclasses

import pytest

from keras_tfm.serving.answers import Busy
from keras_tfm.serving.places import Places


@dataclasses.dataclass(eq=False)
class Connection:
    address: str


def filled(*addresses, most=4, most_per_address=3):
    places, connections = Places(most, most_per_address), [Connection(address) for address in addresses]
    for connection in connections:
        places.add(connection)
    return places, connections


def test_there_is_room_up_to_the_limits():
    places, connections = filled("a", "a")
    assert places.in_the_way("a") is None and len(places) == 2 and {*places} == {*connections}
    places.remove(connections[0])
    assert len(places) == 1


def test_a_client_with_too_many_connections_loses_the_one_that_waits_for_longest():
    places, (first, second, third) = filled("a", "a", "a")
    for connection in (second, first):
        places.set_waiting(connection, True)
    assert places.in_the_way("b") is None and places.in_the_way("a") is second
    places.set_waiting(second, False)  # it sends something
    places.set_waiting(second, True)
    assert places.in_the_way("a") is first


def test_if_all_places_are_taken_the_client_with_the_most_loses_one():
    places, connections = filled("b", "a", "a", "c")
    for connection in connections:
        places.set_waiting(connection, True)
    assert places.in_the_way("d") is connections[1]


def test_a_connection_whose_request_is_being_answered_keeps_its_place():
    places, connections = filled("a", "a", "b", "b")
    with pytest.raises(Busy, match="too many connections"):
        places.in_the_way("c")
    places.set_waiting(connections[2], True)
    assert places.in_the_way("c") is connections[2]
    places.remove(connections[2])
    places.set_waiting(connections[2], True)  # too late
    places.add(Connection("c"))
    with pytest.raises(Busy):
        places.in_the_way("c")
