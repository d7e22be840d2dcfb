"""A parser of JSON for bodies that nobody vouches for.

Python's own parser builds everything that a body describes before anybody can count it, and lets no other thread run
meanwhile. This one stops at the first value too many, and works in steps of less than a millisecond.
"""

import json
import re

# Possessive, so that a long token takes neither memory nor a second attempt.
TOKEN = re.compile(rb'[ \t\n\r]*+(?:([\[\]{},:])|("[^"\\]*+(?:\\.[^"\\]*+)*+")|([-+.\w]{1,64}+))', re.DOTALL)
SPACE = 1024  # bytes between two tokens
BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class BadBody(ValueError):
    """The body is not JSON, or more than allowed; `status` says which."""

    def __init__(self, message, status=422):
        super().__init__(message)
        self.status = status


class Parser:
    """Parses a body, step by step: `value` is complete when `steps()` is exhausted.

    Args:
        body: bytes, or a view of bytes.
        max_values: maximum number of values: strings (names in objects too), numbers, lists, objects.
        max_bytes: maximum bytes of a string, with quotes and escapes.
        max_depth: maximum depth of lists and objects in each other.

    >>> parser = Parser(b'{"instances": ["a", "b"]}', max_values=5)
    >>> for _ in parser.steps():
    ...     pass
    >>> parser.value
    {'instances': ['a', 'b']}
    """

    def __init__(self, body, max_values=1000, max_bytes=10_000, max_depth=8):
        self.body, self.value = body, None
        self._max_values, self._max_bytes, self._max_depth = max_values, max_bytes, max_depth
        self._position, self._values = len(BYTE_ORDER_MARK) if bytes(body[:3]) == BYTE_ORDER_MARK else 0, 0

    def steps(self):
        """Parses a string, a number or a bracket at each step."""
        self.value = yield from self._parse(self._next(), 0)
        if self._ahead() or len(self.body) > self._position + SPACE:
            raise self._not_json()

    def _parse(self, token, depth):
        """The value that begins with a token."""
        yield
        self._values += 1
        if self._values > self._max_values:
            raise BadBody(f"more than {self._max_values} values", 413)
        if depth > self._max_depth:
            raise BadBody(f"lists or objects nested more than {self._max_depth} deep")
        if token == b"[":
            return (yield from self._parse_list(depth + 1))
        if token == b"{":
            return (yield from self._parse_object(depth + 1))
        try:
            return json.loads(token.decode("utf-8", "surrogatepass"))
        except ValueError:
            raise self._not_json() from None

    def _parse_list(self, depth):
        items, token = [], self._next()
        more = token != b"]"
        while more:
            items.append((yield from self._parse(token, depth)))
            more = self._next(b",", b"]") == b","
            token = self._next() if more else None
        return items

    def _parse_object(self, depth):
        members, token = {}, self._next()
        more = token != b"}"
        while more:
            if not token.startswith(b'"'):
                raise self._not_json()
            key = yield from self._parse(token, depth)
            self._next(b":")
            members[key] = yield from self._parse(self._next(), depth)
            more = self._next(b",", b"}") == b","
            token = self._next() if more else None
        return members

    def _next(self, *allowed):
        """The next token, which must be one of these, if there are any."""
        match = TOKEN.match(self.body, self._position, self._position + SPACE + self._max_bytes)
        if match is None:
            if self._ahead().startswith(b'"') and len(self.body) > self._position + SPACE + self._max_bytes:
                raise BadBody(f"a string of more than {self._max_bytes} bytes", 413)
            raise self._not_json()
        self._position = match.end()
        token = match[match.lastindex]
        if allowed and token not in allowed:
            raise self._not_json()
        return token

    def _ahead(self):
        """What follows, without space."""
        return bytes(self.body[self._position : self._position + SPACE]).strip()

    def _not_json(self):
        return BadBody(f"{len(self.body)} bytes that are not JSON" if self.body else "no body")
