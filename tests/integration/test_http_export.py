"""The download of everything that matches: whole, or broken off; never shorter in silence."""

from __future__ import annotations

import csv
import io
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import httpx
import pytest

from delaybridge import Client, Message
from delaybridge.serve.api.messages import export
from tests.rigs.api import api
from tests.rigs.sessions import TOKENS
from tests.rigs.waiting import until_async
from tests.servers.redis import RedisServer

PATH = "/v1/messages:export"
COUNT = 1234


def fill(redis_url: str, namespace: str) -> None:
    with Client(redis_url, namespace=namespace) as client:
        client.schedule_many(
            Message("pull:a" if n % 3 else "pull:b", b"x", delay=f"{n + 60}s", id=f"m{n:04}")
            for n in range(COUNT)
        )


@pytest.fixture
async def http(redis_url: str, namespace: str) -> AsyncIterator[httpx.AsyncClient]:
    fill(redis_url, namespace)
    async with api(redis_url, namespace) as client:
        yield client


async def test_all_that_match_are_in_the_file_in_order(http: httpx.AsyncClient) -> None:
    answer = await http.get(PATH)
    assert answer.headers["content-disposition"] == 'attachment; filename="messages.json"'
    assert [each["id"] for each in answer.json()] == [f"m{n:04}" for n in range(COUNT)]
    assert answer.text.count("\n") == COUNT + 2  # a message a line
    as_csv = await http.get(PATH, params={"format": "csv", "destination": "pull:b"})
    rows = list(csv.DictReader(io.StringIO(as_csv.text, newline="")))
    assert [row["id"] for row in rows] == [f"m{n:04}" for n in range(0, COUNT, 3)]
    assert as_csv.headers["content-type"] == "text/csv; charset=utf-8"


@pytest.mark.parametrize("format", ["json", "csv"])
async def test_pages_in_which_nothing_matches_change_nothing(
    http: httpx.AsyncClient, format: str
) -> None:
    for prefix, ids in (("m123", [f"m123{n}" for n in range(4)]), ("none", [])):
        query = {"id_prefix": prefix, "limit": "7", "format": format}
        answer = await http.get(PATH, params=query)
        if format == "json":
            assert [each["id"] for each in answer.json()] == ids
        else:
            rows = csv.DictReader(io.StringIO(answer.text, newline=""))
            assert [row["id"] for row in rows] == ids


async def test_what_is_wrong_is_said_before_the_file_begins(http: httpx.AsyncClient) -> None:
    for query in ({"limit": "501"}, {"due_from": "soon"}, {"state": "gone"}, {"cursor": "x"}):
        assert (await http.get(PATH, params=query)).status_code == 422
    for _ in range(2):  # over one connection: each answer has its end
        head = await http.head(PATH)
        assert head.status_code == 200 and head.content == b""
        assert head.headers["cache-control"] == "no-store"
        assert head.headers["x-content-type-options"] == "nosniff"


def after_a_page(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """Something happens between two pages."""
    whole = export.found_page

    async def then_acted(*asked: object) -> object:
        found = await whole(*asked)  # type: ignore[arg-type]
        act()
        return found

    monkeypatch.setattr(export, "found_page", then_acted)


async def test_a_download_ends_with_its_token(
    redis_url: str, namespace: str, guarded: httpx.AsyncClient, token_file: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    fill(redis_url, namespace)
    after_a_page(monkeypatch, lambda: token_file.write_text(""))
    with pytest.raises(httpx.RemoteProtocolError):
        await guarded.get(PATH, headers={"authorization": f"Bearer {TOKENS['read']}"})


async def test_a_download_that_cannot_go_on_breaks_off(
    namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with RedisServer() as redis:
        fill(redis.url, namespace)
        after_a_page(monkeypatch, redis.stop)
        async with api(redis.url, namespace, transport={"redis_s": 0.5}) as http:

            async def is_begun() -> bool:
                """A starved Redis may miss the short time-out of the first page."""
                return (await http.get(PATH, params={"format": "csv"})).status_code != 503

            with pytest.raises(httpx.RemoteProtocolError):
                await until_async(is_begun, "the file begins")
            assert (await http.get(PATH)).status_code == 503
