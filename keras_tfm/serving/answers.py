"""What a client gets: an answer, or the reason why there is none."""

import dataclasses
import json


@dataclasses.dataclass(frozen=True)
class Answer:
    """Status, body and headers of an answer."""

    status: int
    body: bytes
    content_type: str = "application/json"
    headers: dict = dataclasses.field(default_factory=dict)

    @classmethod
    def json(cls, value, status=200, headers=None):
        """An answer that is JSON."""
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
        return cls(status, text.encode("utf-8", "replace"), headers=headers or {})

    @classmethod
    def text(cls, line, status=200):
        """An answer that is a line of text."""
        return cls(status, f"{line}\n".encode(), "text/plain; charset=utf-8")


class Refused(Exception):
    """The answer to a request is not a translation but this status and message."""

    def __init__(self, status, message, **headers):
        super().__init__(message)
        self.status, self.headers = status, headers

    @property
    def answer(self):
        return Answer.json({"error": str(self)}, self.status, self.headers)


class Busy(Refused):
    """The server cannot take this request now, and will be able to after some seconds."""

    def __init__(self, message, seconds=1):
        super().__init__(503, message, **{"Retry-After": str(seconds)})


def shortened(value, length=80):
    """The beginning of the JSON of a value, which may be large, without halves of surrogate pairs.

    >>> shortened({"instances": [1] * 1000}, length=20)
    '{"instances": [1, 1, …'
    """
    text = json.dumps(_beginning(value, length), ensure_ascii=False).encode("utf-8", "replace").decode()
    return text if len(text) <= length else f"{text[:length]} …"


def _beginning(value, length):
    if isinstance(value, str):
        return value[: length + 1]
    if isinstance(value, list):
        return [_beginning(item, length) for item in value[:length]]
    if isinstance(value, dict):
        return {key[:length]: _beginning(value[key], length) for key in [*value][:length]}
    return value
