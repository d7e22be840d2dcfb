import json
import random
import time
import tracemalloc

import pytest

from keras_tfm.serving.parsing import BadBody, Parser


def parse(body, **limits):
    parser = Parser(body, **limits)
    for _ in parser.steps():
        pass
    return parser.value


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
        assert parse(body) == parse(memoryview(body)) == parse(b"\xef\xbb\xbf" + body + b"\n ") == expected


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
        with pytest.raises(BadBody, match="that are not JSON|no body"):
            parse(body)


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
    with pytest.raises(BadBody, match=message) as caught:
        parse(body)
    seconds, (_, most) = time.process_time() - start, tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert caught.value.status == status and seconds < 0.5 and most < 10**6


def test_a_long_string_within_the_bounds_is_read():
    text = "🙂" * 10_000
    assert parse(json.dumps([text]).encode(), max_bytes=12 * 10_000 + 2) == [text]
