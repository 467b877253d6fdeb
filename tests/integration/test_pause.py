"""Paused destinations, on a real Redis with time in the test's hands."""

from __future__ import annotations

import pytest

from delaybridge.store.namespace.rules import Rule
from tests.rigs.outcomes import NACK, NOT_CONNECTED
from tests.rigs.scanner import SOON_MS, Rig, RigFactory, message, when

PAUSED = Rule(paused=True)
CLOSE = "rabbit:orders/close"


@pytest.mark.parametrize("place", ["memory", "memory:q"])
@pytest.mark.parametrize("on_the_wheel", [True, False])
async def test_a_paused_destination_waits_and_another_is_on_time(
    rig: Rig, place: str, on_the_wheel: bool
) -> None:
    if not on_the_wheel:
        await rig.steer({place: PAUSED})
    await rig.claim(*(message(f"m{n}", SOON_MS + n) for n in range(20)))
    await rig.claim(message("other", SOON_MS, "b:q"))
    await rig.steer({place: PAUSED})
    await rig.live_until(SOON_MS + 60_000)
    assert not rig.memory.ids and [p.at_ms for p in rig.other.taken] == [SOON_MS]
    assert {await rig.state(f"m{n}") for n in range(20)} == {"parked"}
    await rig.steer({})
    await rig.live_until(rig.now_ms + 1)
    assert rig.memory.ids == [f"m{n}" for n in range(20)]
    assert {publish.attempt for publish in rig.memory.taken} == {1}
    assert {publish.due_ms for publish in rig.memory.taken} == {SOON_MS + n for n in range(20)}


async def test_paused_messages_can_be_cancelled_and_rescheduled(rig: Rig) -> None:
    await rig.steer({"memory": PAUSED})
    await rig.claim(*(message(id, SOON_MS) for id in ("stays", "goes", "later")))
    await rig.live_until(SOON_MS + 10)
    assert await rig.client.cancel("goes") == "cancelled"
    assert await rig.client.reschedule("later", at=when(SOON_MS + 5000)) == "rescheduled"
    await rig.live_until(SOON_MS + 6000)
    assert not rig.memory.ids
    await rig.steer({})
    await rig.live_until(rig.now_ms + 10)
    assert rig.memory.ids == ["stays", "later"]


async def test_fired_messages_go_out_and_the_others_wait(rig: Rig) -> None:
    await rig.claim(message("fired", SOON_MS), message("late", SOON_MS + 50))
    await rig.at(SOON_MS - 1)
    await rig.steer({"memory": PAUSED})
    await rig.live_until(SOON_MS + 100)
    assert rig.memory.ids == ["fired"]
    assert await rig.state("late") == "parked"


async def test_one_destination_of_an_exchange_is_paused_and_the_others_go_out(rig: Rig) -> None:
    for rules, expected in (({CLOSE: PAUSED}, ["open"]), ({}, ["close", "open"])):
        rig.rabbit.taken.clear()
        await rig.steer(rules)
        at_ms = rig.now_ms + 100
        await rig.claim(message("open", at_ms, "rabbit:orders/open"))
        if rules:
            await rig.claim(message("close", at_ms, CLOSE))
        await rig.live_until(at_ms + 10)
        assert sorted(rig.rabbit.ids) == expected


async def test_what_is_on_the_wheel_changes_its_lane_in_order(rig_of: RigFactory) -> None:
    async with rig_of(window=10) as rig:
        rig.rabbit.hold = True
        names = ["rabbit:orders/close", "rabbit:orders/open"]
        due = [message(f"m{n:03}", SOON_MS + n, names[n % 2], key="k") for n in range(60)]
        await rig.claim(*due)
        await rig.live_until(SOON_MS + 20)  # some are fired, and with the broker
        assert 0 < len(rig.rabbit.ids) < 20
        await rig.steer({CLOSE: Rule(rate=1e6)})
        assert {lane.label for lane in rig.lanes.routing.lanes.values()} >= {CLOSE}
        while len(rig.rabbit.ids) < 60:
            rig.rabbit.confirm(1)
            await rig.at(rig.now_ms + 1)
        for name in (0, 1):
            own = [id for id in rig.rabbit.ids if int(id[1:]) % 2 == name]
            assert own == sorted(own) and len(own) == 30


async def test_a_new_lane_waits_for_what_the_old_one_has_fired(rig: Rig) -> None:
    rig.rabbit.hold = True
    first = [message(f"m{n}", SOON_MS + n, CLOSE, key="k") for n in range(5)]
    await rig.claim(*first, message("m5", SOON_MS + 20, CLOSE, key="k"))
    await rig.live_until(SOON_MS + 10)
    assert len(rig.rabbit.ids) == 5
    await rig.steer({CLOSE: Rule(rate=1e6)})
    await rig.live_until(SOON_MS + 50)
    assert len(rig.rabbit.ids) == 5, "the last one waits"
    rig.rabbit.next_outcomes.extend([NOT_CONNECTED] * 5)  # they may not be overtaken
    rig.rabbit.hold = False
    rig.rabbit.confirm()
    await rig.live_until(rig.now_ms + 100)
    assert [p.id for p in rig.rabbit.taken[5:]] == [f"m{n}" for n in range(6)]


async def test_a_dead_letter_does_not_go_to_a_paused_destination(rig_of: RigFactory) -> None:
    async with rig_of(max_attempts=1, dead_letters={"memory": "memory:dead"}) as rig:
        await rig.steer({"memory:dead": PAUSED})
        rig.memory.next_outcomes.append(NACK)
        await rig.claim(message("x", SOON_MS))
        await rig.live_until(SOON_MS + 10)
        assert await rig.state("x") == "dead" and rig.memory.ids == ["x"]


