"""The metrics server: what it answers, and that no client can hurt it."""

from __future__ import annotations

import asyncio
import gc
import json
import socket
import threading
from collections.abc import Iterator
from http import HTTPStatus
from http.client import HTTPConnection
from typing import Any

import pytest

from delaybridge.errors import ConfigError
from delaybridge.operate.metrics import server as server_module
from delaybridge.operate.metrics.monitor import Monitor
from delaybridge.operate.metrics.reader import Reading
from delaybridge.operate.metrics.reports import ProcessReports
from delaybridge.operate.metrics.server import Response, Server, not_found
from delaybridge.operate.metrics.serving import served
from delaybridge.settings.settings import Settings
from delaybridge.worker.service import ProcessReport
from tests.rigs.waiting import DEADLINE_S, until
from tests.servers.process import free_port

MANY = 1000
BIG = 2**24  # more than sockets keep


async def answer(path: str, accept: str) -> Response:
    if path == "/error":
        raise ValueError("secret")
    if path == "/slow":
        await asyncio.Event().wait()
    if path == "/big":
        return Response(HTTPStatus.OK, b"x" * BIG)
    return Response(HTTPStatus.OK, accept.encode()) if path == "/" else not_found()


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a client nor the server's thread is given up while it gets no time."""
    for name in ("HEADER_S", "ANSWER_S", "_CLOSE_S"):
        monkeypatch.setattr(server_module, name, DEADLINE_S)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """The server cuts a connection after 0.1 s; `undo` makes it patient again."""
    with monkeypatch.context() as patch:
        patch.setattr(server_module, "HEADER_S", 0.1)
        patch.setattr(server_module, "ANSWER_S", 0.1)
        yield patch


@pytest.fixture
def port() -> Iterator[int]:
    listener = socket.create_server(("127.0.0.1", 0))
    server = Server(listener, answer)
    server.start()
    yield listener.getsockname()[1]
    server.close()


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=DEADLINE_S)


def said(port: int, request: bytes) -> bytes:
    """All that the server answers; empty if it cuts the connection."""
    with connect(port) as connection:
        try:
            connection.sendall(request)
            parts = iter(lambda: connection.recv(65536), b"")
            return b"".join(parts)
        except ConnectionError:
            return b""


def get(port: int, path: str = "/", **headers: str) -> tuple[int, str]:
    connection = HTTPConnection("127.0.0.1", port, timeout=DEADLINE_S)
    connection.request("GET", path, headers=headers)
    response = connection.getresponse()
    return response.status, response.read().decode()


def is_well(port: int) -> bool:
    return get(port, Accept="x") == (200, "x")


def test_paths_methods_and_headers(port: int) -> None:
    assert get(port, "/?a=b", Accept="text/plain") == (200, "text/plain")
    assert get(port, "/nothing")[0] == 404
    assert get(port, "/error") == (500, "Internal Server Error: ValueError\n")
    assert said(port, b"POST / HTTP/1.1\r\n\r\n").startswith(b"HTTP/1.1 405 ")
    head = said(port, b"HEAD / HTTP/1.0\r\naccept:  abc \r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 ")
    assert b"Content-Length: 3" in head
    assert head.endswith(b"\r\n\r\n")


@pytest.mark.parametrize(
    "request_",
    [
        b"\r\n\r\n",
        b"GET\r\n\r\n",
        b"GET / SPDY/1\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\r\n\r\n",
        b"GET / HTTP/1.1 x\r\n\r\n",
        b"\xff\xfe / HTTP/1.1\r\n\r\n",
        b"GET /" + b"a" * 10_000 + b" HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 100_000 + b"\r\n",
        b"GET / HTTP/1.1\r\nX: " + b"y" * 2**22,
    ],
    ids=lambda request: request[:20],
)
def test_malformed_and_huge_requests_are_refused_or_cut(port: int, request_: bytes) -> None:
    answered = said(port, request_)
    assert answered == b"" or answered.split(b" ")[1] in (b"400", b"404", b"405")
    assert is_well(port)


def test_a_client_that_sends_nothing_or_too_slowly_is_cut(
    port: int, impatient: pytest.MonkeyPatch
) -> None:
    assert said(port, b"") == said(port, b"GET / HT") == b""
    impatient.undo()
    assert is_well(port)


def test_a_client_that_takes_no_answer_is_cut(port: int, impatient: pytest.MonkeyPatch) -> None:
    impatient.setattr(server_module, "CONNECTIONS", 1)
    impatient.setattr(server_module, "HEADER_S", DEADLINE_S)  # it is not cut before it asks
    with connect(port) as greedy:
        greedy.sendall(b"GET /big HTTP/1.1\r\n\r\n")
        assert greedy.recv(1)  # who has asked makes no room for others
        until(lambda: can_connect(port), "its place is free")
        assert sum(map(len, iter(lambda: greedy.recv(2**20), b""))) < BIG
    impatient.undo()
    assert is_well(port)


