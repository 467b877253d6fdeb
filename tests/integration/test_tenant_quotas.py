"""Quotas of tenants: who exceeds his is refused, or waits; nobody else does."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
import redis

from delaybridge import Client, Message
from delaybridge.errors import StoreFull
from delaybridge.message import Limits
from delaybridge.recurring.definitions import Definitions
from delaybridge.store.protocol import keys
from tests.rigs.api import api
from tests.rigs.ingest import MakeEntrance, source
from tests.rigs.ingest_kafka import Kafka
from tests.rigs.ingest_rabbitmq import HOUR_MS, Exchanges, described, drained, reading
from tests.rigs.timetable import Timetable

LIMIT = 3
HOUR = [("delaybridge-delay", b"1h")]
TOKENS = {who: f"{who}-Zr7qK2mVx9TbWc4P" for who in ("acme", "beta", "ops")}
TENANTS = ["acme", "beta"]
FULL = "acme: limits.tenant_messages is reached"


@pytest.fixture
async def http(
    redis_url: str, namespace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[httpx.AsyncClient]:
    """A server whose token `ops` is of no tenant."""
    monkeypatch.setattr("delaybridge.store.namespace.quota._EVERY_S", 0.0)
    tokens = tmp_path / "tokens"
    lines = [f"{token} write {who}" for who, token in TOKENS.items()]
    for place, tenant in enumerate(TENANTS):
        lines[place] += f" {tenant}"
    tokens.write_text("\n".join(lines))
    limits = {"tenant_messages": LIMIT}
    top = {"tenants": TENANTS, "brokers": {"memory": "memory://"}}
    async with api(redis_url, namespace, token_file=str(tokens), limits=limits, top=top) as client:
        yield client


async def test_507_is_for_the_tenant_over_its_quota_only(
    http: httpx.AsyncClient, raw: redis.Redis, namespace: str
) -> None:
    async def post(who: str, id: str, **headers: str) -> int:
        message = {"destination": "memory:q", "body": "x", "delay": "1h", "id": id}
        given = {"Authorization": f"Bearer {TOKENS[who]}", **headers}
        return (await http.post("/v1/messages", json=message, headers=given)).status_code

    assert [await post("acme", str(n)) for n in range(LIMIT + 1)] == [201] * LIMIT + [507]
    assert await post("acme", "k", **{"Idempotency-Key": "k"}) == 507
    assert not raw.exists(keys.idempotency(namespace)), "it has used up a key"
    for who in ("beta", "ops"):
        assert [await post(who, str(n)) for n in range(LIMIT)] == [201] * LIMIT
    assert await post("beta", "more") == 507
    assert await post("ops", "more") == 201
    acme = {"Authorization": f"Bearer {TOKENS['acme']}"}
    answer = await http.delete("/v1/messages/0", headers=acme)
    assert answer.status_code == 200, answer.text
    assert await post("acme", "again") == 201


def test_a_client_of_several_tenants_stores_what_has_room(redis_url: str, namespace: str) -> None:
    limits = Limits(tenants={"acme": (LIMIT, 0)})
    with Client(redis_url, namespace=namespace, limits=limits) as client:
        tenants = ["acme", "beta", ""] * (LIMIT + 2)
        messages = [Message("kafka:a", b"x", delay="1h", tenant=tenant) for tenant in tenants]
        with pytest.raises(StoreFull, match=r"acme: limits\.tenants: .* 2 of 15"):
            client.schedule_many(messages)
        assert client.stats().delayed == LIMIT + 2 * (LIMIT + 2)


def test_a_recurring_message_of_a_full_tenant_waits_and_those_of_others_do_not(
    table: Timetable, redis_url: str, namespace: str
) -> None:
    table.calls.quota = type(table.calls.quota)(Limits(tenant_messages=1), table.calls.kinds)
    with Client(redis_url, namespace=namespace) as client:
        client.schedule_many([Message("memory:q", b"x", delay="1h", tenant="acme")])
    for name, tenant in (("acme/a", "acme"), ("beta/b", "beta"), ("c", "")):
        table.add(name=name, tenant=tenant)
    made = {each.name: each.error for each in table.make()}
    assert "acme: limits.tenant_messages" in made["acme/a"]
    assert made["beta/b"] == made["c"] == ""


def test_a_backfill_of_a_full_tenant_goes_on_when_there_is_room(
    table: Timetable, redis_url: str, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("delaybridge.store.namespace.quota._EVERY_S", 0.0)
    table.calls.quota = type(table.calls.quota)(Limits(tenant_messages=2), table.calls.kinds)
    table.add(name="acme/a", tenant="acme")
    from_ms = table.now_ms - 10 * 60_000
    with Client(redis_url, namespace=namespace) as client:
        client.schedule_many(
            [Message("memory:q", b"x", delay="1h", tenant="acme", id=id) for id in "ab"]
        )
        with pytest.raises(StoreFull, match=r"acme: limits\.tenant_messages"):
            table.run(Definitions(table.calls).backfill("acme/a", from_ms, table.now_ms))
        assert client.stats().delayed == 2
        assert client.cancel("acme/a") == client.cancel("acme/b") == "cancelled"
        done = table.run(Definitions(table.calls).backfill("acme/a", from_ms, table.now_ms))
        assert done.made == client.stats().delayed == 10


async def test_a_full_tenant_holds_up_no_other_exchange(
    make_entrance: MakeEntrance, rabbit: Exchanges, namespace: str, rabbitmq_url: str
) -> None:
    names = {tenant: f"{namespace}-{tenant}.delay" for tenant in (*TENANTS, "none")}
    entrance = make_entrance(
        url=rabbitmq_url,
        exchanges=[*names.values()],
        tenants=[f"{names[tenant]}={tenant}" for tenant in TENANTS],
        share=TENANTS,
        limits={"tenant_messages": LIMIT},
    )
    for name in names.values():
        await rabbit.target(name.removesuffix(".delay"))
    entrance.ingest("rabbitmq")
    for tenant, name in names.items():
        await reading(entrance, name)
        ids = [f"{tenant}{n}" for n in range(LIMIT if tenant == "beta" else LIMIT + 2)]
        await rabbit.send(name, [("k", b"", described(HOUR_MS, message_id=id)) for id in ids])
    await entrance.until_delayed(3 * LIMIT + 2)

    async def faults(tenant: str) -> str:
        found = await source(entrance, names[tenant], "reading")
        return "" if found is None else " ".join(found.faults)

    async def is_told() -> bool:
        return FULL in await faults("acme")

    async def is_well() -> bool:
        return not await faults("acme")

    await entrance.until(is_told, "acme waits")
    assert await faults("beta") == await faults("none") == ""
    for id in ("acme/acme0", "acme/acme1"):
        assert await entrance.client.cancel(id) == "cancelled"
    await entrance.until(is_well, "acme goes on")
    await drained(entrance, names["acme"])
    stored = {message.id for message in await entrance.delayed()}
    assert {id for id in stored if id.startswith("acme/")} == {f"acme/acme{n}" for n in (2, 3, 4)}


@pytest.mark.slow  # an exchange meets the same mistakes
async def test_a_full_tenant_holds_up_no_other_topic(
    make_entrance: MakeEntrance, kafka: Kafka, namespace: str, watched_kafka_url: str
) -> None:
    names = {tenant: await kafka.topic(f"{namespace}-{tenant}.delay") for tenant in TENANTS}
    entrance = make_entrance(
        url=watched_kafka_url,
        tenants=[f"{name}={tenant}" for tenant, name in names.items()],
        share=TENANTS,
        limits={"tenants": ["acme=3/0"]},
    )
    entrance.ingest("kafka")
    for name in names.values():
        await kafka.send_many(name, [(b"%d" % n, b"x", HOUR) for n in range(LIMIT + 2)])
    await entrance.until_delayed(2 * LIMIT + 2)
    assert sum(m.id.startswith("beta/") for m in await entrance.delayed()) == LIMIT + 2
