"""B11: what POSTs, batches and streams of lines cost the HTTP API, and an idle client.

    python -m bench.http [SECONDS] [RUNS] [IDLE]

`empty` is an endpoint of the same Starlette and uvicorn that reads the same body and answers with
empty JSON. Each is asked by 50 connections of another process, in turn; the ratio of CPU is empty's
by POST's. CPU is the server's: per request, per message of a batch of 100, per line of one stream.
IDLE clients then follow /v1/events; the memory is that of the server, for each of them.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import resource
import socket
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from statistics import median
from typing import NamedTuple

import psutil
import uvicorn
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route, Router

from bench.rig import Table, open_redis
from delaybridge.serve.server.serving import listener, serve_on
from delaybridge.settings.settings import Settings
from delaybridge.worker.service import loop_factory

CONNECTIONS = 50
BODY = b'{"destination": "kafka:orders", "body": "%s", "delay": "1d"}' % (b"x" * 100)
_MANY = 100  # messages of a batch
BATCH = b'{"messages": [%b]}' % b",".join([BODY] * _MANY)
LINES = b"\n".join([BODY] * _MANY) + b"\n"
_A_LINE = b'"line":'  # in each answer of a stream
_PIPELINED = 500  # connects at a time
_WARM_UP_S = 0.5
_MEMORY_S = 3.0  # until the idle clients count


_ASKED = (
    ("empty", b"/empty", BODY),
    ("POST", b"/v1/messages", BODY),
    ("a message of a batch of 100", b"/v1/messages:batch", BATCH),
    ("a line of a stream", b"/v1/messages:stream", b""),
)
_TARGETS = {"POST": ">= 0.75", **{name: "<= 8 us" for name, *_ in _ASKED[2:]}}


class Rate(NamedTuple):
    """Requests per second, and the server's CPU for each."""

    per_s: float
    cpu_us: float


async def _empty(request: Request) -> Response:
    await request.body()
    return JSONResponse({})


def _serve_empty(sock: socket.socket) -> None:
    app = Router([Route("/empty", _empty, methods=["POST"])])
    options = {"ws": "none", "lifespan": "off", "log_config": None, "access_log": False}
    config = uvicorn.Config(app, http="httptools", **options)  # type: ignore[arg-type]
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(uvicorn.Server(config).serve(sockets=[sock]))


def _as_it_is() -> None:
    """The log of this process."""


def serve_api(sock: socket.socket, settings: Settings) -> None:
    serve_on(settings, _as_it_is, sock)


@contextmanager
def serving(serve: object, *args: object) -> Iterator[tuple[BaseProcess, int]]:
    """A server in a process of its own, and its port."""
    with listener("127.0.0.1", 0) as sock:
        context = multiprocessing.get_context("spawn")
        process = context.Process(target=serve, args=(sock, *args))  # type: ignore[arg-type]
        process.start()
        try:
            yield process, sock.getsockname()[1]
        finally:
            process.terminate()
            process.join()


async def _ask(port: int, request: bytes, stop_s: float) -> int:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    count = 0
    while time.monotonic() < stop_s:
        writer.write(request)
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        if not head.startswith((b"http/1.1 200", b"http/1.1 201", b"http/1.1 207")):
            raise RuntimeError(head)
        length = int(head.partition(b"content-length:")[2].partition(b"\r")[0])
        await reader.readexactly(length)
        count += 1
    writer.close()
    return count


def _load(port: int, request: bytes, seconds: float) -> int:
    """In a process of its own: ask for so long, and return how often it was answered."""

    async def run() -> int:
        stop_s = time.monotonic() + seconds
        return sum(await asyncio.gather(*(_ask(port, request, stop_s) for _ in range(CONNECTIONS))))

    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        return runner.run(run())