def test_an_answer_that_takes_too_long_is_cut(port: int, impatient: pytest.MonkeyPatch) -> None:
    assert said(port, b"GET /slow HTTP/1.1\r\n\r\n") == b""
    impatient.undo()
    assert is_well(port)


def test_a_thousand_connections_leave_it_well_with_one_thread(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "HEADER_S", 10 * DEADLINE_S)  # time does not free a place
    threads = {*threading.enumerate()}
    held = [socket.socket() for _ in range(MANY)]
    for connection in held:
        connection.setblocking(False)
        connection.connect_ex(("127.0.0.1", port))
    until(lambda: can_connect(port))
    assert {*threading.enumerate()} <= threads  # those of other tests may end
    for connection in held:
        connection.close()


def can_connect(port: int) -> bool:
    try:
        return said(port, b"GET / HTTP/1.1\r\n\r\n") != b""
    except OSError:
        return False


def test_it_closes_every_connection_and_logs_nothing(caplog: pytest.LogCaptureFixture) -> None:
    gc.collect()  # what other tests left behind may say something of its own
    caplog.clear()
    # whether it is being accepted, has just been, or waits for its answer
    for _ in range(30):
        with socket.create_server(("127.0.0.1", 0)) as listener:
            server = Server(listener, answer)
            server.start()
            with connect(listener.getsockname()[1]) as hanging:
                hanging.sendall(b"GET /slow HTTP/1.1\r\n\r\n")
                server.close()
    gc.collect()  # an open connection would warn
    assert caplog.text == ""


# the monitor


class Recounted:
    """A reader that counts, and blocks if it is told to."""

    def __init__(self) -> None:
        self.reads = 0
        self.goes_on = threading.Event()
        self.goes_on.set()

    def read(self, held: object) -> Reading:
        self.reads += 1
        self.goes_on.wait(DEADLINE_S)
        return Reading(error="redis: no answer")

    def close(self) -> None: ...


def monitor_of(reader: Recounted, **fields: Any) -> Monitor:
    reports = ProcessReports(["w"])
    reports.put("w", ProcessReport(**fields))
    return Monitor(reports, reader, patience_s=1)  # type: ignore[arg-type]


async def test_many_scrapes_at_once_read_redis_once() -> None:
    reader = Recounted()
    monitor = monitor_of(reader)
    asked = [monitor.answer("/metrics", "") for _ in range(50)]
    asked += [monitor.answer("/health/ready", "") for _ in range(50)]
    answers = await asyncio.gather(*asked)
    assert {each.status for each in answers} == {200, 503}
    assert reader.reads == 1
    assert (await monitor.answer("/health/live", "")).status == 200
    assert reader.reads == 1
    monitor.close()


async def test_while_redis_hangs_counters_and_liveness_are_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("delaybridge.operate.metrics.monitor.PATIENCE_S", 0.05)
    reader = Recounted()
    reader.goes_on.clear()
    monitor = monitor_of(reader, totals={("messages_claimed_total", "a:b"): 3})
    text = (await monitor.answer("/metrics", "application/openmetrics-text")).body.decode()
    assert "delaybridge_store_up 0" in text
    assert 'delaybridge_messages_claimed_total{destination="a:b"} 3' in text
    assert text.endswith("# EOF\n")
    ready = await monitor.answer("/health/ready", "")
    assert ready.status == 503
    assert json.loads(ready.body)["reasons"][0].startswith("redis: ")
    assert (await monitor.answer("/health/live", "")).status == 200
    assert (await monitor.answer("/nothing", "")).status == 404
    reader.goes_on.set()
    monitor.close()


# the start


def settings(**metrics: Any) -> Settings:
    return Settings.load(overrides={"metrics": metrics}, environ={})


def test_without_a_port_nothing_is_served() -> None:
    with served(settings(), ["w"]) as reports:
        assert reports is None


def test_a_port_in_use_is_named_with_the_remedy() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(ConfigError, match=rf"metrics.port: {port} .* in use"):
            with served(settings(port=port), ["w"]):
                pass


@pytest.mark.parametrize("host", ["203.0.113.7", "no such host", "a" * 200, "[::1"])
def test_a_host_that_is_none_is_refused(host: str) -> None:
    with pytest.raises(ConfigError, match="metrics.host: .* is no address"):
        with served(settings(port=free_port(), host=host), ["w"]):
            pass


@pytest.mark.parametrize(("host", "warned"), [("127.0.0.1", 0), ("localhost", 0), ("0.0.0.0", 1)])
def test_an_address_that_others_reach_gives_a_warning(host: str, warned: int) -> None:
    assert len(settings(port=9645, host=host).cautions()) == warned
    assert settings(host=host).cautions() == []


def test_it_serves_on_ipv6_and_on_all_addresses() -> None:
    for host, address in (("::1", "::1"), ("0.0.0.0", "127.0.0.1")):
        port = free_port()
        with served(settings(port=port, host=host), ["w"]):
            connection = HTTPConnection(address, port, timeout=DEADLINE_S)
            connection.request("GET", "/health/live")
            assert connection.getresponse().status == 200
