"""Responses to clients, and errors that become one."""

import dataclasses
import json


@dataclasses.dataclass(frozen=True)
class Response:
    """Status, body and headers of a response."""

    status: int
    body: bytes
    content_type: str = "application/json"
    headers: dict = dataclasses.field(default_factory=dict)

    @classmethod
    def json(cls, value, status=200, headers=None):
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
        return cls(status, text.encode("utf-8", "replace"), headers=headers or {})

    @classmethod
    def text(cls, line, status=200):
        return cls(status, f"{line}\n".encode(), "text/plain; charset=utf-8")


class RequestError(Exception):
    """A request gets this status and message instead of a translation."""

    def __init__(self, status, message, **headers):
        super().__init__(message)
        self.status, self.headers = status, headers

    @property
    def response(self):
        return Response.json({"error": str(self)}, self.status, self.headers)


class Unavailable(RequestError):
    """The server cannot take the request now; the client may retry after a second."""

    def __init__(self, message):
        super().__init__(503, message, **{"Retry-After": "1"})
