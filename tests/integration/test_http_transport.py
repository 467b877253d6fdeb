"""What a connection of the HTTP API refuses before any handler sees it; by raw sockets."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest

from delaybridge.serve.http.transport import BoundedProtocol
from tests.rigs.api import accepted, api
from tests.rigs.sessions import TOKENS, token_file_in
from tests.rigs.waiting import DEADLINE_S, quiet_async, until_async

OWN = b"Bearer " + TOKENS["write"].encode()
CHUNKED = b"Transfer-Encoding: chunked"
BODY = b'{"destination": "kafka:orders", "body": "x", "delay": "1h"}'


class Site(NamedTuple):
    host: str
    port: int

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection(self.host, self.port)

    async def answered(
        self, path: bytes, until: bytes
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection that is kept: what came on it ends with this."""
        reader, writer = await self.connect()
        writer.write(b"GET " + path + b" HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        await asyncio.wait_for(reader.readuntil(until), DEADLINE_S)
        return reader, writer

    async def send(self, *parts: bytes) -> bytes:
        """Everything that is answered to these bytes, until the server closes."""
        reader, writer = await self.connect()
        try:
            for part in parts:
                writer.write(part)
                await writer.drain()
            return await asyncio.wait_for(reader.read(), DEADLINE_S)
        except ConnectionResetError:
            return b""
        finally:
            writer.close()


def site_of(client: Any) -> Site:
    return Site(client.base_url.host, client.base_url.port)


@pytest.fixture
async def site(redis_url: str, namespace: str) -> AsyncIterator[Site]:
    async with api(redis_url, namespace) as client:
        yield site_of(client)


@pytest.fixture
async def strict(redis_url: str, namespace: str) -> AsyncIterator[Site]:
    """A request must arrive soon: sooner than any does here."""
    async with api(redis_url, namespace, transport={"request_s": 0.1}) as client:
        yield site_of(client)


def get(path: bytes = b"/health/live", *headers: bytes) -> bytes:
    lines = [b"GET " + path + b" HTTP/1.1", b"Host: 127.0.0.1", *headers, b"Connection: close"]
    return b"\r\n".join([*lines, b"", b""])


def post(*headers: bytes, body: bytes = BODY, length: bool = True) -> bytes:
    lines = [b"POST /v1/messages HTTP/1.1", b"Host: 127.0.0.1", b"Connection: close", *headers]
    lines.append(b"Content-Type: application/json")
    if length:
        lines.append(b"Content-Length: %d" % len(body))
    return b"\r\n".join([*lines, b"", b""]) + body


def in_chunks(*trailers: bytes) -> bytes:
    return b"%x\r\n%s\r\n0\r\n%s\r\n" % (len(BODY), BODY, b"".join(trailers))


ROWS: dict[str, tuple[bytes, int]] = {
    "H-9 trace": (b"TRACE /v1/messages HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", 405),
    "H-9 connect": (b"CONNECT evil:443 HTTP/1.1\r\nHost: x\r\n\r\n", 405),
    "H-10": (get(b"/v1/messages/" + b"x" * 9000), 414),
    "H-11": (get(b"/health/live", b"X-Long: " + b"x" * 17_000), 431),
    "H-11 endless": (b"GET / HTTP/1.1\r\nX: " + b"x" * 300_000, 431),
    "H-12": (get(b"/health/live", *(b"X-%d: 1" % n for n in range(101))), 431),
    "H-13 two lengths": (post(b"Content-Length: 3"), 400),
    "H-13 chunked too": (post(b"Transfer-Encoding: chunked"), 400),
    "H-14": (
        post(b"Transfer-Encoding: chunked", body=b"ffffffffffffffffff\r\nx", length=False),
        400,
    ),
    "H-14 trailer": (post(CHUNKED, body=in_chunks(b"X: y\r\n"), length=False), 400),
    "H-14 of a get": (get(b"/health/live", CHUNKED) + b"0\r\nX: y\r\n\r\n", 400),
    "H-14 endless": (post(CHUNKED, body=in_chunks(b"X: " + b"y" * 600_000), length=False), 400),
    "H-18": (
        post(b"Expect: 100-continue", b"Content-Length: 99999999", length=False, body=b""),
        413,
    ),
    "H-26": (b"GET http://evil/health/live HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", 400),
    "H-27": (get(b"/v1/messages/a%00b"), 400),
    "H-30": (get(b"/v1/messages/%c0%ae"), 400),
    "H-31 nul": (get(b"/health/live", b"X: a\x00b"), 400),
    "H-31 bare cr": (get(b"/health/live", b"X: a\rb"), 400),
    "H-5 tls": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(100), 400),
    "http/2": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
    "not ascii": (get("/é".encode()), 400),
    "no such path": (get(b"/nothing"), 404),
}
UNFINISHED = {
    "H-15": post(b"Content-Length: 900", length=False),
    "H-16 head": b"GET /health/live HTTP/1.1\r\nX: y",
    "H-16 nothing": b"",
}


