"""Verbs mean the record: with a ledger each answers as if Redis had what the ledger has.

Each verb is called on a message in each state: hot, cold, in flight, dead; and on one that Redis
lost while it waited, or was dead. The same without a ledger says what is right. Then Redis is
wiped: what was told as gone does not come back, and what is alive does.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from operator import attrgetter
from typing import Any

import httpx
import pytest
import redis as redis_py

from delaybridge import Answer, AsyncClient, Selection
from delaybridge.accept.accept import Accepted
from delaybridge.ingest.entries import Change, Entry, Quarantine, Schedule
from delaybridge.ingest.storing import store_entries
from delaybridge.ledger.comparing.agreement import WantedRows
from delaybridge.ledger.comparing.promotion import promote_due
from delaybridge.ledger.comparing.restoring import restore_all
from delaybridge.message import OnConflict, Record, State, encode_record
from delaybridge.store.protocol import keys
from delaybridge.store.redis.store import Store
from tests.rigs.api import api, ended_job
from tests.rigs.bucket import World
from tests.rigs.delivering import Delivering

BROKERS = dict.fromkeys(("memory", "youzan", "queue", "mykit", "cleared", "restored"), "memory://")
DELAYS = {"hot": "30m", "cold": "2h", "lost": "30m", "in flight": "0s"}
STATES = ("hot", "cold", "in flight", "dead", "lost", "lost dead")
MEANT = {"cold": "hot", "lost": "hot", "lost dead": "dead"}
"""A state -> one that is answered alike."""
REACH = '[["^memory:"]]'
Verb = Callable[["Site", str, str], Awaitable[Any]]  # id, destination


class Site:
    """A namespace of one bucket, with a ledger or without, and servers of its dialects."""

    def __init__(
        self,
        namespace: str,
        client: AsyncClient,
        dialects: dict[str, httpx.AsyncClient],
        raw: redis_py.Redis,
    ) -> None:
        self.namespace, self.client, self.dialects, self.raw = namespace, client, dialects, raw

    def key(self, name: str) -> str:
        return keys.bucket_key(self.namespace, 0, name)

    async def put(self, id: str, to: str, state: str) -> None:
        """A message in this state; one that is in flight is not claimed yet."""
        if "dead" not in state:
            await self.client.schedule(to, b"first", id=id, delay=DELAYS[state])
            return
        record, stamp = encode_record(Record(to, b"first")), id.encode()[-4:]
        buried = [Quarantine(id, stamp, record, "ingress:odd")]
        await self.client.run(lambda calls: store_entries(calls, buried))

    def lose(self, ids: list[str]) -> None:
        """Somebody deletes them in Redis."""
        for name in ("due", "dead"):
            self.raw.zrem(self.key(name), *ids)
        for name in ("messages", "dead_reason"):
            self.raw.hdel(self.key(name), *ids)

    def wipe(self) -> None:
        self.raw.delete(*(self.key(name) for name in keys.BUCKET_KEYS))
        self.raw.delete(keys.birth(self.namespace))

    async def rebuild(self) -> None:
        """As workers do."""
        store = self.client._store
        assert store.recorder is not None
        cold, records = store.recorder.cold, store.recorder.records
        (bucket,) = await self.client.run(lambda calls: calls.open())
        await self.client.run(
            lambda calls: restore_all(calls, records, WantedRows(), lambda _: None)  # type: ignore[arg-type,return-value]
        )
        await store.complete(promote_due(bucket, cold, 2**50))

    async def view(self, id: str) -> object:
        found = await self.client.get(id)
        return None if found is None else (found.state.value, found.body)


def by_id(name: str, **options: Any) -> Verb:
    async def verb(site: Site, id: str, to: str) -> Any:
        return await attrgetter(name)(site.client)(id, **options)

    return verb


def dry(name: str, **options: Any) -> Verb:
    async def verb(site: Site, id: str, to: str) -> Any:
        return await attrgetter(name)(site.client)([id], dry_run=True, **options)

    return verb


async def replace(site: Site, id: str, to: str) -> Any:
    receipt = await site.client.schedule(to, b"second", id=id, delay="1h", on_conflict="replace")
    return receipt.answer


def ingesting(made: Callable[[str, str], Entry]) -> Verb:
    """What ingest reads. made: of id and destination."""

    async def verb(site: Site, id: str, to: str) -> Any:
        return await site.client.run(lambda calls: store_entries(calls, [made(id, to)]))

    return verb


def change(**how: Any) -> Verb:
    """offset: each in a source of its own."""
    return ingesting(
        lambda id, to: Change(id, None, b"3rd!", source=f"t/{id}" if "offset" in how else "", **how)
    )


def scheduled(id: str, to: str) -> Schedule:
    payload = encode_record(Record(to, b"second"))
    accepted = Accepted(id, id.encode(), "+3600000", 255, payload)
    return Schedule(accepted, b"2nd!", OnConflict.REPLACE, payload, f"t/{id}", 1, "")


async def outbox_cancel(site: Site, id: str, to: str) -> Any:
    return await site.client.run(lambda calls: calls.cancel_each([(id, None)]))


async def purge(site: Site, id: str, to: str) -> Any:
    return dict(await site.client.destinations.purge(to))


def selecting(name: str, *states: State, **options: Any) -> Verb:
    """A bulk verb by a filter."""

    async def verb(site: Site, id: str, to: str) -> Any:
        wanted = Selection(place=to, states=states) if states else Selection(place=to)
        answers: list[Answer] = []
        async for page in site.client.select(wanted):
            answers += await attrgetter(name)(site.client)(page, **options)
        return answers

    return verb


def posting(dialect: str, path: str, **fields: str) -> Verb:
    async def verb(site: Site, id: str, to: str) -> Any:
        answer = await site.dialects[dialect].post(path, json={**fields, "id": id})
        return {name: value for name, value in answer.json().items() if name != "id"}

    return verb


def getting(dialect: str, path: str) -> Verb:
    async def verb(site: Site, id: str, to: str) -> Any:
        http = site.dialects[dialect]
        answer = (await http.get(path.format(id=id, confirm=site.namespace))).json()
        if not answer["data"]:
            return answer["success"]
        return (await ended_job(http, answer["data"]))["state"]

    return verb


VERBS: dict[str, tuple[Verb, str]] = {
    "cancel": (by_id("cancel"), "memory"),
    "reschedule": (by_id("reschedule", delay="1h"), "memory"),
    "replace": (replace, "memory"),
    "kick": (by_id("dead.kick"), "memory"),
    "discard": (by_id("dead.discard"), "memory"),
    "purge": (purge, "memory"),
    "cancel by filter": (selecting("cancel_many"), "memory"),
    "reschedule by filter": (selecting("reschedule_many", delay="1h"), "memory"),
    "kick by filter": (selecting("dead.kick_many", State.DEAD), "memory"),
    "discard by filter": (selecting("dead.discard_many", State.DEAD), "memory"),
    "youzan delete": (posting("youzan", "/", command="delete"), "youzan"),
    "youzan finish": (posting("youzan", "/", command="finish"), "youzan"),
    "delay-queue delete": (posting("queue", "/delete"), "queue"),
    "delay-queue finish": (posting("queue", "/finish"), "queue"),
    "mykit delete": (getting("mykit", "/delete?jobId={id}"), "mykit"),
    "mykit reStoreJob": (getting("mykit", "/reStoreJob?jobId={id}"), "mykit"),
    "mykit clearAll": (getting("cleared", "/clearAll?confirm={confirm}"), "cleared"),
    "ingest cancel": (change(offset=1), "memory"),
    "ingest cancel within a reach": (change(reach=REACH), "memory"),
    "ingest reschedule": (change(when="+3600000", reach=REACH), "memory"),
    "ingest replace": (ingesting(scheduled), "memory"),
    "cancel, dry": (dry("cancel_many"), "memory"),
    "reschedule, dry": (dry("reschedule_many", delay="1h"), "memory"),
    "kick, dry": (dry("dead.kick_many"), "memory"),
    "discard, dry": (dry("dead.discard_many"), "memory"),
    "outbox cancel": (outbox_cancel, "memory"),
    "mykit reStore": (getting("restored", "/reStore?expire=true"), "restored"),
}
WAITS = {("replace", "in flight")}
"""These wait until it was delivered: tests/integration/test_scheduled_again.py."""


async def opened(stack: AsyncExitStack, redis_url: str, namespace: str, **kept: Any) -> Site:
    raw = stack.enter_context(redis_py.Redis.from_url(redis_url))
    client = AsyncClient(redis_url, namespace=namespace, brokers=BROKERS, buckets=1, **kept)
    await stack.enter_async_context(client)
    top = {"buckets": 1, **{name: kept[name] for name in ("durability",) if name in kept}}
    ledger = {"ledger": {"url": kept["ledger"]}} if kept else {}
    dialects = {
        broker: await stack.enter_async_context(
            api(redis_url, namespace, brokers=BROKERS, top=top, compat=compat,
                compat_destination=f"{broker}:{{topic}}", **ledger)
        )
        for broker, compat in (("youzan", "youzan"), ("queue", "delay-queue"), ("mykit", "mykit"),
                               ("cleared", "mykit"), ("restored", "mykit"))
    }  # fmt: skip
    return Site(namespace, client, dialects, raw)


async def answered(site: Site, store: Store, redis_url: str, states: tuple[str, ...]) -> Any:
    """(verb, state) -> what it answered."""
    found: dict[tuple[str, str], Any] = {}
    named = {(verb, state): named_by(verb, state) for verb in VERBS for state in states}
    for (verb, state), id in named.items():
        await site.put(id, place(verb, state), state)
    if lost := [id for (_, state), id in named.items() if "lost" in state]:
        site.lose(lost)
    world = World.of_key(store, redis_url, site.namespace, b"")
    Delivering(world.owner())
    for (verb, state), id in named.items():
        if (verb, state) not in WAITS:
            found[verb, state] = await VERBS[verb][0](site, id, place(verb, state))
    world.store.close()
    return found


async def views(site: Site, called: Any) -> Any:
    """(verb, state) -> where its message is now."""
    waiting = [each for each in called if each[1] != "in flight"]
    return {each: await site.view(named_by(*each)) for each in waiting}


def named_by(verb: str, state: str) -> str:
    return f"{verb}: {state}"


def place(verb: str, state: str) -> str:
    return f"{VERBS[verb][1]}:{verb}-{state}".replace(" ", "-")


@pytest.fixture
async def plain(redis_url: str, namespace: str) -> AsyncIterator[Site]:
    async with AsyncExitStack() as stack:
        yield await opened(stack, redis_url, f"{namespace}-plain")


@pytest.fixture
async def site(redis_url: str, namespace: str, ledger_url: str) -> AsyncIterator[Site]:
    async with AsyncExitStack() as stack:
        yield await opened(stack, redis_url, namespace, durability="ledger", ledger=ledger_url)


@pytest.mark.slow_with("mariadb", "postgres")
async def test_each_verb_answers_by_the_record_and_a_wipe_undoes_none(
    site: Site, plain: Site, store: Store, redis_url: str
) -> None:
    answers = await answered(site, store, redis_url, STATES)
    right = await answered(plain, store, redis_url, ("hot", "in flight", "dead"))
    assert differing(answers, right) == ""
    right = await views(plain, right)
    await site.rebuild()
    assert differing(await views(site, answers), right) == ""
    site.wipe()
    await site.rebuild()
    assert differing(await views(site, answers), right) == ""


def differing(found: Any, right: Any) -> str:
    """One line each: verb and state, what is found, and what is right."""
    wanted = {(verb, state): right[verb, MEANT.get(state, state)] for verb, state in found}
    lines = [f"{each}: {what}, not {wanted[each]}" for each, what in found.items()
             if what != wanted[each]]  # fmt: skip
    return "\n".join(lines)
