"""Hostile text on every page of the console, over HTTP, and in every field of an address."""

from __future__ import annotations

from collections.abc import Iterator
from html.parser import HTMLParser
from urllib.parse import quote

import httpx
import pytest
import redis

from delaybridge.serve.console import snapshot
from delaybridge.serve.console.screens.pages import PAGES
from delaybridge.store.redis.store import Store
from tests.rigs.api import api
from tests.rigs.hostile_strings import HOSTILE_STRINGS, filled

PLAIN = [page.path for page in PAGES if "{" not in page.path]
FIELDS = {
    "/messages": ("q", "destination", "id_prefix", "header", "reason", "due_from", "cursor"),
    "/dead": ("reason", "destination", "id_prefix", "cursor"),
    "/horizon": ("destination", "range"), "/tail": ("destination", "event"), "/": ("range",),
    "/publish": ("destination", "from"), "/recurring": ("find", "edit"), "/jobs": ("cursor",),
    "/in-flight": ("destination",), "/login": ("next",),
}  # fmt: skip
"""The fields of each page that an address may fill."""
HARMLESS = [*(f"text-{n}" for n in range(120)), "a b", "null", "0", '"a"', "\x00", "é"]


class Elements(HTMLParser):
    """What a page is made of: (element, its attribute), and where its links lead."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: set[tuple[str, str]] = set()
        self.links: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found |= {(tag, ""), *((tag, name) for name, _ in attrs)}
        places = ("href", "src", "action", "hx-get")
        self.links |= {value or "" for name, value in attrs if name in places}


async def visited(http: httpx.AsyncClient, ids: list[str]) -> dict[str, Elements]:
    """Every page, and those of each message."""
    quoted = [quote(id, safe="") for id in ids]
    paths = [
        *PLAIN, "/messages?limit=500", "/messages?limit=500&state=dead",
        *(f"/recurring?edit=r{n}" for n in range(25)), *(f"/messages/{id}" for id in quoted[::2]),
        *(f"/publish?from={id}" for id in quoted[::8]),
        *(f"/destinations/kafka%3A{id}" for id in quoted[::8]),
    ]  # fmt: skip
    found = {}
    for path in paths:
        answer = await http.get(path)
        assert answer.status_code < 500, path
        found[path] = Elements(answer.text)
    return found


@pytest.fixture
def all_slow(raw: redis.Redis) -> Iterator[None]:
    """Redis takes every call for a slow one: each page of the store has a list of them."""
    raw.config_set("slowlog-log-slower-than", 0)
    yield
    raw.config_set("slowlog-log-slower-than", 10_000)


@pytest.mark.usefixtures("all_slow")
async def test_pages_with_hostile_text_are_made_of_the_same_elements_as_others(
    redis_url: str, namespace: str, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot, "_LEAST", 1)  # else only a page that took seconds has lines
    async with api(redis_url, namespace) as http, api(redis_url, f"{namespace}-h") as other:
        pages = await visited(http, (await filled(http, store, namespace, HARMLESS))[-12:])
        own = set().union(*(page.found for page in pages.values()))
        assert {("script", "src"), ("td", "class"), ("polyline", "points")} <= own
        assert ("div", "tabindex") in own  # the list of slow calls
        taken = await filled(other, store, f"{namespace}-h", HOSTILE_STRINGS)
        assert len(taken) > len(HOSTILE_STRINGS) / 2
        for path, page in (await visited(other, taken)).items():
            assert page.found <= own, (path, page.found - own)
            for link in page.links:
                assert link[:1] in ("/", "?", "#", ""), (path, link)
                assert not link.startswith("//"), (path, link)


async def test_what_is_in_the_address_is_only_text(http: httpx.AsyncClient) -> None:
    own = (await http.get("/tail")).text  # a page that has nothing of theirs has `<title>`
    fields = [(path, name) for path, names in FIELDS.items() for name in names]
    for number, (path, name) in enumerate(fields):
        for text in HOSTILE_STRINGS[number % 7 :: 7]:
            found = await http.get(path, params={name: text})
            assert found.status_code < 500, (path, name, text)
            is_own = "<" not in text or text in own
            assert is_own or text not in found.text, (path, name, text)
