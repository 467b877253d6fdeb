"""Ingest reads for the exchanges that fronts make: found while it runs, removed with them."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest
from pika.adapters.blocking_connection import BlockingChannel

from delaybridge.ingest.rabbitmq import following, fronted_intake, intake
from delaybridge.ingest.rabbitmq.fronted_intake import DELETED
from delaybridge.ingest.routes import Route
from tests.rigs.ingest import MakeEntrance, announced, source
from tests.rigs.ingest_fronted import deleted, enlisted, left, listed, made
from tests.rigs.ingest_rabbitmq import HOUR_MS, Exchanges, described, drained, reading

HOUR_S = 3600.0


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look at the list when woken alone; declare, and remove what is finished, often."""
    monkeypatch.setattr(following, "LIST_S", HOUR_S)
    monkeypatch.setattr(following, "ASK_S", HOUR_S)
    monkeypatch.setattr(intake, "_DECLARE_S", 0.05)
    monkeypatch.setattr(fronted_intake, "LOOK_S", 0.05)
    monkeypatch.setattr(fronted_intake, "ROUTED_S", 0.05)


async def left_nothing(rabbit: Exchanges, route: Route) -> bool:
    return await left(rabbit, route) == []


async def test_an_exchange_that_is_enlisted_is_read_at_once_and_its_messages_go_to_its_target(
    make_entrance: MakeEntrance, rabbit: Exchanges, namespace: str
) -> None:
    entrance = make_entrance(exchanges=[], front=True, management=["off"])
    entrance.ingest("rabbitmq")
    first, late = f"{namespace}.D", f"{namespace}.late"
    for name in (first, late):
        route = await made(rabbit, name, queue=f"{name}.q")
        await enlisted(entrance, route)
        await reading(entrance, name)
    entrance.scan()
    sent = [described(300, message_id="a"), described(headers={"y": 1}), described(-5)]
    sent += [described(HOUR_MS, message_id="c")]
    sent += [described(headers={"delaybridge-cancel": True, "delaybridge-id": "c"})]
    await rabbit.send(first, [("k", b"%d" % n, each) for n, each in enumerate(sent)])
    taken = await rabbit.take(f"{first}.q", 3)
    found = {body: (method.exchange, given.headers) for method, given, body in taken}
    assert (found[b"0"][0], found[b"0"][1]["x-delay"]) == (f"{first}.due", -300)
    assert found[b"1"] == (first, {"y": 1})
    assert found[b"2"][1]["x-delay"] == -5
    await drained(entrance, first)
    assert await entrance.delayed() == []
    assert (await announced(entrance, first)).target == f"rabbitmq:{first}.due"


async def test_an_intake_is_removed_with_its_exchange_once_it_is_empty_and_read_when_made_again(
    make_entrance: MakeEntrance, rabbit: Exchanges, namespace: str
) -> None:
    entrance = make_entrance(exchanges=[], front=True, management=["off"])
    route = await made(rabbit, f"{namespace}.D")
    other = await made(rabbit, f"{namespace}.other")
    await rabbit.send(route.source, [("k", b"x", described(HOUR_MS, message_id="a"))])
    for each in (route, other):
        await enlisted(entrance, each)
    await deleted(rabbit, route)
    await rabbit.do(lambda channel: channel.exchange_declare(route.source, "direct"))
    tasks = [entrance.ingest("rabbitmq") for _ in range(2)]
    await entrance.until_delayed(1)

    async def is_gone() -> bool:
        only_plain = await left(rabbit, route) == [route.source]
        return only_plain and await listed(entrance) == [other]

    await entrance.until(is_gone, "its intake is removed")
    ingests = [entrance.ingest_of(task) for task in tasks]
    await entrance.until(lambda: all(len(each.counts) == 1 for each in ingests), "not shown")
    await rabbit.do(lambda channel: channel.exchange_delete(route.source))
    await enlisted(entrance, await made(rabbit, route.source))
    await reading(entrance, route.source, other.source)
    assert len(await left(rabbit, route)) == 6


async def test_an_intake_stays_as_long_as_another_consumer_has_a_message_of_it(
    make_entrance: MakeEntrance, rabbit: Exchanges, namespace: str
) -> None:
    entrance = make_entrance(exchanges=[], front=True, management=["off"])
    route = await made(rabbit, f"{namespace}.D")
    await rabbit.send(route.source, [("k", b"x", described(HOUR_MS, message_id="a"))])
    taken, may_end = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def hold(channel: BlockingChannel) -> None:
        assert channel.basic_get(route.queue)[2] == b"x"
        loop.call_soon_threadsafe(taken.set)
        asyncio.run_coroutine_threadsafe(may_end.wait(), loop).result()

    holding = asyncio.create_task(rabbit.do(hold))
    await taken.wait()
    await enlisted(entrance, route)
    await deleted(rabbit, route)
    entrance.ingest("rabbitmq")

    async def is_idle() -> bool:
        return await source(entrance, route.source, DELETED) is not None

    await entrance.until(is_idle, "there is nothing to read")
    may_end.set()
    await holding
    await entrance.until_delayed(1)
    await entrance.until(partial(left_nothing, rabbit, route), "its intake is removed")
