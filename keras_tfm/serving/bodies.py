"""Bodies of untrusted requests: received with bounded memory, parsed in bounded steps."""

import asyncio
import json
import mmap
import re
import time

from keras_tfm.serving.responses import RequestError, Unavailable

RULE = 'the body must be a JSON object, {"instances": ["a text", …]}'
SMALL = 2**14  # bytes of each body outside the budget, so that large bodies of others never keep out small ones
STEP = 0.001  # seconds of parsing before other requests are served
SPACE = 1024  # maximum bytes of white space between two tokens
MAX_DEPTH = 8  # of nested lists and objects
BYTE_ORDER_MARK = rb"(?:\A\xef\xbb\xbf)?"
PUNCTUATION = rb"[\[\]{},:]"
STRING = rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"'  # possessive: a long string takes neither memory nor a second attempt
LITERAL = rb"[-+.\w]{1,64}+(?![-+.\w])"
TOKEN = re.compile(rb"%b[ \t\n\r]*+(%b|%b|%b)" % (BYTE_ORDER_MARK, PUNCTUATION, STRING, LITERAL), re.DOTALL)


class BodyReader:
    """Reads bodies of at most `limit` bytes; those of all requests together have at most 1.5 times as many."""

    def __init__(self, limit):
        self.limit, self.budget = limit, 3 * limit // 2
        self.sizes = {}  # request → bytes of the budget

    async def read(self, request):
        """The body of a request as a memoryview; `release` the request once it is answered."""
        length = int(request.headers.get("content-length", self.limit))
        if length > self.limit:
            raise self._too_large()
        # A large body has pages of its own, which are allocated as it comes and returned to the system with it.
        private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        body = memoryview(bytearray(length) if length <= SMALL else mmap.mmap(-1, length, private))
        size = 0
        async for chunk in request.chunks():
            end = size + len(chunk)
            if end > self.limit:
                raise self._too_large()
            self._reserve(request, end - SMALL)
            body[size:end] = chunk
            size = end
        return body[:size]

    def release(self, request):
        self.sizes.pop(request, None)

    def _reserve(self, request, size):
        if size > 0:
            if sum(self.sizes.values()) - self.sizes.get(request, 0) + size > self.budget:
                raise Unavailable(f"all requests together must have at most {self.budget} bytes: try again later")
            self.sizes[request] = size

    def _too_large(self):
        return RequestError(413, f"the body must have at most {self.limit} bytes")


class Pacer:
    """Divides work into steps of a millisecond, of which those who share a lock do one at a time."""

    def __init__(self, lock):
        self._lock, self._end = lock, time.monotonic() + STEP

    async def __call__(self):
        if time.monotonic() > self._end:
            async with self._lock:
                await asyncio.sleep(0)  # others are served
            self._end = time.monotonic() + STEP


async def parse(body, pause, max_values=1000, max_bytes=10_000):
    """The value of a JSON body.

    `json.loads` would build all values before anyone could count them, and block the event loop meanwhile. So strings
    and numbers are decoded one by one, and `json.loads` sees only the outline, with an index in place of each:
    {"a": [true]} becomes {"0": [1]}.

    Args:
        body: bytes, or a view of bytes.
        pause: coroutine function that is awaited after each token, a `Pacer`.
        max_values: maximum number of values: strings (keys too), numbers, lists, objects.
        max_bytes: maximum bytes of a string, with quotes and escapes.
    """
    scalars, outline, values, depth = [], [], 0, 0
    try:
        for token in _tokens(body, max_bytes):
            if token == b":":
                if not isinstance(scalars[-1], str):
                    raise ValueError
                outline[-1] = f'"{outline[-1]}"'  # a key
            if token in b"[]{},:":
                outline.append(token.decode())
            else:
                outline.append(str(len(scalars)))
                scalars.append(json.loads(token.decode("utf-8", "surrogatepass")))
            values += token not in b"]},:"
            depth += (token in b"[{") - (token in b"]}")
            if values > max_values:
                raise _error(413, f"more than {max_values} values")
            if depth > MAX_DEPTH:
                raise _error(422, f"lists or objects nested more than {MAX_DEPTH} deep")
            if len(outline) > 3 * values:  # each value has at most a closing bracket and a separator
                raise ValueError
            await pause()
        hooks = {"parse_int": lambda index: scalars[int(index)]}
        hooks["object_pairs_hook"] = lambda pairs: {scalars[int(index)]: value for index, value in pairs}
        return json.loads(" ".join(outline), **hooks)
    except (ValueError, IndexError):
        raise _error(422, f"{len(body)} bytes that are not JSON" if body else "no body") from None


def _tokens(body, max_bytes):
    position = 0
    while match := TOKEN.match(body, position, position + SPACE + max_bytes):
        position = match.end()
        yield match[1]
    rest = bytes(body[position : position + SPACE]).strip()
    if rest.startswith(b'"') and len(body) > position + SPACE + max_bytes:
        raise _error(413, f"a string of more than {max_bytes} bytes")
    if rest or len(body) > position + SPACE:
        raise ValueError


def _error(status, received):
    return RequestError(status, f"{RULE}. Received: {received}")
