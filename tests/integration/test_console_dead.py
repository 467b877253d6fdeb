"""The console's dead messages, destinations and brokers over HTTP."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterator
from urllib.parse import quote

import httpx
import pytest

from delaybridge.store.namespace import registry
from delaybridge.store.redis.store import Store
from tests.rigs.burials import buried
from tests.rigs.crew import CALM, Crew
from tests.rigs.sessions import log_in
from tests.rigs.waiting import until_async

BROKERS = {"rabbitmq": "amqp://user:secret@h", "kafka": "kafka://h", "memory": "memory://"}
HOSTILE = "<script>alert(1)</script>"
BURIED = [
    ("d0", "kafka:t", "unroutable: no such topic"),
    ("d1", "kafka:t", "unroutable: gone"),
    ("d2", "rabbitmq:orders/a b", "unroutable: no queue"),
    (HOSTILE, "kafka:t", f"refused: {HOSTILE}"),
]


@pytest.fixture
def dead(redis_url: str, namespace: str, store: Store) -> Iterator[None]:
    with buried(store, redis_url, namespace, BROKERS, BURIED):
        yield


def rows(text: str, table: str) -> list[str]:
    """The rows of a table as text, without tags, blanks folded."""
    body = text.split(f'id="{table}"')[1].split("<tbody>")[1].split("</tbody>")[0]
    return [
        " ".join(html.unescape(re.sub(r"<[^>]*>", " ", row)).split())
        for row in re.split(r"<tr[^>]*>", body)[1:]
    ]


def values(text: str) -> dict[str, str]:
    found = re.findall(r'<input name="([^"]*)"[^>]* value="([^"]*)"', text)
    return {name: html.unescape(value) for name, value in found if value}


async def test_nothing_dead_says_when_something_comes(http: httpx.AsyncClient) -> None:
    text = (await http.get("/dead")).text
    assert "Nothing was given up" in text and "data-act" not in text.split("<main")[1]


@pytest.mark.usefixtures("dead")
async def test_dead_messages_by_reason_and_filtered(http: httpx.AsyncClient) -> None:
    text = (await http.get("/dead")).text
    assert HOSTILE not in text
    groups = rows(text, "t-groups")
    assert groups[0].startswith("unroutable kafka:t 2 ")
    assert {group.split()[0] for group in groups} == {"unroutable", "refused"}
    assert len(rows(text, "t-dead")) == 4
    assert f'/messages/{quote(HOSTILE, safe="")}"' in text
    link = html.unescape(re.findall(r'<td><a href="(/dead\?[^"]*orders[^"]*)"', text)[0])
    only = (await http.get(link)).text
    assert [row.split()[0] for row in rows(only, "t-dead")] == ["d2"]
    assert '"destination": "rabbitmq:orders/a b"' in html.unescape(only)
    assert "No message matches" in (await http.get("/dead?reason=nothing")).text


@pytest.mark.usefixtures("dead")
async def test_dead_messages_page_by_page(http: httpx.AsyncClient) -> None:
    found, path = [], "/dead?limit=3"
    while path:
        text = (await http.get(path)).text
        found += rows(text, "t-dead")
        following = re.findall(r'rel="next" href="([^"]*)"', text)
        path = "/dead" + html.unescape(following[0]) if following else ""
    assert len(found) == len({*found}) == 4
    assert 'rel="prev"' in text


@pytest.mark.usefixtures("dead")
async def test_actions_are_for_those_who_may(guarded: httpx.AsyncClient) -> None:
    for path in ("/dead", "/destinations", "/destinations/kafka%3At", "/brokers"):
        for scope in ("read", "write"):
            session = await log_in(guarded, scope)
            page = (await guarded.get(path, headers=session)).text
            main = page.split("<main")[1].split("</main>")[0]
            for word in ("discard", "pause", "purge", 'data-act="PUT"', "data-filter"):
                assert word not in main, (path, scope, word)
            assert ("data-act" in main) == ((path, scope) == ("/dead", "write"))
    session = await log_in(guarded, "admin")
    assert "v1/dead:discard" in (await guarded.get("/dead", headers=session)).text


async def test_the_form_of_a_rule_has_exactly_what_is_set(http: httpx.AsyncClient) -> None:
    of_rabbitmq = {"rate": 7.5, "retry": {"max_ms": 3000}}
    assert (await http.put("/v1/destinations/rabbitmq", json=of_rabbitmq)).status_code == 200
    rule = {
        "spread": "630500ms", "retry": {"base_ms": 1000, "factor": 2, "max_attempts": 5},
        "dead_letter": "",
    }  # fmt: skip
    path = "/v1/destinations/" + quote("rabbitmq:orders/a b", safe="")
    assert (await http.put(path, json=rule)).status_code == 200
    text = (await http.get(path.removeprefix("/v1"))).text
    assert values(text) == {
        "spread": "630500ms", "retry.base_ms": "1000", "retry.factor": "2.0",
        "retry.max_attempts": "5",
    }  # fmt: skip
    assert re.search(r'<input type="checkbox" name="dead_letter"[^>]* checked>', text)
    facts = " ".join(html.unescape(re.sub(r"<[^>]*>", " ", text)).split())
    assert "rate 7.5 rabbitmq retry" not in facts and "rate 7.5 rabbitmq" in facts
    assert "dead_letter the dead set rabbitmq:orders/a b" in facts
    assert "retry.max_ms 3000 rabbitmq " in facts
    assert "retry.jitter 0.2 none: the settings" in facts
    assert "Attempts wait for: 1s, 2s, 3s, 3s Dead letters" in facts.replace("Rule ", "")
    other = (await http.get("/destinations/kafka%3At")).text
    assert "No message is there." in other and "Did you mean" not in other
    assert values(other) == {} and "1s, 2s, 4s, 8s, 16s, 32s, 1m04s, 2m08s …" in other


async def test_destinations_and_what_steers_them(http: httpx.AsyncClient) -> None:
    assert "delaybridge schedule" in (await http.get("/destinations")).text
    messages = [
        {"destination": place, "body": "x", "delay": "1h"}
        for place in ("kafka:t", "kafka:t", f"rabbitmq:{quote(HOSTILE, safe='')}/key")
    ]
    assert (await http.post("/v1/messages:batch", json={"messages": messages})).status_code == 207
    await http.post("/v1/destinations/kafka:pause")
    text = (await http.get("/destinations")).text
    assert HOSTILE not in text
    of_kafka = next(row for row in rows(text, "t-places") if row.startswith("kafka:t"))
    assert of_kafka.startswith("kafka:t paused by the rule of kafka 2 0 0 0 in ")
    text = (await http.get("/destinations/kafka%3At")).text
    assert "paused by the rule of kafka since 20" in text
    assert "/v1/messages:export?destination=kafka%3At" in text
    assert (await http.get("/destinations/kafka%3A")).status_code == 422


async def test_a_destination_that_refuses_messages_is_shown_as_trouble(
    http: httpx.AsyncClient, store: Store, namespace: str
) -> None:
    refused = {"kafka:t": f"invalid_record: {HOSTILE}"}
    about = json.dumps({"brokers": {}, "parked": {}, "paused": [], "refused": refused})
    store.run([registry.announce(namespace, "w", "i", 60_000, about.encode())])
    (place,) = (await http.get("/v1/destinations")).json()["items"]
    told = f"refuses: invalid_record: {HOSTILE}"
    assert (place["state"], place["trouble"]) == ("trouble", f"{told} (w)")
    (row,) = rows((await http.get("/destinations")).text, "t-places")
    assert row.startswith(f"kafka:t trouble {told} (w) ")
    for path in ("/destinations/kafka%3At", "/brokers"):
        text = (await http.get(path)).text
        assert html.escape(told) in text and HOSTILE not in text
    assert "refused</span> kafka:t" in (await http.get("/workers")).text


async def test_brokers_tell_no_secret_and_what_workers_say(
    http: httpx.AsyncClient, crew: Crew
) -> None:
    text = (await http.get("/brokers")).text
    assert "secret" not in text and "amqp://" in text
    states = {row.split()[0]: row for row in rows(text, "t-brokers")}
    assert "no worker publishes to it" in states["rabbitmq"]
    crew.start(lease=CALM)
    await crew.shared("w")

    async def is_seen() -> bool:
        text = (await http.get("/brokers")).text
        return "memory memory:// available 1" in rows(text, "t-brokers")[2]

    await until_async(is_seen, "the worker has said it")
    assert "As each worker sees it" in (await http.get("/brokers")).text
