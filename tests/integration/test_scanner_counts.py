"""What the scanner counts by destination on a message's way: claimed, fired, settled, reclaimed."""

from __future__ import annotations

from collections import Counter

import pytest

from delaybridge.operate.metrics.counts import Counts
from delaybridge.store.namespace.rules import Rule
from tests.rigs.scanner import SOON_MS, Rig, RigFactory, message

STEPS = ("claimed", "fired", "published", "settled", "reclaimed")


@pytest.fixture
def rig_of(redis_url: str, namespace: str) -> RigFactory:
    return lambda **options: Rig(redis_url, namespace, **{"buckets": 2} | options)


def counted(rig: Rig) -> dict[str, Counter[str]]:
    """Step -> destination -> messages."""
    counts = Counts()
    for event in rig.events:
        counts(event)
    found: dict[str, Counter[str]] = {step: Counter() for step in STEPS}
    for (metric, *labels), total in counts.totals.items():
        step = metric.removeprefix("messages_").removesuffix("_total")
        if step in found:
            found[step][labels[0]] = total
    return found


async def test_each_message_counts_once_in_every_step_of_its_destination(rig: Rig) -> None:
    sent = {"memory:q": 30, "rabbit:orders/k": 20, "rabbit:/mails": 5}
    await rig.send(
        *(
            message(f"{to}{n}", SOON_MS + n % 3, to)
            for to, many in sent.items()
            for n in range(many)
        ),
        *(message(f"once{n}", SOON_MS, "b:q", at_most_once=True) for n in range(4)),
    )
    await rig.live_until(SOON_MS + 100)
    expected = {"memory:q": 30, "rabbit:orders": 20, "rabbit:/mails": 5, "b:q": 4}
    found = counted(rig)
    assert found == dict.fromkeys(STEPS[:-1], expected) | {"reclaimed": {}}


async def test_what_is_not_acknowledged_by_the_store_is_not_settled(rig: Rig) -> None:
    await rig.send(*(message(f"m{n}", SOON_MS) for n in range(6)))
    await rig.live_until(SOON_MS - 1)
    rig.store.hold("settle")
    await rig.live_until(SOON_MS + 100)
    assert counted(rig)["published"]["memory:q"] == 6
    assert not counted(rig)["settled"]
    rig.store.let_go("settle")
    await rig.quiet()
    assert counted(rig)["settled"]["memory:q"] == 6


async def test_the_next_owner_counts_what_it_takes_back_by_destination(rig: Rig) -> None:
    rig.memory.hold = True
    await rig.send(*(message(f"m{n}", SOON_MS, key="k") for n in range(6)))
    await rig.send(*(message(f"b{n}", SOON_MS + 900, "b:q", key="k") for n in range(3)))
    await rig.live_until(SOON_MS + 10)
    for number, session in list(rig.sessions.items()):
        await rig.expire(number)
        rig.lose(session, "test")
        await rig.take(number, "w:2")
    rig.memory.hold = False
    await rig.live_until(SOON_MS + 2000)
    found = counted(rig)
    assert found["reclaimed"] == {"memory:q": 6, "b:q": 3}
    assert found["claimed"] == {"memory:q": 12, "b:q": 6}
    assert found["settled"] == {"memory:q": 6, "b:q": 3}


async def test_a_record_that_cannot_be_read_is_reclaimed_for_an_unknown_destination(
    rig_of: RigFactory,
) -> None:
    async with rig_of(buckets=1) as rig:
        await rig.send(message("m", SOON_MS + 900), message("n", SOON_MS + 900))
        await rig.live_until(SOON_MS)
        session = rig.sessions[0]
        await rig.store.redis.hdel(session.bucket.key("messages"), "m")
        await rig.expire(0)
        rig.lose(session, "test")
        await rig.take(0, "w:2")
        await rig.quiet()
        assert counted(rig)["reclaimed"] == {"?": 1, "memory:q": 1}


async def test_a_message_counts_as_fired_once_though_the_clock_is_set_back(
    rig_of: RigFactory,
) -> None:
    async with rig_of(buckets=1, window=1) as rig:
        rig.memory.hold = True
        await rig.send(*(message(f"m{n}", SOON_MS) for n in range(3)))
        await rig.live_until(SOON_MS + 1)
        assert (len(rig.memory.ids), counted(rig)["fired"]["memory:q"]) == (1, 3)
        rig.step_ms = -60_000
        rig.scanner.wake_all()
        await rig.quiet()
        rig.memory.hold = False
        rig.memory.confirm()
        await rig.live_until(SOON_MS + 61_000)
        found = counted(rig)
        assert found["fired"]["memory:q"] == found["published"]["memory:q"] == 3


async def test_a_paused_message_is_claimed_and_not_fired(rig: Rig) -> None:
    await rig.steer({"memory": Rule(paused=True)})
    await rig.send(message("m", SOON_MS))
    await rig.live_until(SOON_MS + 100)
    found = counted(rig)
    assert (found["claimed"], found["fired"]) == ({"memory:q": 1}, {})
