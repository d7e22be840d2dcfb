"""`keras-tfm serve` under load: speed, too many clients, workers that are killed, memory, hostile clients.

python benchmarks/serving.py [MODEL] [--workers 1] [--only speed crowd kills memory siege] [--json FILE]

MODEL is a translator of dates, by default saved_models/dates/saved_model, and every answer is compared with the right
date. A client sends a text, waits for the answer and sends the next, over one connection.

    speed    requests per second and the time of an answer, with 1, 16 and 64 clients
    crowd    128 clients for a minute
    kills    64 clients for a minute, while the worker that has served longest is killed every 5 seconds
    memory   64 clients send 20,000 requests; the memory of all processes of the server after each tenth
    siege    4 clients that connect for each request, before and during an attack by those of `benchmarks/hostile.py`,
             with at most 1,024 open files; then SIGTERM, while 16 requests wait for their answers

Clients and server share the cores. `--address http://127.0.0.1:8501` sends the requests of `speed` and `crowd` to a
server that runs already.
"""

import argparse
import asyncio
import collections
import contextlib
import json
import os
import pathlib
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

from keras_tfm.data import tasks

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAUSE = 5  # seconds between kills
FILES = 1024  # that a besieged server may have open


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", type=pathlib.Path, default=ROOT / "saved_models/dates/saved_model")
    parser.add_argument("--address", help="a server that runs already")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--only", nargs="+", choices=CASES, default=[*CASES])
    parser.add_argument("--clients", nargs="+", type=int, default=[1, 16, 64], help="numbers of clients for `speed`")
    parser.add_argument("--crowd", type=int, default=128, help="number of clients for `crowd`")
    parser.add_argument("--seconds", type=float, default=10, help="duration of each row of `speed`")
    parser.add_argument("--minute", type=float, default=60, help="seconds of `crowd` and `kills`")
    parser.add_argument("--requests", type=int, default=20_000, help="number of requests for `memory`")
    parser.add_argument("--hostile", type=int, default=1000, help="number of half-open connections for `siege`")
    parser.add_argument("--json", type=pathlib.Path, help="file to write all figures to")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # ends the server too
    rows = []
    for name in options.only:
        with running(options, name) as (address, server):
            rows += CASES[name](options, Load(address), server)
    print("\n| what | clients | requests/s | p50 ms | p99 ms | answers | wrong | MB |\n" + "| --- " * 8 + "|")
    for row in rows:
        answers = ", ".join(f"{status}: {count:,}" for status, count in row["answers"].items())
        speed = f"{row['rate']:,.0f} | {row['p50']:,.1f} | {row['p99']:,.1f}" if "rate" in row else " | | "
        memory = " → ".join(f"{value:,.0f}" for value in row.get("memory", []))
        print(f"| {row['what']} | {row['clients']} | {speed} | {answers} | {row['wrong']} | {memory} |")
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))


# ── the cases ──


def speed(options, load, server):
    asyncio.run(load.run(8, seconds=1))
    for clients in options.clients:
        yield {"what": "speed", **asyncio.run(load.run(clients, options.seconds))}


def crowd(options, load, server):
    yield {"what": "crowd", **asyncio.run(load.run(options.crowd, options.minute))}


def kills(options, load, server):
    async def run():
        killing = asyncio.create_task(kill_workers())
        try:
            return await load.run(64, options.minute)
        finally:
            killing.cancel()

    async def kill_workers():
        while True:
            await asyncio.sleep(PAUSE)
            alive = worker_processes(server.process.pid)
            serving = [one for one in server.events("process", event="worker ready") if one in alive]
            if serving:
                os.kill(serving[0], signal.SIGKILL)
                killed.append(serving[0])

    killed = []
    row = asyncio.run(run())
    yield {**row, "what": f"kills: {len(killed)}"}


