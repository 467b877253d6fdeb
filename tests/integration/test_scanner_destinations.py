"""Brokers that take nothing, or little: others are on time, and each key keeps its order."""

from __future__ import annotations

import random
from typing import Any

import pytest

from delaybridge.events import CircuitOpened
from delaybridge.message import Message
from tests.rigs.outcomes import NO_EXCHANGE
from tests.rigs.scanner import NOW_MS, SOON_MS, Broker_, Rig, RigFactory, message


async def test_messages_of_an_unreachable_broker_are_parked_and_come_back_in_order(
    rig: Rig,
) -> None:
    await rig.claim(*(message(f"m{i:02}", SOON_MS + i) for i in range(50)))
    await rig.claim(*(message(f"o{i:02}", SOON_MS + i, "b:q") for i in range(50)))
    rig.memory.unavailable = "not_connected"
    await rig.live_until(SOON_MS + 100)
    assert [p.at_ms - SOON_MS for p in rig.other.taken] == list(range(50)), "others are on time"
    assert rig.memory.taken == []
    assert {await rig.state(f"m{i:02}") for i in range(50)} == {"parked"}
    rig.memory.unavailable = None
    await rig.at(SOON_MS + 500)
    assert rig.memory.ids == [f"m{i:02}" for i in range(50)]
    assert {p.attempt for p in rig.memory.taken} == {1}


async def test_a_destination_that_refuses_everything_is_probed_and_then_brought_back(
    rig: Rig,
) -> None:
    rig.memory.next_outcomes.extend([NO_EXCHANGE] * 12)
    await rig.claim(*(message(f"m{i:02}", SOON_MS + i, "memory:gone") for i in range(30)))
    await rig.claim(*(message(f"o{i:02}", SOON_MS + i, "b:q") for i in range(30)))
    await rig.live_until(SOON_MS + 60_000)
    opened = [e for e in rig.events if isinstance(e, CircuitOpened)]
    assert len(opened) > 1, "probes failed, too"
    assert [p.at_ms - SOON_MS for p in rig.other.taken] == list(range(30)), "others are on time"
    assert sorted(d.id for d in rig.memory.published) == [f"m{i:02}" for i in range(30)]
    assert {p.attempt for p in rig.memory.taken} == {1}, "no attempt is counted"


async def test_a_worker_without_a_broker_leaves_its_messages_to_the_next_worker_that_has_it(
    rig_of: RigFactory,
) -> None:
    messages = [message(f"m{i:02}", SOON_MS + i, "b:q") for i in range(20)]
    async with rig_of(buckets=1, lacks="b", max_attempts=1) as rig:
        await rig.claim(*messages, message("o", SOON_MS + 5))
        await rig.live_until(SOON_MS + 3_600_000)
        assert rig.memory.ids == ["o"]
        assert {await rig.state(each.id or "") for each in messages} == {"parked"}
        await rig.expire(0)
    async with rig_of(buckets=1) as rig:
        await rig.at(SOON_MS + 4_000_000)
        assert rig.other.ids == [each.id for each in messages]
        assert {publish.attempt for publish in rig.other.taken} == {1}


async def test_a_silent_broker_delays_no_other_destination(rig_of: RigFactory) -> None:
    async with rig_of(window=20) as rig:
        rig.memory.hold = True
        await rig.claim(*(message(f"m{i:03}", SOON_MS + i) for i in range(100)))
        await rig.claim(*(message(f"o{i:03}", SOON_MS + 5 * i, "b:q") for i in range(400)))
        await rig.live_until(SOON_MS + 2000)
        late_ms = [p.at_ms - p.due_ms for p in rig.other.taken]
        assert len(late_ms) == 400
        assert max(late_ms) <= 600, "until the silent one was known to stall"
        assert len(rig.memory.taken) <= 20
        rig.memory.hold = False
        rig.memory.confirm()
        await rig.live_until(SOON_MS + 4000)
        assert rig.memory.ids == [f"m{i:03}" for i in range(100)]


