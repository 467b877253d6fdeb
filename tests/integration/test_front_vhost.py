"""What the front makes of a delayed exchange at the broker, and whether it is the front's."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator

import pika
import pytest

from delaybridge.amqp.connection import WireConnection
from delaybridge.front import making
from delaybridge.front.link import Refused
from delaybridge.ingest.routes import Route, fronted
from tests.rigs.front_vhost import VhostSite, vhost_site
from tests.rigs.waiting import quiet_async, until_async
from tests.servers.process import LOOPBACK, free_port


@pytest.fixture
async def site(rabbitmq_url: str) -> AsyncIterator[VhostSite]:
    async with vhost_site(rabbitmq_url) as site:
        yield site


async def refused(awaitable: object) -> Refused:
    with pytest.raises(Refused) as caught:
        await awaitable  # type: ignore[misc]
    assert len(caught.value.text.encode()) <= 255
    return caught.value


async def test_a_made_exchange_diverts_delayed_messages_and_passes_all_others(
    site: VhostSite, namespace: str
) -> None:
    assert not await site.vhost.is_ours(namespace)
    await site.declared(namespace)
    assert await site.vhost.is_ours(namespace) and await site.another().is_ours(namespace)
    queue = await site.client.bind(f"{namespace}.due")
    for headers in ({}, {"x-delay": 5}, {"x-delay": 0}, {"other": 1}):
        await site.client.publish(namespace, **headers)

    async def are_routed() -> bool:
        return [await site.client.waiting(each) for each in (f"{namespace}.due.intake", queue)] == [
            2,
            2,
        ]

    await until_async(are_routed)
    route = fronted("rabbitmq", namespace, ".due")
    assert site.vhost.names == {route.target.encode(): namespace.encode()}
    assert site.enlisted == [route, route]


@pytest.mark.parametrize("flags", [{}, {"durable": False}, {"internal": True}], ids=str)
async def test_an_equal_declare_changes_nothing_and_one_with_other_flags_is_refused(
    site: VhostSite, namespace: str, flags: dict[str, bool]
) -> None:
    for _ in range(2):
        await site.declared(namespace, **flags)
    given = {"durable": True, "internal": False} | flags
    for name in given:
        other = given | {name: not given[name]}
        refusal = await refused(site.vhost.stand(namespace, **other))
        assert refusal.code == 406
        assert refusal.text.startswith(f"PRECONDITION_FAILED - inequivalent arg '{name}' for")
    await site.deleted(namespace)
    assert await site.client.there(namespace) == [False]


async def test_a_declare_of_an_existing_one_gets_the_type_that_it_has(
    site: VhostSite, namespace: str
) -> None:
    for type, why in ((None, "must be an existing"), (b"x-delayed-message", "can't be used")):
        refusal = await refused(site.vhost.prepare(namespace, type))
        assert refusal.text.startswith("PRECONDITION_FAILED - Invalid argument, 'x-delayed-")
        assert refusal.code == 406 and why in refusal.text
    assert await site.client.there(f"{namespace}.due.intake.expired") == [False]
    for has in ("topic", "direct"):
        name = f"{namespace}-{has}"
        await site.declared(name, exchange_type=has)
        for type in (None, b"fanout", b"x-delayed-message", has.encode()):
            assert await site.vhost.prepare(name, type) == has.encode()


async def test_a_deleted_exchange_leaves_its_messages_and_its_name_is_free(
    site: VhostSite, namespace: str
) -> None:
    await site.declared(namespace)
    await site.client.publish(namespace, **{"x-delay": 5})
    await site.deleted(namespace)
    assert await site.client.there(namespace, f"{namespace}.due") == [False, False]
    assert await site.client.waiting(f"{namespace}.due.intake") == 1
    await site.client.declare(namespace)
    for vhost in (site.vhost, site.another()):
        assert not await vhost.is_ours(namespace)
        assert "'type' for exchange" in (await refused(vhost.prepare(namespace, b"direct"))).text
    assert await site.client.there(namespace) == [True]


async def test_an_exchange_that_no_front_made_is_refused_and_never_changed(
    site: VhostSite, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(making, "_AGAIN_S", 0.01)
    plain, behind = f"{namespace}-a", f"{namespace}-b"
    await site.client.declare(plain)
    refusal = await refused(site.vhost.prepare(plain, b"direct"))
    assert (refusal.code, refusal.text) == (
        406,
        f"PRECONDITION_FAILED - inequivalent arg 'type' for exchange '{plain}' in vhost '/': "
        "received ''x-delayed-message'' but current is 'direct'",
    )
    await site.client.declare(f"{behind}.due")
    refusal = await refused(site.vhost.prepare(behind, b"direct"))
    assert refusal.code == 406 and refusal.text.endswith("front.adopt (--adopt) to take it")
    await site.vhost.withdraw(behind)
    for name in (plain, behind):
        assert not await site.vhost.is_ours(name)
        await site.vhost.delete(name)
    await site.vhost.remove_orphans()
    assert await site.client.there(plain, f"{behind}.due", behind) == [True, True, False]
    adopting = site.another(adopt=True)
    await site.declared(behind, adopting)
    assert await site.vhost.is_ours(behind)


async def test_a_declare_that_was_refused_leaves_nothing(site: VhostSite, namespace: str) -> None:
    await site.vhost.prepare(namespace, b"direct")
    assert await site.client.there(f"{namespace}.due.intake.expired") == [True]
    await site.vhost.withdraw(namespace)
    assert await site.client.there(f"{namespace}.due.intake.expired") == [False]
    await site.declared(namespace)
    await site.vhost.withdraw(namespace)
    assert await site.vhost.is_ours(namespace)


async def test_a_front_that_ended_half_way_is_gone_on_with_by_another(
    site: VhostSite, namespace: str
) -> None:
    await site.vhost.prepare(namespace, b"direct")
    await site.client.declare(f"{namespace}.due")
    other = site.another()
    assert not await other.is_ours(namespace)
    await site.declared(namespace, other)
    assert await other.is_ours(namespace)
    assert await site.client.code_of(f"{namespace}.due", exchange_type="fanout") == 406


async def test_what_stands_without_its_second_exchange_is_removed(
    site: VhostSite, namespace: str
) -> None:
    await site.declared(namespace, auto_delete=True)
    queue = await site.client.bind(f"{namespace}.due")
    await site.vhost.remove_orphans()
    assert await site.client.there(namespace) == [True]
    await site.client.connection.call_alone("queue_delete", queue=queue)
    await site.vhost.remove_orphans()
    assert await site.client.there(namespace) == [False]
    assert not site.vhost.names
    await site.declared(namespace)
    await site.another().delete(namespace)  # but another client has declared it again
    assert await site.client.there(namespace) == [True]
    await site.client.delete(f"{namespace}.due")
    assert not await site.another().is_ours(namespace)  # a question removes it, too
    assert await site.client.there(namespace) == [False]


async def test_many_clients_that_declare_at_once_share_the_work(
    site: VhostSite, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    vhosts, made, names = [site.vhost, site.another()], Counter[str](), ["a", "b", "c"]

    make = making.make

    async def counted(connection: WireConnection, route: Route, *flags: bool) -> None:
        made[route.source] += 1
        await make(connection, route, *flags)

    monkeypatch.setattr(making, "make", counted)
    gone = asyncio.create_task(site.vhost.prepare(f"{namespace}-a", b"direct"))
    await asyncio.sleep(0)
    gone.cancel()
    all_names = [f"{namespace}-{name}" for name in names]
    await asyncio.gather(
        *(site.declared(name, vhost) for name in all_names for vhost in vhosts for _ in range(50))
    )
    assert len(made) == 3 and max(made.values()) < 50
    assert all([await vhost.is_ours(name) for name in all_names for vhost in vhosts])
    assert gone.cancelled()


async def test_another_node_is_asked_if_one_cannot_be_reached(
    site: VhostSite, namespace: str
) -> None:
    await site.declared(namespace)
    there = pika.URLParameters(site.url)
    nodes = [(LOOPBACK, free_port()), (there.host, there.port)]
    away = site.another(site.url.replace(f":{there.port}/", f":{free_port()}/"), nodes)
    assert await away.is_ours(namespace)


async def test_what_is_lost_in_the_middle_is_asked_again_on_the_next_connection(
    site: VhostSite, namespace: str
) -> None:
    await site.declared(f"{namespace}-0")
    for number in range(1, 6):
        making = asyncio.create_task(site.declared(f"{namespace}-{number}"))
        await quiet_async(number / 200)
        assert (connection := site.vhost._link._connection) is not None
        connection.abort("in the middle")
        await making
        assert await site.another().is_ours(f"{namespace}-{number}")