async def _send_lines(port: int, stop_s: float) -> int:
    """One stream of lines. How many were answered."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**20)
    writer.write(b"POST /v1/messages:stream HTTP/1.1\r\nHost: 127.0.0.1\r\n")
    writer.write(b"Content-Type: application/x-ndjson\r\nTransfer-Encoding: chunked\r\n\r\n")

    async def send() -> None:
        while time.monotonic() < stop_s:
            writer.write(b"%x\r\n%b\r\n" % (len(LINES), LINES))
            await writer.drain()
        writer.write(b"0\r\n\r\n")

    sending, count, last = asyncio.create_task(send()), 0, b""
    while not last.endswith(b"0\r\n\r\n"):
        last = last[1 - len(_A_LINE) :] + await reader.read(2**18)
        count += last.count(_A_LINE)
    await sending
    writer.close()
    return count


def _load_lines(port: int, seconds: float) -> int:
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        return runner.run(_send_lines(port, time.monotonic() + seconds))


def measure(process: BaseProcess, port: int, path: bytes, body: bytes, seconds: float) -> Rate:
    """What a server does under load. Without a body: of a stream of lines, per line."""
    head = b"POST %s HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n" % path
    request = head + b"Content-Length: %d\r\n\r\n" % len(body) + body
    context = multiprocessing.get_context("spawn")
    server = psutil.Process(process.pid)
    before = server.cpu_times()
    with ProcessPoolExecutor(1, mp_context=context) as load:
        asked = (_load, port, request, seconds) if body else (_load_lines, port, seconds)
        count = load.submit(*asked).result()
    after = server.cpu_times()
    cpu_s = after.user + after.system - before.user - before.system
    return Rate(count / seconds, cpu_s / count * 1e6)


async def hold(port: int, count: int, process: BaseProcess, path: bytes) -> float:
    """The memory of the server for each client that waits, in kB."""
    server = psutil.Process(process.pid)
    before = server.memory_info().rss
    request = b"GET %s HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" % path
    kept = []
    for first in range(0, count, _PIPELINED):
        some = range(first, min(first + _PIPELINED, count))
        opened = await asyncio.gather(*(asyncio.open_connection("127.0.0.1", port) for _ in some))
        for _, writer in opened:
            writer.write(request)
        await asyncio.gather(*(reader.readuntil(b"\r\n\r\n") for reader, _ in opened))
        kept += opened
    await asyncio.sleep(_MEMORY_S)
    after = server.memory_info().rss
    for _, writer in kept:
        writer.close()
    held: int = after - before
    return held / count / 1000


def main(seconds: int = 3, runs: int = 3, idle: int = 5000) -> None:
    """Print rates, their ratio, and the memory of idle clients."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(most, 65_536), most))
    table = Table("HTTP API: requests/s, server CPU, against empty, and its CPU")
    with open_redis() as redis:
        given = {"redis": {"url": redis.url}, "namespace": f"bench-{time.time_ns():x}"}
        settings = Settings.load(overrides=given)
        with (
            serving(_serve_empty) as (empty, empty_port),
            serving(serve_api, settings) as (api, api_port),
        ):
            found: dict[str, list[Rate]] = {name: [] for name, *_ in _ASKED}
            for run in range(runs + 1):
                for name, path, body in _ASKED:
                    which = (empty, empty_port) if name == "empty" else (api, api_port)
                    rate = measure(*which, path, body, seconds if run else _WARM_UP_S)
                    if run:  # before, a server may still be starting
                        found[name].append(rate)
            for name, rates in found.items():
                each = _MANY if "batch" in name else 1
                us = median(rate.cpu_us for rate in rates) / each
                figures = [f"{median(rate.per_s for rate in rates) * each:,.0f}/s", f"{us:.1f} us"]
                if name == "POST":
                    pairs = [*zip(rates, found["empty"], strict=True)]
                    figures.append(f"{median(p.per_s / e.per_s for p, e in pairs):.2f}")
                    figures.append(f"{median(e.cpu_us / p.cpu_us for p, e in pairs):.2f}")
                table.line(name, *figures, _TARGETS.get(name, ""))
            kb = asyncio.run(hold(api_port, idle, api, b"/v1/events"))
            table.line(f"{idle:,} idle clients of /v1/events", f"{kb:.1f} kB each")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