async def test_a_slow_destination_delays_no_other_and_keeps_its_order(rig_of: RigFactory) -> None:
    async with rig_of(window=1000, batch_messages=1000) as rig:
        rig.memory.hold = True  # confirms one each 20 ms
        slow = [message(f"m{n:04}", SOON_MS, key="k", priority=n // 8) for n in range(2000)]
        await rig.send(*slow)
        await rig.claim(*(message(f"o{n:03}", SOON_MS + 5 * n, "b:q") for n in range(400)))
        for now_ms in range(SOON_MS, SOON_MS + 2200, 5):
            await rig.at(now_ms)
            if now_ms % 20 == 0:
                rig.memory.confirm(1)
        late_ms = sorted(p.at_ms - p.due_ms for p in rig.other.taken)
        assert len(late_ms) == 400
        assert late_ms[-4] <= 60, "all but the first few are on time"
        assert len(rig.memory.taken) <= 250, "no more in flight than it confirms soon"
        rig.memory.hold = False
        rig.memory.confirm()
        await rig.live_until(SOON_MS + 10_000)
        ranks = [int(id[1:]) // 8 for id in rig.memory.ids]
        assert ranks == sorted(ranks, reverse=True), "the highest priority first"
        assert sorted(rig.memory.ids) == sorted(m.id for m in slow)
        assert {p.attempt for p in rig.memory.taken} == {1}, "no attempt is counted"


MANY = 1500  # more than one call brings back
LATER = 600
PARKED_MS = SOON_MS + MANY
END_MS = PARKED_MS + LATER + 100


def of_one_key(count: int, first_ms: int = SOON_MS, destination: str = "memory:q") -> list[Message]:
    """One message of the same key each millisecond."""
    return [
        message(f"{destination}-{due_ms}", due_ms, destination, key="k")
        for due_ms in range(first_ms, first_ms + count)
    ]


def assert_all_in_order(rig: Rig, messages: list[Message]) -> None:
    assert [d.id for d in rig.memory.published] == [m.id for m in messages]
    assert {d.attempt for d in rig.memory.published} == {1}


SIZES: list[dict[str, int]] = [
    {},
    {"batch_messages": 20, "window": 30},
    {"wheel_messages": 100},
    {"claim_ahead_ms": 0, "fire_lead_ms": 0},
    {"known": 100},
    {"known": 3, "wheel_messages": 100},
]


@pytest.fixture
def lone_rig_of(rig_of: RigFactory, monkeypatch: pytest.MonkeyPatch) -> RigFactory:
    """Makes a rig of one bucket. known: how many parked ids are remembered."""

    def lone_rig(*, known: int = 1000, **options: int) -> Rig:
        monkeypatch.setattr("delaybridge.scan.lanes.parked._KNOWN", known)
        return rig_of(buckets=1, **options)

    return lone_rig


@pytest.mark.parametrize("options", SIZES, ids=str)
@pytest.mark.slow_with("*known*", "*batch*")
async def test_one_key_keeps_its_order_when_its_broker_comes_back_while_others_fall_due(
    lone_rig_of: RigFactory, options: dict[str, int]
) -> None:
    async with lone_rig_of(**options) as rig:
        messages = of_one_key(MANY + LATER)
        await rig.send(*messages)
        rig.memory.unavailable = "not_connected"
        await rig.at(PARKED_MS)
        assert len(await rig.raw("parked")) >= MANY
        rig.memory.unavailable = None
        await rig.hurry_until(END_MS)
        await rig.live_until(END_MS)
        assert_all_in_order(rig, messages)


async def test_a_message_fired_while_its_broker_disconnects_and_returns_overtakes_no_other(
    lone: Rig,
) -> None:
    await lone.claim(message("x", SOON_MS, key="k"), message("y", SOON_MS + 3, key="k"))
    await lone.at(SOON_MS - 1)  # one fire for both
    lone.memory.unavailable = "blocked"
    await lone.at(SOON_MS)
    lone.memory.unavailable = None
    lone.store.hold("unpark")
    await lone.at(SOON_MS + 3)
    lone.store.let_go("unpark")
    await lone.live_until(SOON_MS + 100)
    assert [delivery.id for delivery in lone.memory.published] == ["x", "y"]
    assert {delivery.attempt for delivery in lone.memory.published} == {1}


async def test_a_claim_under_way_when_its_broker_comes_back_overtakes_no_message(lone: Rig) -> None:
    messages = of_one_key(10)
    await lone.claim(*messages[:5])
    lone.memory.unavailable = "not_connected"
    await lone.at(SOON_MS + 5)
    lone.store.hold("claim")
    await lone.claim(*messages[5:])
    lone.memory.unavailable = None
    await lone.at(SOON_MS + 20)
    lone.store.let_go("claim")
    await lone.quiet()
    assert_all_in_order(lone, messages)


async def test_while_parked_messages_come_back_the_scanner_makes_no_useless_call(lone: Rig) -> None:
    await lone.claim(message("x", SOON_MS))
    lone.memory.unavailable = "not_connected"
    await lone.at(SOON_MS)
    lone.store.hold("unpark")
    lone.memory.unavailable = None
    await lone.quiet()
    lone.store.sent.clear()
    lone.scanner.wake_all()
    look_ms = lone.pass_()
    assert look_ms is None or look_ms > SOON_MS, "its answer rings"
    assert lone.store.sent == []
    lone.store.let_go("unpark")
    await lone.quiet()
    assert lone.memory.ids == ["x"]


async def test_once_its_parked_messages_are_back_no_more_are_parked(lone: Rig) -> None:
    await lone.send(*of_one_key(MANY + LATER))
    lone.memory.unavailable = "not_connected"
    await lone.at(PARKED_MS)
    lone.memory.unavailable = None
    await lone.at(PARKED_MS + 1)
    lone.store.sent.clear()
    await lone.hurry_until(END_MS)
    await lone.quiet()
    assert len(lone.memory.published) == MANY + LATER
    assert not {"park", "unpark"} & {*lone.store.sent}


@pytest.mark.parametrize("options", SIZES, ids=str)
@pytest.mark.slow_with("*known*", "*batch*")
async def test_one_key_keeps_its_order_when_its_broker_was_silent(
    lone_rig_of: RigFactory, options: dict[str, int]
) -> None:
    async with lone_rig_of(**{"window": 200, **options}) as rig:
        messages = of_one_key(MANY + LATER)
        await rig.send(*messages)
        rig.memory.hold = True
        await rig.live_until(SOON_MS + 1000)
        assert await rig.raw("parked")
        while rig.now_ms < PARKED_MS:  # it moves, and is silent again
            rig.memory.confirm(40)
            await rig.hurry_until(rig.now_ms + 300)
            await rig.live_until(rig.now_ms + 600)
        rig.memory.hold = False
        rig.memory.confirm()
        await rig.hurry_until(END_MS)
        await rig.live_until(END_MS)
        assert_all_in_order(rig, messages)


@pytest.mark.parametrize("options", SIZES, ids=str)
@pytest.mark.slow_with("*known*", "*batch*")
async def test_one_key_keeps_its_order_while_its_destination_is_probed(
    lone_rig_of: RigFactory, options: dict[str, int]
) -> None:
    async with lone_rig_of(**options) as rig:
        messages = of_one_key(MANY + LATER)
        await rig.send(*messages)
        rig.memory.next_outcomes.extend([NO_EXCHANGE] * 10_000)
        while len([e for e in rig.events if isinstance(e, CircuitOpened)]) < 3:
            await rig.hurry_until(rig.now_ms + 100)
            await rig.quiet()
        assert rig.memory.published == []
        rig.memory.next_outcomes.clear()
        await rig.hurry_until(END_MS)
        await rig.live_until(END_MS + 60_000)
        assert_all_in_order(rig, messages)


async def test_a_key_keeps_its_order_after_an_earlier_owner_parked_its_messages(
    rig_of: RigFactory,
) -> None:
    messages = of_one_key(MANY + LATER)
    async with rig_of(buckets=1) as old:
        await old.send(*messages)
        old.memory.unavailable = "not_connected"
        await old.at(PARKED_MS)
        await old.expire(0)
    new = rig_of(buckets=1)
    new.now_ms = PARKED_MS + 500  # no worker looked in the meantime
    async with new:
        await new.hurry_until(END_MS)
        await new.live_until(END_MS)
        assert_all_in_order(new, messages)


async def test_a_destination_that_keeps_parking_does_not_keep_others_from_coming_back(
    lone: Rig,
) -> None:
    messages = of_one_key(MANY + LATER)
    await lone.send(*messages)
    await lone.send(*of_one_key(MANY + LATER, destination="b:q"))
    lone.memory.unavailable = lone.other.unavailable = "not_connected"
    await lone.at(PARKED_MS)
    lone.memory.unavailable = None
    await lone.hurry_until(END_MS)
    await lone.quiet()
    assert_all_in_order(lone, messages)
    assert lone.other.published == []
    lone.other.unavailable = None
    await lone.quiet()
    assert [d.due_ms for d in lone.other.published] == [d.due_ms for d in lone.memory.published]


def calm(broker: Broker_) -> None:
    """The broker takes everything again."""
    broker.unavailable, broker.hold = None, False
    broker.confirm()
    broker.next_outcomes.clear()


def disturb(broker: Broker_, chance: random.Random) -> None:
    """The broker disconnects, falls silent, answers a few, refuses its destination, or returns."""
    match chance.randrange(5):
        case 0:
            broker.unavailable = "not_connected"
        case 1:
            broker.hold = True
        case 2:
            broker.confirm(chance.randrange(20))
        case 3 if not broker.held:  # messages in flight together may end differently
            broker.next_outcomes.extend([NO_EXCHANGE] * 10_000)
        case _:
            calm(broker)


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.slow_with("[2-9]")
async def test_a_key_keeps_its_order_whatever_its_brokers_do(
    lone_rig_of: RigFactory, seed: int
) -> None:
    chance = random.Random(seed)
    sizes = {
        "known": chance.choice([4, 60, 1000]),
        "window": chance.choice([12, 100]),
        "wheel_messages": chance.choice([60, 1000]),
        "batch_messages": chance.choice([7, 100]),
    }
    async with lone_rig_of(**sizes) as rig:
        brokers = {"memory:q": rig.memory, "b:q": rig.other}
        messages = {name: of_one_key(1200, SOON_MS, name) for name in brokers}
        for each in messages.values():
            await rig.send(*each)
        while rig.now_ms < SOON_MS + 4000:
            disturb(chance.choice([rig.memory, rig.other]), chance)
            await rig.hurry_until(rig.now_ms + chance.choice([3, 30, 700]))
            if chance.random() < 0.5:
                await rig.quiet()
        calm(rig.memory)
        calm(rig.other)
        await rig.live_until(rig.now_ms + 120_000)
        for name, broker in brokers.items():
            assert [d.id for d in broker.published] == [m.id for m in messages[name]]


async def test_messages_parked_by_an_earlier_owner_do_not_circle_while_the_broker_is_unavailable(
    rig_of: RigFactory,
) -> None:
    options: dict[str, Any] = {"buckets": 1, "batch_messages": 1000}
    async with rig_of(**options) as old:
        old.memory.unavailable = "not_connected"
        await old.claim(*(message(f"m{n}", NOW_MS - 1) for n in range(5000)))
        assert len(await old.raw("parked")) == 5000
        await old.expire(0)
    async with rig_of(**options) as new:
        new.memory.unavailable = "not_connected"
        await new.live_until(NOW_MS + 10_000)
        assert new.store.sent.count("unpark") <= 40
        new.memory.unavailable = None
        await new.quiet()
        assert len(new.memory.taken) == 5000
