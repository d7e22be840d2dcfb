"""Clients that try to stop a server, for `benchmarks/serving.py --only siege`; they end by themselves.

python benchmarks/hostile.py PORT --seconds 20 [--half_open 1000] [--bodies 64] [--slow 20] [--unread 20]

    half_open  connections that send half of the head of a request, and wait
    bodies     bodies of 30 MB, {"instances":[[],[],…]}; half of them stop before the end
    slow       clients that send a byte each second, half of them of a head and half of a body
    unread     clients that send requests and never read the answers

Whoever is refused or cut off tries again after some seconds. All connect to 127.0.0.1, from the same address.
"""

import argparse
import asyncio
import collections
import contextlib
import json
import os
import random
import resource
import socket

PAUSE = 1, 5  # seconds
PART = 2**18  # bytes of a body that are sent 20 times a second
HEAD = b"POST /v1/models/translator:predict HTTP/1.1\r\nHost: a\r\n"
BODY = b'{"instances":[' + b"[]," * 10_000_000 + b"[]]}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("port", type=int)
    parser.add_argument("--seconds", type=float, required=True)
    for name, number in {"half_open": 1000, "bodies": 64, "slow": 20, "unread": 20}.items():
        parser.add_argument(f"--{name}", type=int, default=number)
    options = parser.parse_args()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4096), hard))
    os.nice(10)  # other machines would do this work
    print(json.dumps(asyncio.run(attack(options))))


async def attack(options):
    """Runs all clients for some seconds; returns how often each was cut off."""
    kinds = [half_open] * options.half_open
    kinds += [[whole_body, unfinished_body][number % 2] for number in range(options.bodies)]
    kinds += [[slow_head, slow_body][number % 2] for number in range(options.slow)]
    kinds += [unread] * options.unread
    ended = collections.Counter()
    tasks = [asyncio.create_task(again_and_again(kind, options.port, ended)) for kind in kinds]
    await asyncio.wait(tasks, timeout=options.seconds)
    for task in tasks:
        task.cancel()
    return ended


async def again_and_again(kind, port, ended):
    loop = asyncio.get_running_loop()
    while True:
        with contextlib.suppress(OSError), socket.socket() as connection:
            connection.setblocking(False)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            await loop.sock_connect(connection, ("127.0.0.1", port))
            await kind(loop, connection)
        ended[kind.__name__] += 1
        await asyncio.sleep(random.uniform(*PAUSE))


async def until_closed(loop, connection):
    while await loop.sock_recv(connection, 4096):
        pass


async def half_open(loop, connection):
    await loop.sock_sendall(connection, HEAD + b"X-Half")
    await until_closed(loop, connection)


async def whole_body(loop, connection, missing=0):
    await loop.sock_sendall(connection, HEAD + b"Content-Length: %d\r\n\r\n" % (len(BODY) + missing))
    for first in range(0, len(BODY), PART):
        await loop.sock_sendall(connection, memoryview(BODY)[first : first + PART])
        await asyncio.sleep(0.05)
    await until_closed(loop, connection)


async def unfinished_body(loop, connection):
    await whole_body(loop, connection, missing=1000)


async def slow_head(loop, connection):
    for byte in HEAD * 10:
        await loop.sock_sendall(connection, bytes([byte]))
        await asyncio.sleep(1)


async def slow_body(loop, connection):
    await loop.sock_sendall(connection, HEAD + b"Content-Length: 1000\r\n\r\n")
    for byte in BODY[:1000]:
        await loop.sock_sendall(connection, bytes([byte]))
        await asyncio.sleep(1)


async def unread(loop, connection):
    while True:
        await loop.sock_sendall(connection, b"GET /v1/models/translator HTTP/1.1\r\nHost: a\r\n\r\n" * 100)


if __name__ == "__main__":
    main()