@pytest.mark.parametrize("row", ROWS)
async def test_a_bad_request_gets_its_status(site: Site, row: str) -> None:
    await is_refused(site, *ROWS[row])


@pytest.mark.parametrize("row", UNFINISHED)
async def test_a_request_that_does_not_end_is_cut_off(strict: Site, row: str) -> None:
    await is_refused(strict, UNFINISHED[row], 408)


async def is_refused(site: Site, request: bytes, status: int) -> None:
    head, _, body = (await site.send(request)).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 %d " % status), head
    problem = json.loads(body)
    assert problem["status"] == status
    assert b"application/problem+json" in head


async def test_h16_one_byte_at_a_time_is_cut_off(strict: Site) -> None:
    reader, writer = await strict.connect()

    async def drip() -> None:
        for byte in post():
            writer.write(bytes([byte]))
            await quiet_async(0.02)  # the whole would take a multiple of what is allowed

    dripping = asyncio.create_task(drip())
    answer = await asyncio.wait_for(reader.read(), DEADLINE_S)
    dripping.cancel()
    writer.close()
    assert answer.startswith(b"HTTP/1.1 408 ")


async def test_h17_the_longest_idle_connection_makes_room(redis_url: str, namespace: str) -> None:
    async with api(redis_url, namespace, connections=3) as client:
        site = site_of(client)
        kept = [await site.answered(b"/health/live", b"}") for _ in range(3)]
        answer = await site.send(get())
        assert answer.startswith(b"HTTP/1.1 200 ")
        assert await asyncio.wait_for(kept[0][0].read(), DEADLINE_S) == b""
        for reader, writer in kept[1:]:
            writer.write(b"GET /health/live HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            assert b"200 OK" in await asyncio.wait_for(reader.readuntil(b"}"), DEADLINE_S)
        for _, writer in kept:
            writer.close()


LOGIN = b"POST /login HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 9\r\n\r\ntok"
HALF = [
    b"GET /health/live HTTP/1.1\r\nX: y",
    LOGIN,
    b"GET /health/live HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" + LOGIN,
]


@pytest.mark.parametrize("half", HALF, ids=["head", "body", "behind another"])
async def test_h17_who_has_sent_half_a_request_makes_room(
    redis_url: str, namespace: str, half: bytes
) -> None:
    async with api(redis_url, namespace, connections=2) as client:
        site = site_of(client)
        kept = [await site.connect() for _ in range(2)]
        await until_async(lambda: len(accepted(client)) == 2, "both are accepted")
        for _, writer in kept:
            writer.write(half)
        assert (await site.send(get())).startswith(b"HTTP/1.1 200 ")
        assert b" 408 " not in await asyncio.wait_for(kept[0][0].read(), DEADLINE_S)
        for _, writer in kept:
            writer.close()


@pytest.mark.parametrize("before", [b"", b"/health/live HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\nGET "])
async def test_h17_h61_a_connection_that_is_busy_is_not_closed(
    redis_url: str, namespace: str, before: bytes
) -> None:
    async with api(redis_url, namespace, connections=1) as client:
        site = site_of(client)
        _, writer = await site.answered(before + b"/v1/events", b"retry")
        answer = await site.send(get())
        assert answer.startswith(b"HTTP/1.1 503 ")
        writer.close()


@pytest.mark.parametrize("cut", [0, 30, 150, -len(BODY), -20])
async def test_a_client_that_asks_for_another_protocol_is_answered_in_this_one(
    site: Site, cut: int
) -> None:
    asking = (b"Connection: Upgrade, HTTP2-Settings", b"Upgrade: h2c", b"HTTP2-Settings: AA")
    request = post(*asking, b"X-Long: " + b"x" * 14_000)
    reader, writer = await site.connect()
    writer.write(request[:cut])
    await quiet_async(0.02)  # the server reads the parts one by one
    writer.write(request[cut:] if cut else request)
    assert (await reader.readline()).startswith(b"HTTP/1.1 201 ")
    writer.close()


async def test_h6_a_body_of_a_get_is_ignored(site: Site) -> None:
    request = get(b"/health/live", b"Content-Length: 5") + b"hello"
    assert (await site.send(request)).startswith(b"HTTP/1.1 200 ")


async def test_requests_in_a_row_are_all_answered(site: Site) -> None:
    one = b"GET /health/live HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    answer = await site.send(one * 200 + get())
    assert answer.count(b"HTTP/1.1 200 OK") == 201


async def test_of_too_many_requests_in_a_row_those_that_wait_are_answered(site: Site) -> None:
    one = b"GET /health/live HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    answer = await site.send(one * 2000)
    assert 251 <= answer.count(b"HTTP/1.1 200 OK") < 1000
    assert answer.count(b"connection: close") == 1