def memory(options, load, server):
    asyncio.run(load.run(64, requests=options.requests // 10))
    used, rows = [resident(server.process.pid)], []
    for _ in range(9):
        rows.append(asyncio.run(load.run(64, requests=options.requests // 10)))
        used.append(resident(server.process.pid))
    answers = sum((collections.Counter(row["answers"]) for row in rows), collections.Counter())
    wrong = sum(row["wrong"] for row in rows)
    yield {"what": "memory", "clients": 64, "answers": answers, "wrong": wrong, "memory": used}


def siege(options, load, server):
    asyncio.run(load.run(4, 1, reconnect=True))
    quiet = asyncio.run(load.run(4, options.seconds, reconnect=True))
    yield {"what": "before the siege", **quiet, "memory": [resident(server.process.pid)]}
    command = [sys.executable, ROOT / "benchmarks/hostile.py", load.port, "--half_open", str(options.hostile)]
    with subprocess.Popen([*command, "--seconds", str(options.seconds + 20)], stdout=subprocess.DEVNULL) as hostile:
        try:
            time.sleep(3)
            row, most = asyncio.run(watch(load.run(4, options.seconds, reconnect=True), server))
            yield {"what": "siege", **row, "memory": [most]}
            yield asyncio.run(load.stop(server.process))
        finally:
            hostile.kill()


async def watch(running, server):
    """The result of a coroutine, and the most megabytes that the server had meanwhile."""
    task, most = asyncio.create_task(running), 0
    while not task.done():
        most = max(most, resident(server.process.pid))
        await asyncio.wait([task], timeout=0.1)
    return task.result(), most


CASES = {"speed": speed, "crowd": crowd, "kills": kills, "memory": memory, "siege": siege}


# ── the server ──


@contextlib.contextmanager
def running(options, name):
    """The address of a server that is ready, and the `Server`, unless it ran already."""
    if options.address:
        yield options.address, None
        return
    flags = ["--port", "0", "--workers", str(options.workers), "--no-log"]
    command = [sys.executable, "-m", "keras_tfm", "serve", str(options.model), *flags]
    limited = ["prlimit", f"--nofile={FILES}"] if name == "siege" else []
    with tempfile.TemporaryFile() as log, subprocess.Popen([*limited, *command], stderr=log) as process:
        try:
            server = Server(process, log)
            yield server.wait_until_ready(), server
        finally:
            process.terminate()
            if status := process.wait(60):
                raise RuntimeError(f"the server must end with status 0. Received: {status}")


class Server:
    """A server process and its log."""

    def __init__(self, process, log):
        self.process, self.log = process, log

    def events(self, key, event):
        """The values of a key in the lines of an event, in their order."""
        lines = os.pread(self.log.fileno(), 1_000_000, 0).decode().splitlines(keepends=True)
        found = [json.loads(line) for line in lines if line.startswith("{") and line.endswith("\n")]
        return [line[key] for line in found if line.get("event") == event]

    def wait_until_ready(self):
        """The address that the server listens at, once it can translate."""
        while self.process.poll() is None:
            time.sleep(0.1)
            for address in self.events("address", event="listening"):
                address = address.partition("/v1/")[0]
                with contextlib.suppress(urllib.error.HTTPError), urllib.request.urlopen(f"{address}/readyz"):
                    return address
        raise RuntimeError(f"the server stopped: {os.pread(self.log.fileno(), 1_000_000, 0).decode()}")


def worker_processes(parent):
    """The workers of a server, oldest first."""
    children = pathlib.Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    return [int(child) for child in children if b"spawn_main" in pathlib.Path(f"/proc/{child}/cmdline").read_bytes()]


def resident(parent):
    """Megabytes of a server and its workers."""
    processes = [parent, *worker_processes(parent)]
    pages = [int(pathlib.Path(f"/proc/{one}/statm").read_text().split()[1]) for one in processes]
    return sum(pages) * os.sysconf("SC_PAGE_SIZE") / 1e6


# ── the clients ──


class Load:
    """Clients of one server, with plain sockets: they take little of the time that the server needs."""

    def __init__(self, address):
        self.host, _, self.port = address.partition("//")[2].partition(":")
        pairs = tasks.dates(2000, "test")
        self.requests = [(self._request(text), date) for text, date in pairs]

    def _request(self, text):
        body = json.dumps({"instances": [text]}).encode()
        head = ["POST /v1/models/translator:predict HTTP/1.1", f"Host: {self.host}", f"Content-Length: {len(body)}"]
        return "\r\n".join([*head, "", ""]).encode() + body

    async def run(self, clients, seconds=float("inf"), requests=None, reconnect=False):
        """Sends requests for some seconds, or some number of them; returns figures."""
        answers, wrong, times = collections.Counter(), [], []
        numbers = iter(range(requests if requests is not None else sys.maxsize))
        start = time.perf_counter()
        arguments = numbers, start + seconds, answers, wrong, times, reconnect
        client = (self._client(*arguments) for _ in range(clients))
        await asyncio.gather(*client)
        elapsed = time.perf_counter() - start
        cuts = statistics.quantiles(times, n=100) if len(times) > 1 else [0.0] * 99
        found = {
            "clients": clients,
            "rate": len(times) / elapsed,
            "p50": 1000 * cuts[49],
            "p90": 1000 * cuts[89],
            "p99": 1000 * cuts[98],
        }
        return found | {"answers": dict(answers.most_common()), "wrong": len(wrong)}

    async def _client(self, numbers, end, answers, wrong, times, reconnect):
        connection = None
        while time.perf_counter() < end and (number := next(numbers, None)) is not None:
            request, date = self.requests[number % len(self.requests)]
            begin = time.perf_counter()
            try:
                connection = connection or await asyncio.open_connection(self.host, int(self.port))
                status, body = await exchange(*connection, request)
            except (OSError, asyncio.IncompleteReadError) as error:
                answers[type(error).__name__] += 1
                connection = None
                await asyncio.sleep(0.1)
                continue
            answers[status] += 1
            if status == 200:
                times.append(time.perf_counter() - begin)
                if json.loads(body)["predictions"] != [date]:
                    wrong.append((number, body))
            elif status == 503:
                await asyncio.sleep(1)  # as `Retry-After` says
            if reconnect:
                connection[1].close()
                connection = None
        if connection:
            connection[1].close()

    async def stop(self, process):
        """Stops a server while 16 requests wait for their answers; returns figures."""
        answers, start = collections.Counter(), time.perf_counter()
        connections = [await asyncio.open_connection(self.host, int(self.port)) for _ in range(16)]
        waiting = [asyncio.create_task(exchange(*one, self.requests[0][0])) for one in connections]
        await asyncio.sleep(0.003)
        process.terminate()
        for answer in await asyncio.gather(*waiting, return_exceptions=True):
            answers[type(answer).__name__ if isinstance(answer, Exception) else answer[0]] += 1
        await asyncio.to_thread(process.wait, 60)
        seconds = time.perf_counter() - start
        return {
            "what": f"stopped after {seconds:.1f} s",
            "clients": 16,
            "answers": answers,
            "wrong": 0,
            "seconds": seconds,
        }


async def exchange(reader, writer, request):
    """Status and body of the answer to a request."""
    writer.write(request)
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    length = int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0])
    return int(head.split(b" ", 2)[1]), await reader.readexactly(length)


if __name__ == "__main__":
    main()
