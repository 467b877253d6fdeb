"""A worker obeys the rules of destinations: from its start, and also if a wake-up is lost."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from delaybridge.store.namespace import rules
from delaybridge.store.protocol import keys
from delaybridge.worker import pulse
from delaybridge.worker.destinations import Destinations
from tests.rigs.crew import CALM, SELDOM, Arrived, Crew
from tests.rigs.fault_proxy import FaultProxy
from tests.rigs.waiting import until_async
from tests.servers.process import free_port
from tests.servers.redis import RedisServer

PLACE = "memory:q"
PAUSED = b'{"paused":true}'
COUNT = 300


@pytest.fixture(autouse=True)
def without_rules(store: Any, namespace: str) -> Iterator[None]:
    yield
    store.redis.delete(keys.destinations(namespace))


async def change(crew: Crew, **fields: Any) -> None:
    await crew.store.complete(rules.change(crew.namespace, PLACE, fields))


async def set_silently(crew: Crew, value: bytes | None) -> None:
    """Change the rule as by hand: nobody is woken."""
    name = keys.destinations(crew.namespace)
    if value is None:
        await crew.store.redis.hdel(name, PLACE)
    else:
        await crew.store.redis.hset(name, PLACE, value)


async def test_a_worker_that_starts_while_a_destination_is_paused_publishes_none_of_it(
    crew: Crew, arrived: Arrived
) -> None:
    await change(crew, paused=True)
    ids = await crew.schedule(COUNT, seconds=0.2, first_s=-0.2)
    crew.start(lease=SELDOM)
    await crew.parked(COUNT)
    assert not arrived.at_ms
    await change(crew, paused=None)
    await arrived.all(ids)
    assert {attempt for _, attempt in arrived.attempts} == {1}
    order = sorted(ids, key=lambda id: arrived.at_ms[id])
    assert [arrived.due_ms[id] for id in order] == sorted(arrived.due_ms.values())


@pytest.mark.parametrize("is_told", [True, False])
async def test_a_pause_is_obeyed_also_when_the_wake_up_is_lost(
    crew: Crew, arrived: Arrived, monkeypatch: pytest.MonkeyPatch, is_told: bool
) -> None:
    if is_told:  # by the wake-up alone: the pulse, which reads the rules as well, is too late
        monkeypatch.setattr(pulse, "EVERY_S", 3600.0)
    crew.start(lease=SELDOM)
    await crew.shared("w")
    ids = await crew.schedule(COUNT, seconds=3)
    await arrived.all(ids[:20])
    await (change(crew, paused=True) if is_told else set_silently(crew, PAUSED))
    await crew.obeys_pause(PLACE)
    more = await crew.schedule(50, seconds=0.1)

    async def others_are_parked() -> bool:  # what was fired before the pause may still go out
        return (await crew.client.stats()).parked == COUNT + 50 - len(arrived.at_ms)

    await until_async(others_are_parked, "all that did not go out are parked")
    assert not arrived.at_ms.keys() & {*more}
    await (change(crew, paused=None) if is_told else set_silently(crew, None))
    await arrived.all(ids + more)
    assert not arrived.twice and min(arrived.late_ms) >= 0


@pytest.mark.parametrize("damage", ["type", "json", "field"])
@pytest.mark.slow_with("type", "field")
async def test_nothing_paused_goes_on_because_the_rules_cannot_be_read(
    crew: Crew, arrived: Arrived, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    name = keys.destinations(crew.namespace)
    await change(crew, paused=True)
    crew.start(lease=CALM)
    ids = await crew.schedule(COUNT, seconds=0.1)
    await crew.parked(COUNT)
    worker = crew.workers["w"]
    if damage == "type":
        await crew.store.redis.set(name, "x")
    else:
        await set_silently(crew, b"{" if damage == "json" else b'{"paused":"no"}')
    asked = worker.destinations.asked
    await until_async(lambda: worker.destinations.asked > asked + 2, "it is read again")
    assert not arrived.at_ms
    logged = "rules_unreadable" if damage == "type" else "rule_unreadable"
    assert [record for record in caplog.records if record.getMessage().startswith(logged)]
    (reply,) = await crew.store.run_each([rules.read(crew.namespace)])
    assert rules.damage(crew.namespace, reply)

    await crew.obeys_pause(PLACE)
    stats = await crew.client.stats()  # operators see what the worker obeys, too
    assert [each.place for each in stats.paused] == [PLACE]
    assert (stats.overdue_ms, len(stats.odd_rules)) == (0, 1)
    shown = (await crew.client.destinations()).places
    assert {each.place: each.state for each in shown}[PLACE] == "paused"
    assert str((await crew.client.get(ids[0])).reason).startswith(f"paused: {PLACE}")
    await crew.store.redis.delete(name)
    await arrived.all(ids)


async def test_rules_are_known_again_after_redis_was_away(namespace: str, arrived: Arrived) -> None:
    with RedisServer() as server:
        async with FaultProxy(free_port(), server.port) as proxy:
            direct = f"redis://127.0.0.1:{server.port}/0"
            crew = Crew(direct, namespace)
            try:
                crew.start(url=f"redis://127.0.0.1:{proxy.port}/0")
                await crew.shared("w")
                proxy.mode = "blackhole"
                await change(crew, paused=True)
                proxy.mode = "pass"
                proxy.reset()
                await crew.obeys_pause(PLACE)
                ids = await crew.schedule(COUNT, seconds=1)
                await crew.parked(COUNT)
                assert not arrived.at_ms
                await change(crew, paused=None)
                await arrived.all(ids)
            finally:
                await crew.close()


def test_a_later_answer_is_not_undone_by_an_earlier_one(namespace: str) -> None:
    destinations = Destinations(namespace)
    heard: list[rules.Rules] = []
    destinations.follow(heard.append)
    ((first,), (second,)) = destinations.commands(), destinations.commands()
    destinations.take_replies([second.parse([PLACE.encode(), PAUSED])])
    destinations.take_replies([first.parse([])])
    assert destinations.rules.by_place[PLACE].paused and len(heard) == 1


@pytest.mark.parametrize("told", ["before", "after", "never"])
@pytest.mark.parametrize("rules", [(PAUSED, b"{}"), (b'{"rate":5}', b'{"rate":6}')])
def test_a_rule_that_is_eased_and_nobody_says_so_is_a_warning(
    namespace: str, told: str, rules: tuple[bytes, bytes], caplog: pytest.LogCaptureFixture
) -> None:
    destinations = Destinations(namespace)

    def answer(*stored: bytes) -> None:
        (command,) = destinations.commands()
        destinations.take_replies([command.parse(stored)])

    before, after = rules
    for _ in range(5):
        answer(PLACE.encode(), before)
    if told == "before":
        destinations.expect_change()
        answer(PLACE.encode(), before)  # asked for earlier
    answer(PLACE.encode(), after)
    if told == "after":
        destinations.expect_change()
    for _ in range(3):
        answer(PLACE.encode(), after)
    for stricter in (before, after, before):  # told of, and a stricter rule needs not be
        destinations.expect_change()
        answer(PLACE.encode(), stricter)
    lost = [each for each in caplog.messages if each.startswith("rules_lost")]
    assert len(lost) == (told == "never")
    if lost:
        assert f"places={PLACE}" in lost[0]