@pytest.mark.parametrize("is_later", [False, True])
async def test_a_token_in_a_trailer_lets_nobody_in(
    redis_url: str, namespace: str, tmp_path: Path, is_later: bool
) -> None:
    async with api(redis_url, namespace, token_file=str(token_file_in(tmp_path))) as client:
        whole = post(CHUNKED, body=in_chunks(b"Authorization: %s\r\n" % OWN), length=False)
        end = whole.index(b"Authorization") if is_later else len(whole)
        answer = await site_of(client).send(whole[:end], whole[end:])
        assert answer.startswith((b"HTTP/1.1 400 ", b"HTTP/1.1 401 ")), answer
        stored = await client.get("/v1/messages", headers={"Authorization": OWN.decode()})
        assert stored.json()["items"] == []


async def test_a_client_that_reads_nothing_is_cut_off(redis_url: str, namespace: str) -> None:
    async with api(redis_url, namespace, transport={"write_s": 0.1}) as client:
        _, writer = await site_of(client).connect()
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        await until_async(lambda: accepted(client), "it is accepted")
        writer.write(b"GET /openapi.json HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" * 100)
        await until_async(lambda: not accepted(client), "it is cut off")
        writer.close()


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[BoundedProtocol]:
    """The connections as the server has them, in their order."""
    found: list[BoundedProtocol] = []
    make = BoundedProtocol.connection_made

    def making(self: BoundedProtocol, transport: Any) -> None:
        found.append(self)
        make(self, transport)

    monkeypatch.setattr(BoundedProtocol, "connection_made", making)
    return found


async def unread(
    site: Site, made: list[BoundedProtocol], is_full: Callable[[BoundedProtocol], bool]
) -> socket.socket:
    """A client that reads nothing, and asks until its connection is full."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    sock.setblocking(False)
    before = len(made)
    await asyncio.get_running_loop().sock_connect(sock, (site.host, site.port))
    await until_async(lambda: len(made) > before, "it is accepted")

    def has_asked() -> bool:
        if is_full(made[-1]):
            return True
        with contextlib.suppress(BlockingIOError):
            sock.send(b"GET /openapi.json HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        return False

    await until_async(has_asked, "the answers fill what the kernel takes")
    return sock


def some_wait(connection: BoundedProtocol) -> bool:
    return connection.transport.get_write_buffer_size() > 0


def no_more_is_answered(connection: BoundedProtocol) -> bool:
    return connection.flow.write_paused and not connection.cycle.response_complete


async def test_a_few_bytes_that_are_not_read_hold_no_connection(
    redis_url: str, namespace: str, made: list[BoundedProtocol]
) -> None:
    async with api(redis_url, namespace, transport={"write_s": 0.1}) as client:
        with await unread(site_of(client), made, some_wait):
            await until_async(lambda: not accepted(client), "it is cut off")


@pytest.mark.parametrize(
    ("is_full", "then"),
    [(some_wait, b""), (some_wait, b"GET nothing\r\n\r\n"), (no_more_is_answered, b"")],
    ids=["idle", "refused", "answered"],
)
async def test_clients_that_read_nothing_make_room(
    redis_url: str,
    namespace: str,
    made: list[BoundedProtocol],
    is_full: Callable[[BoundedProtocol], bool],
    then: bytes,
) -> None:
    async with api(redis_url, namespace, connections=2) as client:
        site = site_of(client)
        with contextlib.ExitStack() as held:
            for _ in range(2):
                sock = held.enter_context(await unread(site, made, is_full))
                sock.send(then)
            if then:
                await until_async(lambda: all(each._is_over for each in made), "both are refused")
            for _ in range(3):
                assert (await site.send(get())).startswith(b"HTTP/1.1 200 ")
            assert len(made[0].connections) < 3


async def test_a_refused_client_that_reads_nothing_of_an_answer_under_way_makes_room(
    redis_url: str, namespace: str, made: list[BoundedProtocol]
) -> None:
    async with api(redis_url, namespace, connections=1) as client:
        site = site_of(client)
        with await unread(site, made, some_wait) as sock:
            sock.send(b"GET /v1/events HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\nGET nothing\r\n\r\n")
            await until_async(made[0].transport.is_closing, "it is refused")
            assert (await site.send(get())).startswith(b"HTTP/1.1 200 ")


async def test_a_client_that_reads_nothing_of_one_large_answer_makes_room(
    redis_url: str, namespace: str, made: list[BoundedProtocol]
) -> None:
    async with api(redis_url, namespace, connections=1) as client:
        site = site_of(client)
        with await unread(site, made, some_wait) as sock:
            made[0].transport.set_write_buffer_limits(
                high=made[0].transport.get_write_buffer_size()
            )
            sock.send(b"GET /v1/events HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            await until_async(lambda: made[0].flow.write_paused, "no more is answered")
            assert (await site.send(get())).startswith(b"HTTP/1.1 200 ")


async def test_an_answer_does_not_wait_for_an_acknowledgement(http: httpx.AsyncClient) -> None:
    """It would wait 40 ms, but not in every case: the option is looked at, not the clock."""
    assert (await http.get("/health/live")).status_code == 200
    (own,) = accepted(http)
    with socket.socket(fileno=os.dup(own.fd)) as sock:
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
