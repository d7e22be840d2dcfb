import asyncio
import json
import random
import time
import tracemalloc

import pytest

from keras_tfm.serving.bodies import SMALL, BodyReader, parse
from keras_tfm.serving.responses import RequestError


class Request:
    """A request whose body comes in chunks."""

    def __init__(self, *chunks, length=None):
        self._chunks, self.headers = chunks, {} if length is None else {"content-length": str(length)}

    async def chunks(self):
        for chunk in self._chunks:
            yield chunk


def read(reader, request):
    return bytes(asyncio.run(reader.read(request)))


# ── receiving ──


def test_a_body_is_assembled_from_its_chunks():
    reader = BodyReader(10**6)
    for size in (0, 1, SMALL, SMALL + 1, 10**5):
        chunks = [bytes([number % 256]) * (size // 10) for number in range(10)] + [b"x" * (size % 10)]
        for request in (Request(*chunks), Request(*chunks, length=size)):
            assert read(reader, request) == b"".join(chunks)
            reader.release(request)
    assert not reader.sizes


def test_a_body_that_is_too_large_is_refused_before_it_is_read_or_as_soon_as_it_is():
    for request in (Request(length=101), Request(b"a" * 60, b"a" * 60)):
        with pytest.raises(RequestError, match="at most 100 bytes") as caught:
            read(BodyReader(100), request)
        assert caught.value.status == 413


def test_all_bodies_together_are_bounded_and_small_ones_always_pass():
    reader = BodyReader(100_000)  # and 150,000 for all
    first, second, third = (Request(b"a" * (size + SMALL)) for size in (80_000, 80_000, 70_000))
    read(reader, first)
    with pytest.raises(RequestError, match="at most 150000 bytes: try again later") as caught:
        read(reader, second)
    assert caught.value.status == 503 and caught.value.headers == {"Retry-After": "1"}
    reader.release(second)
    read(reader, third)  # all that is left
    assert sum(reader.sizes.values()) == 150_000
    assert read(reader, Request(b"a" * SMALL)) == b"a" * SMALL
    reader.release(first)
    read(reader, second)


# ── parsing ──


def parsed(body, **limits):
    async def pause():
        pass

    return asyncio.run(parse(body, pause, **limits))


def value(rng, depth=0):
    kind = rng.randrange(8 if depth < 4 else 5)
    if kind < 3:
        return "".join(rng.choice('a"\\/\n\t\x00é你🙂\ud83d[]{},: ') for _ in range(rng.randrange(6)))
    if kind == 3:
        return rng.choice([True, False, None])
    if kind == 4:
        return rng.choice([0, -1, 1.5, 2**40, 1e300, -2.5e-8])
    if kind == 5:
        return {f"k{number}": value(rng, depth + 1) for number in range(rng.randrange(4))}
    return [value(rng, depth + 1) for _ in range(rng.randrange(4))]


def test_json_is_read_as_python_reads_it():
    for seed in range(300):
        rng = random.Random(seed)
        expected = value(rng)
        text = json.dumps(expected, indent=rng.choice([None, 1]), ensure_ascii=rng.random() < 0.5)
        body = text.encode("utf-8", "surrogatepass")
        assert parsed(body) == parsed(memoryview(body)) == parsed(b"\xef\xbb\xbf" + body + b"\n ") == expected


def test_what_is_not_json_is_refused_as_python_refuses_it():
    bodies = [b"", b"[", b"[1", b"[1,", b"[1,]", b"[,1]", b"[1 2]", b"{", b'{"a"}', b'{"a":}', b'{"a":1,}', b"{1:2}"]
    bodies += [
        b'"a',
        b'"\\x"',
        b'"\n"',
        b'"\xff"',
        b"nul",
        b"01",
        b"1.",
        b"--1",
        b"[]]",
        b"[] x",
        b"'a'",
        b"]",
        b",",
        b":",
    ]
    bodies += [b'{"a":1 "b":2}', b"{]", b"[}", b'{"a":[}', b"\\", b'"\\']
    for body in bodies:
        with pytest.raises(ValueError):
            json.loads(body)
        with pytest.raises(RequestError, match="that are not JSON|no body"):
            parsed(body)


@pytest.mark.parametrize(
    "body, message, status",
    [
        (b"[" * 10**6, "lists or objects nested more than 8 deep", 422),
        (b'{"a":' * 10**6, "lists or objects nested more than 8 deep", 422),
        (b"[" + b"[]," * 10**6 + b"[]]", "more than 1000 values", 413),
        (b"[" + b'"",' * 10**6 + b'""]', "more than 1000 values", 413),
        (b'{"a":1,' * 10**6, "not JSON|nested", 422),
        (b'["' + b"a" * 10**7 + b'"]', "a string of more than 10000 bytes", 413),
        (b'["' + b"\\n" * 10**7 + b'"]', "a string of more than 10000 bytes", 413),
        (b" " * 10**7 + b"[]", "not JSON", 422),
        (b"[]" + b" " * 10**7, "not JSON", 422),
        (b"[" + b"1" * 10**7 + b"]", "not JSON", 422),
    ],
    ids=lambda value: repr(value[:8]) if isinstance(value, bytes) else None,
)
def test_a_body_without_bounds_is_refused_at_once_and_takes_no_memory(body, message, status):
    tracemalloc.start()
    start = time.process_time()
    with pytest.raises(RequestError, match=message) as caught:
        parsed(body)
    seconds, (_, most) = time.process_time() - start, tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert caught.value.status == status and seconds < 0.5 and most < 10**6


def test_a_long_string_within_the_bounds_is_read():
    text = "🙂" * 10_000
    assert parsed(json.dumps([text]).encode(), max_bytes=12 * 10_000 + 2) == [text]
