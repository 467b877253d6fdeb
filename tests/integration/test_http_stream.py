"""The HTTP API: messages as lines, answered while they arrive."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from delaybridge.client.async_client import AsyncClient
from delaybridge.errors import StoreUnavailable
from delaybridge.serve.access.access import Access
from delaybridge.serve.api.messages import streaming
from tests.rigs.api import accepted, api
from tests.rigs.waiting import until_async

BROKERS = {"memory": "memory://"}
PATH = "/v1/messages:stream"
LINES = {"Content-Type": "application/x-ndjson"}


def line(**fields: Any) -> bytes:
    return json.dumps(
        {"destination": "memory:orders", "body": "x", "delay": "15m"} | fields
    ).encode()


async def post(http: httpx.AsyncClient, body: bytes | AsyncIterator[bytes]) -> list[dict[str, Any]]:
    answer = await http.post(PATH, content=body, headers=LINES)
    assert (answer.status_code, answer.headers["content-type"]) == (207, "application/x-ndjson")
    return [json.loads(text) for text in answer.text.splitlines()]


async def test_each_line_has_its_answer_and_a_bad_one_hinders_no_other(
    redis_url: str, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streaming, "_LINES", 4)
    lines = {
        b"\xef\xbb\xbf" + line(id="a"): (201, None),
        line(id="b") + b"\r": (201, None),
        b"  ": None,
        b"": None,
        line(id="c", delay="soon"): (422, "$.delay"),
        b"no JSON": (400, None),
        line(id="d") + b"," + line(id="e"): (400, None),
        line(id="f") + line(id="g"): (400, None),
        b'{"destination": "memory:orders",': (400, None),
        b'"body": "x", "delay": "1s"}': (400, None),
        b'{"id": "h", "id": "h", "destination": "memory:orders", "body": "", "delay": 1}': (
            400,
            None,
        ),
        line(id="i", color="red"): (422, "$"),
        line(id="j", body="y" * 400_000): (413, None),
        line(id="k", headers={"a": [1]}, body_json=[{}]): (422, "$.body"),
        line(id="a", body="other"): (409, "$.id"),
        line(id="a"): (200, None),
        line(id="l", on_conflict="replace"): (201, None),
    }
    expected = [
        (number, *each) for number, each in enumerate(lines.values(), 1) if each is not None
    ]
    body = b"\n".join(lines)  # the last has no end
    limits = {"body_bytes": 1000, "headers_bytes": 1000}
    async with api(redis_url, namespace, brokers=BROKERS, limits=limits) as http:
        found = await post(http, body)
        assert [(each["line"], each["status"], each.get("at")) for each in found] == expected
        assert (await http.get("/v1/stats")).json()["delayed"] == 3

        async def in_bytes() -> AsyncIterator[bytes]:
            for at in range(len(body)):
                if at < 2_000 or at % 5_000 == 0:
                    yield body[at : at + (1 if at < 1_999 else 5_000)]

        again = await post(http, in_bytes())
        assert [each["line"] for each in again] == [number for number, *_ in expected]
        assert again[0] | {"result": "created"} == found[0] | {"status": 200}
        assert await post(http, b"") == await post(http, b"\n\n") == []


async def test_lines_with_one_id_are_stored_in_their_order_whatever_their_policies(
    redis_url: str, namespace: str
) -> None:
    soon = line(delay=None, debounce="k", quiet="5m", longest="1h")
    lines = {
        line(id="other", on_conflict="keep"): (201, "created"),
        line(id="a"): (201, "created"),
        line(id="a", body="y", on_conflict="replace"): (200, "replaced"),
        line(id="a", on_conflict="keep"): (200, "duplicate"),
        line(id="a", on_conflict="fail"): (409, "$.id"),
        soon: (201, "created"),
        soon.replace(b"orders", b"others"): (409, "$.key"),
    }
    async with api(redis_url, namespace, brokers=BROKERS) as http:
        found = await post(http, b"\n".join(lines))
    assert [(each["status"], each.get("result", each.get("at"))) for each in found] == [
        *lines.values()
    ]


async def test_an_answer_comes_before_the_next_line_is_sent(redis_url: str, namespace: str) -> None:
    async with api(redis_url, namespace, brokers=BROKERS, rate=2) as http:
        port = http.base_url.port
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        head = f"POST {PATH} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/jsonl\r\n"
        writer.write(head.encode() + b"Expect: 100-continue\r\nTransfer-Encoding: chunked\r\n\r\n")
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        for number in range(3):
            text = line(id=f"m{number}") + b"\n"
            writer.write(b"%x\r\n%b\r\n" % (len(text), text))
            if not number:
                assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 207 ")
            await reader.readuntil(b"\r\n")
            assert json.loads(await reader.readuntil(b"\n"))["id"] == f"m{number}"
            await reader.readuntil(b"\r\n")
        text = line(id="cut off")
        writer.write(b"%x\r\n%b\r\n" % (len(text), text))
        writer.close()
        await until_async(lambda: not accepted(http))
        assert (await http.get("/v1/messages/cut%20off")).status_code == 404


async def test_a_stream_that_may_not_go_on_ends_quietly_whatever_it_waits_for(
    redis_url: str, namespace: str, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    """Told to stop, or its token is gone: lines that never come, or never end, hold up nothing."""
    head = f"POST {PATH} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/jsonl\r\n"
    begun = head.encode() + b"Expect: 100-continue\r\nContent-Length: 9999\r\n\r\n"
    is_known = True

    async def knows(*_: Any) -> bool:
        return is_known

    monkeypatch.setattr(Access, "knows", knows)
    async with api(redis_url, namespace, brokers=BROKERS) as http:

        async def sent(text: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
            reader, writer = await asyncio.open_connection("127.0.0.1", http.base_url.port)
            writer.write(begun + text)
            await reader.readuntil(b" 100 Continue\r\n\r\n")
            if text.endswith(b"\n"):
                await reader.readuntil(b"}\n\r\n")
            return reader, writer

        revoked, writer = await sent(line() + b"\n")
        is_known = False
        writer.write(b"\n")
        assert await revoked.read() == b"", (
            "an empty line has no answer, but it is a moment to look"
        )
        writer.close()
        is_known = True
        waiting = [await sent(line() + b"\n"), await sent(line(id="half")[:-1])]
    for (reader, writer), expected in zip(waiting, (b"", b"HTTP/1.1 503 "), strict=True):
        assert (await reader.read()).startswith(expected)
        writer.close()
    await until_async(lambda: not accepted(http))
    assert [each for each in caplog.records if each.levelname == "ERROR"] == []


async def test_who_leaves_a_stream_with_requests_behind_it_leaves_no_error(
    redis_url: str, namespace: str, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    monkeypatch.setattr(streaming, "_LINES", 1)
    monkeypatch.setattr(streaming, "_LOOK_S", 0.01)
    body = b"\n".join(line(id=f"m{n}") for n in range(9))
    head = f"POST {PATH} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/jsonl\r\n"
    whole = head.encode() + b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
    async with api(redis_url, namespace, brokers=BROKERS, rate=1) as http:
        reader, writer = await asyncio.open_connection("127.0.0.1", http.base_url.port)
        writer.write(whole + b"GET /health/live HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" * 3)
        await reader.readuntil(b"}\n\r\n")
        writer.transport.abort()
        await until_async(lambda: not accepted(http))
        await http.get("/health/live")
    assert [each for each in caplog.records if each.levelname == "ERROR"] == []


async def test_a_store_that_fails_midway_is_the_answer_of_each_line_until_it_is_back(
    redis_url: str, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streaming, "_LINES", 2)
    calls = 0
    run = AsyncClient.run

    async def failing(client: AsyncClient, call: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise StoreUnavailable("away")
        return await run(client, call)

    monkeypatch.setattr(AsyncClient, "run", failing)
    async with api(redis_url, namespace, brokers=BROKERS) as http:
        found = await post(http, b"\n".join(line(id=f"m{n}") for n in range(6)))
        assert [each["status"] for each in found] == [201, 201, 503, 503, 201, 201]
        assert found[2]["code"] == "store_unavailable"


async def test_what_is_no_stream_of_lines_is_refused_as_any_request(
    redis_url: str, namespace: str
) -> None:
    async with api(redis_url, namespace, brokers=BROKERS) as http:
        for headers, status in (
            ({"Content-Type": "text/plain"}, 415),
            ({"Content-Type": "application/json"}, 415),
            (LINES | {"Content-Encoding": "gzip"}, 415),
            (LINES | {"Idempotency-Key": "k"}, 422),
            (LINES | {"Origin": "http://other.example"}, 403),
        ):
            answer = await http.post(PATH, content=line(), headers=headers)
            assert answer.status_code == status, headers
    async with api(redis_url, namespace, brokers=BROKERS, read_only=True) as http:
        assert (await http.post(PATH, content=line(), headers=LINES)).status_code == 403