async def test_paused_messages_expire_when_they_are_back(rig: Rig) -> None:
    await rig.steer({"memory": PAUSED})
    await rig.claim(message("short", SOON_MS, ttl=5), message("long", SOON_MS, ttl=500))
    await rig.live_until(SOON_MS + 6000)
    await rig.steer({})
    await rig.live_until(rig.now_ms + 10)
    assert rig.memory.ids == ["long"] and await rig.state("short") == "dead"


async def test_a_paused_destination_is_no_trouble(rig: Rig) -> None:
    await rig.steer({"memory:q": PAUSED})
    await rig.claim(message("x", SOON_MS))
    await rig.live_until(SOON_MS + 10)
    assert await rig.state("x") == "parked"
    assert not dict(rig.lanes.parking.blocked())


async def test_many_paused_messages_come_back_as_there_is_room(rig_of: RigFactory) -> None:
    async with rig_of(window=100) as rig:
        await rig.steer({"memory": PAUSED})
        await rig.claim(*(message(f"m{n:04}", SOON_MS + n) for n in range(1000)))
        await rig.live_until(SOON_MS + 2000)
        rig.memory.hold = True
        await rig.steer({})
        await rig.live_until(rig.now_ms + 50)
        assert len(rig.memory.ids) <= 50
        held = [await rig.raw("parked", number) for number in rig.sessions]
        assert sum(map(len, held)) > 850, "no more came back than there was room for"
        soon_ms = rig.now_ms + 100
        await rig.claim(message("other", soon_ms, "b:q"))
        ids = [f"m{n:04}" for n in range(1000)]
        while len(rig.memory.ids) < 1000:
            rig.memory.confirm(10)
            await rig.at(rig.now_ms + 10)
        assert rig.memory.ids == ids
        assert [publish.at_ms for publish in rig.other.taken] == [soon_ms]


async def test_of_many_paused_messages_that_are_not_remembered_no_more_return_than_have_room(
    rig_of: RigFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("delaybridge.scan.lanes.parking._ALL_KNOWN", 40)
    async with rig_of(buckets=1, window=100) as rig:
        await rig.steer({"memory": PAUSED})
        ids = [f"m{n:04}" for n in range(1000)]
        await rig.claim(*(message(id, SOON_MS + n // 100) for n, id in enumerate(ids)))
        await rig.live_until(SOON_MS + 2000)
        rig.memory.hold = True
        await rig.steer({})
        await rig.live_until(rig.now_ms + 50)
        assert len(await rig.raw("parked")) > 850
        soon_ms = rig.now_ms + 100
        await rig.claim(message("other", soon_ms, "b:q"))
        late = [f"n{n:04}" for n in range(50)]  # they are parked while pages are read
        await rig.claim(*(message(id, soon_ms) for id in late))
        while len(rig.memory.ids) < 1050:
            rig.memory.confirm(10)
            await rig.at(rig.now_ms + 10)
        assert rig.memory.ids == ids + late
        assert [publish.at_ms for publish in rig.other.taken] == [soon_ms]


async def test_a_page_of_parked_messages_is_read_for_all_their_destinations(
    rig_of: RigFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("delaybridge.scan.lanes.parking._ALL_KNOWN", 100)
    monkeypatch.setattr("delaybridge.scan.lanes.returning._PAGE", 100)
    async with rig_of(buckets=1) as rig:
        await rig.steer({"rabbit": PAUSED})
        ids = [f"m{n:04}" for n in range(1000)]
        places = [f"rabbit:exchange{n % 20}/q" for n in range(1000)]
        both = enumerate(zip(ids, places, strict=True))
        await rig.claim(*(message(id, SOON_MS + n, place) for n, (id, place) in both))
        await rig.live_until(SOON_MS + 2000)
        rig.store.sent.clear()
        await rig.steer({})
        await rig.live_until(rig.now_ms + 1000)
        assert sorted(rig.rabbit.ids) == ids
        for n in range(20):
            assert [id for id in rig.rabbit.ids if int(id[1:]) % 20 == n] == ids[n::20]
        assert rig.store.sent.count("page") < 20, "one for each destination would be 200"


async def test_few_ids_are_remembered_of_many_paused_messages_and_none_is_lost(
    rig_of: RigFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("delaybridge.scan.lanes.parking._ALL_KNOWN", 40)
    async with rig_of(buckets=1, window=20, batch_messages=20) as rig:
        await rig.steer({"memory": PAUSED, "rabbit:orders": PAUSED})
        names = ["memory:q", CLOSE]
        await rig.claim(*(message(f"m{n:04}", SOON_MS + n, names[n % 2]) for n in range(1000)))
        await rig.live_until(SOON_MS + 2000)
        lanes = rig.lanes.parking.troubled
        known = sum(len(parked) for lane in lanes for parked in lane.parked.values())
        assert known < 300 and rig.scanner.is_idle()
        rig.store.sent.clear()
        await rig.steer({"memory": PAUSED})
        await rig.live_until(rig.now_ms + 500)
        assert "park" not in rig.store.sent, "what is still paused did not come back, too"
        assert not rig.memory.ids and rig.rabbit.ids == [f"m{n:04}" for n in range(1, 1000, 2)]
        await rig.steer({})
        await rig.live_until(rig.now_ms + 500)
        assert rig.memory.ids == [f"m{n:04}" for n in range(0, 1000, 2)]
