"""Which connections there are, and which of them has to make room when there are too many."""

from keras_tfm.serving.answers import Busy


class Places:
    """A bounded number of connections, each with an `address`. For one thread.

    Args:
        most: maximum number of connections.
        most_per_address: maximum number of connections from one address.
    """

    def __init__(self, most, most_per_address):
        self._most, self._most_per_address = most, most_per_address
        self._connections, self._waiting = {}, {}  # address → connections; those that wait for the client: oldest first

    def __len__(self):
        return sum(map(len, self._connections.values()))

    def __iter__(self):
        return iter([connection for connections in self._connections.values() for connection in connections])

    def add(self, connection):
        self._connections.setdefault(connection.address, {})[connection] = None

    def remove(self, connection):
        self.set_waiting(connection, False)
        _remove(self._connections, connection)

    def set_waiting(self, connection, waiting):
        """Notes that a connection waits for its client, from now on or no longer."""
        if waiting and connection in self._connections.get(connection.address, ()):
            self._waiting.setdefault(connection.address, {})[connection] = None
        else:
            _remove(self._waiting, connection)

    def in_the_way(self, address):
        """The connection that must be removed before one from this address is added, or None.

        It is the one that has waited for its client for longest, of those from the address with the most connections:
        a client that only waits loses its place to one that has something to say.
        """
        crowded = None
        if len(self) >= self._most:
            crowded = max(self._waiting, key=lambda other: len(self._connections[other]), default=address)
        elif len(self._connections.get(address, ())) >= self._most_per_address:
            crowded = address
        if crowded is None:
            return None
        if crowded not in self._waiting:
            raise Busy("the server has too many connections: try again later")
        return next(iter(self._waiting[crowded]))


def _remove(groups, connection):
    """Removes a connection from its group, and an empty group from all."""
    group = groups.get(connection.address, {})
    group.pop(connection, None)
    if not group:
        groups.pop(connection.address, None)
