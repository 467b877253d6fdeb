"""The scanner on a real Redis, with time in the test's hands and a broker in memory."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from typing import Any

import pytest

from delaybridge.events import (
    Buried,
    CircuitOpened,
    Claimed,
    ClockStepped,
    DeadDropped,
    Dropped,
    LeaseAcquired,
    Revoked,
)
from delaybridge.message import Message
from delaybridge.publish import Fault, Outcome, Verdict
from delaybridge.store import keys
from tests.rigs.lossy_proxy import LossyProxy
from tests.rigs.scanner import NOW_MS, Broker_, Rig, RigFactory, message, when
from tests.rigs.waiting import DEADLINE_S

SOON_MS = NOW_MS + 100
BACKLOG = 400
UNROUTABLE = Outcome(Verdict.REFUSED, "unroutable: 312 NO_ROUTE", Fault.MESSAGE)
TIMED_OUT = Outcome(Verdict.UNKNOWN, "timeout: no confirm", Fault.MESSAGE)
NO_EXCHANGE = Outcome(Verdict.REFUSED, "no_exchange: 404", Fault.DESTINATION)


@pytest.fixture
async def lone(rig_of: RigFactory) -> AsyncIterator[Rig]:
    """A rig of one bucket."""
    async with rig_of(buckets=1) as rig:
        yield rig


async def claimed(rig: Rig, *messages: Message) -> None:
    """Schedule, and have the scanner claim the messages due within its window."""
    await rig.schedule(*messages)
    rig.scanner.wake_all()
    await rig.quiet()


# time


@pytest.mark.parametrize(
    "options",
    [{}, {"claim_ahead_ms": 0, "fire_lead_ms": 0}, {"claim_ahead_ms": 40}, {"batch_messages": 3}],
    ids=str,
)
async def test_each_message_goes_out_in_its_own_millisecond(
    rig_of: RigFactory, options: dict[str, int]
) -> None:
    moments = random.Random(3)
    async with rig_of(**options) as rig:
        due = {f"m{i}": NOW_MS + moments.randrange(5000) for i in range(200)}
        await rig.schedule(*(message(id, due_ms) for id, due_ms in due.items()))
        rig.scanner.wake_all()
        await rig.live_until(NOW_MS + 5000)
        assert {publish.id: publish.at_ms for publish in rig.memory.taken} == due
        assert len(rig.memory.taken) == len(due)


async def test_a_fired_message_does_not_go_out_a_millisecond_early(lone: Rig) -> None:
    await claimed(lone, message("x", SOON_MS))
    await lone.at(SOON_MS - 1)
    assert "fire" in lone.store.sent
    assert lone.memory.taken == []
    await lone.at(SOON_MS)
    assert lone.memory.ids == ["x"]


async def test_priority_orders_messages_of_one_millisecond_over_all_buckets_and_shifts_no_time(
    rig: Rig,
) -> None:
    priorities = random.Random(5)
    order = [message(f"p{i}", SOON_MS, priority=priorities.randrange(256)) for i in range(60)]
    order += [
        message("before", SOON_MS - 1, priority=0),
        message("after", SOON_MS + 1, priority=255),
    ]
    await claimed(rig, *order)
    await rig.live_until(SOON_MS + 1)
    order.sort(key=lambda m: (m.at, -m.priority))
    ranks = {m.id: (m.at, -m.priority) for m in order}
    assert [ranks[id] for id in rig.memory.ids] == [ranks[m.id] for m in order]


async def test_messages_of_one_key_keep_their_order_in_a_backlog_over_many_batches(
    rig_of: RigFactory,
) -> None:
    async with rig_of(batch_messages=7, window=10) as rig:
        dues = random.Random(7).sample(range(NOW_MS - 5000, NOW_MS + 50), BACKLOG)
        await claimed(rig, *(message(f"m{due_ms}", due_ms, key="k") for due_ms in dues))
        await rig.live_until(NOW_MS + 50)
        assert rig.memory.ids == [f"m{due_ms}" for due_ms in sorted(dues)]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"batch_messages": 9},
        {"wheel_messages": 40},
        {"wheel_messages": 40, "window": 20},
    ],
    ids=str,
)
async def test_a_backlog_is_delivered_in_due_order_over_all_buckets(
    rig_of: RigFactory, options: dict[str, int]
) -> None:
    rig = rig_of(**options)
    dues = random.Random(11).sample(range(NOW_MS - 5000, NOW_MS), BACKLOG)
    await rig.schedule(*(message(f"m{due_ms}", due_ms) for due_ms in dues))
    async with rig:  # takes its leases only now
        await rig.quiet()
        assert rig.memory.ids == [f"m{due_ms}" for due_ms in sorted(dues)]


async def test_the_first_of_a_burst_go_out_while_the_others_are_being_fired(
    rig_of: RigFactory,
) -> None:
    ids = [f"m{i}" for i in range(3000)]
    async with rig_of(window=5000) as rig:
        await claimed(rig, *(message(id, SOON_MS) for id in ids))
        rig.store.hold("fire")
        await rig.at(SOON_MS)
        rig.store.let_go("fire")
        rig.store.hold("fire")
        await rig.quiet()
        first = {keys.bucket_of(id.encode(), 4) for id in rig.memory.ids}
        assert 0 < len(first) < 4
        whole = [id for id in ids if keys.bucket_of(id.encode(), 4) in first]
        assert sorted(rig.memory.ids) == sorted(whole), "all that the first fires covered"
        rig.store.let_go("fire")
        await rig.quiet()
        assert sorted(rig.memory.ids) == sorted(ids)
        assert rig.store.sent.count("fire") == 4


async def test_a_clock_set_back_makes_nothing_early_and_one_set_ahead_loses_nothing(
    rig: Rig,
) -> None:
    await claimed(rig, *(message(f"m{i}", SOON_MS + 10 * i) for i in range(20)))
    await rig.at(SOON_MS + 95)
    assert len(rig.memory.taken) == 10
    await rig.at(SOON_MS - 1000)
    await rig.at(SOON_MS + 99)
    assert len(rig.memory.taken) == 10
    await rig.live_until(SOON_MS + 150)
    assert len(rig.memory.taken) == 16
    await rig.at(SOON_MS + 3_600_000)
    assert sorted(rig.memory.ids) == sorted(f"m{i}" for i in range(20))
    assert all(publish.at_ms >= publish.due_ms for publish in rig.memory.taken)


async def test_a_claim_whose_answer_shows_a_clock_set_back_delivers_nothing_early(
    lone: Rig,
) -> None:
    lone.step_ms = -60_000  # the worker does not know yet
    await lone.schedule(message("x", lone.store_ms + 1900), message("y", lone.store_ms + 1900))
    lone.scanner.wake(0, lone.store_ms + 1900)
    await lone.quiet()
    assert [e.step_ms for e in lone.events if isinstance(e, ClockStepped)] == [-60_000]
    await lone.at(NOW_MS + 1899 - 5)
    assert await lone.client.cancel("y") == "cancelled", "it waits, and was not fired"
    await lone.live_until(NOW_MS + 2000)
    assert lone.memory.taken == [("x", lone.store_ms - 100, lone.store_ms - 100, 1)]


@pytest.mark.parametrize("at_most_once", [False, True])
async def test_a_fire_whose_answer_shows_a_clock_set_back_delivers_nothing_early(
    lone: Rig, at_most_once: bool
) -> None:
    x, y = (message(id, SOON_MS, at_most_once=at_most_once) for id in "xy")
    await claimed(lone, x, y)
    lone.step_ms = -60_000
    await lone.at(SOON_MS)
    assert "fire" in lone.store.sent and lone.memory.taken == []
    if not at_most_once:  # else it is settled already
        assert await lone.state("y") == "delayed"
        assert await lone.client.cancel("y") == "cancelled"
    await lone.live_until(SOON_MS + 60_000 - 1)
    assert lone.memory.taken == []
    await lone.live_until(SOON_MS + 60_100)
    assert lone.memory.ids == (["x", "y"] if at_most_once else ["x"])
    assert all(publish.at_ms >= SOON_MS for publish in lone.memory.taken)


async def test_a_message_waiting_for_room_when_the_clock_is_set_back_is_not_delivered_early(
    rig_of: RigFactory,
) -> None:
    async with rig_of(buckets=1, window=1) as rig:
        rig.memory.hold = True
        # The same score: one fire covers both, though there is room for one.
        await claimed(rig, message("x", SOON_MS), message("y", SOON_MS))
        await rig.at(SOON_MS)
        assert rig.memory.ids == ["x"]
        rig.step_ms = -60_000
        rig.scanner.wake_all()
        await rig.quiet()
        rig.memory.hold = False
        rig.memory.confirm()
        await rig.live_until(SOON_MS + 59_999)
        assert rig.memory.ids == ["x"]
        await rig.live_until(SOON_MS + 60_100)
        assert rig.memory.ids == ["x", "y"]


async def test_a_dead_letter_waiting_for_room_when_the_clock_is_set_back_still_goes_out(
    rig_of: RigFactory,
) -> None:
    async with rig_of(buckets=1, window=1, max_attempts=1, dead_letters=LETTERS) as rig:
        rig.memory.hold = True
        await claimed(rig, message("x", SOON_MS), message("y", SOON_MS))
        await rig.at(SOON_MS)
        rig.memory.next_outcomes.append(TIMED_OUT)
        rig.memory.confirm(1)
        await rig.quiet()
        assert rig.memory.ids == ["x", "y"], "the letter of x waits"
        rig.step_ms = -60_000
        rig.scanner.wake_all()
        await rig.quiet()
        assert await rig.client.cancel("x") == "in_flight", "it may have been delivered"
        rig.memory.hold = False
        rig.memory.confirm()
        await rig.quiet()
        assert [d.record.destination for d in rig.memory.published] == ["memory:q", "memory:dead"]
        assert await rig.state("x") is None


async def test_a_circuit_is_probed_in_time_after_the_clock_was_set_back(lone: Rig) -> None:
    lone.memory.next_outcomes.append(NO_EXCHANGE)
    await claimed(lone, message("x", SOON_MS))
    await lone.at(SOON_MS)
    assert lone.memory.ids == ["x"]
    lone.step_ms = -3_600_000
    await lone.schedule(message("y", lone.store_ms))
    lone.scanner.wake_all()
    await lone.live_until(lone.now_ms + 3_000)
    assert lone.memory.ids == ["x", "y"]


async def test_a_destination_keeps_its_speed_when_the_clock_is_set_back(lone: Rig) -> None:
    lone.memory.hold = True
    await claimed(lone, *(message(f"m{i}", SOON_MS) for i in range(100)))
    await lone.at(SOON_MS)
    lone.step_ms = -60_000
    lone.scanner.wake_all()
    await lone.quiet()
    for word in ("n", "o"):
        lone.memory.confirm()
        await claimed(lone, *(message(f"{word}{i}", lone.store_ms + 10) for i in range(100)))
        await lone.at(lone.now_ms + 10)
        assert lone.memory.held[-1].id.startswith(word) and len(lone.memory.held) == 100
        await lone.at(lone.now_ms + 1)


# bounds


async def test_wheel_and_window_are_never_exceeded_in_messages(rig_of: RigFactory) -> None:
    async with rig_of(wheel_messages=50, window=10) as rig:
        rig.memory.hold = True
        await rig.schedule(*(message(f"m{i}", NOW_MS - 500 + i) for i in range(500)))
        rig.scanner.wake_all()
        while len(rig.memory.published) < 500:
            await rig.quiet()
            in_flight = [len(await rig.raw("mirror", number)) for number in rig.sessions]
            assert sum(in_flight) <= 50 + 10
            assert 0 < len(rig.memory.held) <= 10
            rig.memory.confirm(3)
        assert len(rig.memory.taken) == 500


async def test_wheel_and_window_exceed_their_bytes_by_at_most_one_message_a_bucket(
    rig_of: RigFactory,
) -> None:
    body = b"x" * 872  # 1000 bytes with what a record is charged
    async with rig_of(wheel_bytes=20_000, window_bytes=8_000) as rig:
        rig.memory.hold = True
        await rig.schedule(*(message(f"m{i}", NOW_MS - 500 + i, body=body) for i in range(200)))
        rig.scanner.wake_all()
        while len(rig.memory.published) < 200:
            await rig.quiet()
            in_flight = [len(await rig.raw("mirror", number)) for number in rig.sessions]
            assert sum(in_flight) <= 20 + len(rig.sessions) + 8
            assert 0 < len(rig.memory.held) <= 8
            rig.memory.confirm(2)
        assert len(rig.memory.taken) == 200


async def test_claims_are_paced_while_more_messages_become_due_soon(lone: Rig) -> None:
    await lone.schedule(*(message(f"m{i}", NOW_MS + 10 * i) for i in range(1000)))
    lone.scanner.wake_all()
    lone.store.sent.clear()
    await lone.live_until(NOW_MS + 10_000)
    assert len(lone.memory.taken) == 1000
    assert lone.store.sent.count("claim") <= 10_000 / (2000 / 4) + 2


# what happens to a message on the wheel


async def test_a_message_cancelled_on_the_wheel_is_never_delivered(rig: Rig) -> None:
    await claimed(rig, *(message(id, SOON_MS) for id in "xyz"))
    assert await rig.client.cancel("y") == "cancelled"
    await rig.live_until(SOON_MS + 5000)
    assert sorted(rig.memory.ids) == ["x", "z"]
    assert sum(e.messages for e in rig.events if isinstance(e, Revoked)) == 1


async def test_a_message_rescheduled_on_the_wheel_goes_out_once_at_the_new_time(rig: Rig) -> None:
    await claimed(rig, message("x", SOON_MS), message("y", SOON_MS))
    assert await rig.client.reschedule("x", at=when(SOON_MS + 700)) == "rescheduled"
    assert await rig.client.reschedule("y", at=when(SOON_MS - 50)) == "rescheduled"
    rig.scanner.wake_all()
    await rig.live_until(SOON_MS + 5000)
    assert [(p.id, p.at_ms, p.attempt) for p in rig.memory.taken] == [
        ("y", SOON_MS - 50, 1),
        ("x", SOON_MS + 700, 1),
    ]


async def test_a_message_replaced_on_the_wheel_goes_out_once_with_the_new_content(
    rig: Rig,
) -> None:
    await claimed(rig, message("x", SOON_MS, body=b"old"))
    (receipt,) = await rig.client.schedule_many(
        [message("x", SOON_MS + 300, body=b"new")], on_conflict="replace"
    )
    assert receipt == "replaced"
    rig.scanner.wake_all()
    await rig.live_until(SOON_MS + 5000)
    assert [(d.id, d.record.body) for d in rig.memory.published] == [("x", b"new")]
    assert rig.memory.taken[0].at_ms == SOON_MS + 300


async def test_an_id_cancelled_and_scheduled_again_for_the_same_millisecond_goes_out_once(
    lone: Rig,
) -> None:
    await claimed(lone, message("x", SOON_MS, body=b"old"))
    await lone.client.cancel("x")
    await claimed(lone, message("x", SOON_MS, body=b"new"))
    await lone.live_until(SOON_MS + 5000)
    assert [d.record.body for d in lone.memory.published] == [b"new"]
    assert await lone.state("x") is None


async def test_a_fired_message_can_no_longer_be_cancelled_and_the_answer_says_so(
    lone: Rig,
) -> None:
    await claimed(lone, message("x", SOON_MS))
    await lone.at(SOON_MS - 1)
    assert await lone.client.cancel("x") == "in_flight"
    assert await lone.client.reschedule("x", at=when(SOON_MS + 500)) == "in_flight"
    await lone.at(SOON_MS)
    assert lone.memory.ids == ["x"]


async def test_a_claim_that_arrives_while_a_fire_reports_its_message_as_cancelled_delivers_nothing(
    lone: Rig,
) -> None:
    await claimed(lone, message("early", SOON_MS))
    lone.store.hold("fire")
    await lone.at(SOON_MS)  # the fire is executed; its answer is on its way
    lone.store.hold("claim")
    await claimed(lone, message("x", SOON_MS - 1))
    assert await lone.client.cancel("x") == "cancelled"
    lone.store.let_go("fire")
    await lone.quiet()
    lone.store.let_go("claim")
    await lone.live_until(SOON_MS + 1000)
    assert lone.memory.ids == ["early"]


async def test_messages_fired_while_their_bucket_moves_to_another_node_go_back_to_the_store(
    lone: Rig,
) -> None:
    await claimed(lone, message("x", SOON_MS))
    lone.store.hold("fire")
    await lone.at(SOON_MS)
    (session,) = lone.sessions.values()
    session.is_away = True  # by that node's clock it may not be due yet
    draining = lone.begin(lone.scanner.drain(session))
    lone.store.let_go("fire")
    await lone.until(draining)
    assert lone.memory.ids == []
    assert await lone.state("x") == "delayed"
    assert session.copies == 0


async def test_a_claim_that_arrives_before_the_report_of_a_fire_sent_earlier_delivers_nothing(
    lone: Rig,
) -> None:
    await claimed(lone, message("early", SOON_MS))
    lone.store.hold("claim")
    await claimed(lone, message("x", SOON_MS - 1))
    assert await lone.client.cancel("x") == "cancelled"
    lone.store.hold("fire")
    await lone.at(SOON_MS)
    lone.store.let_go("claim")  # x comes onto the wheel, below the watermark of that fire
    await lone.quiet()
    lone.store.let_go("fire")
    await lone.live_until(SOON_MS + 1000)
    assert lone.memory.ids == ["early"]


# replies that are lost


@pytest.fixture
async def lossy(rig_of: RigFactory, redis_url: str) -> AsyncIterator[tuple[Rig, LossyProxy]]:
    """A rig of one bucket whose scanner reaches Redis through a proxy."""
    with LossyProxy(int(redis_url.rsplit(":", 1)[1].split("/")[0])) as proxy:
        async with rig_of(buckets=1, scanner_url=proxy.url) as rig:
            yield rig, proxy


@pytest.mark.parametrize(
    ("stage", "once"),
    [("claim", False), ("claim", True), ("fire", False), ("fire", True), ("settle", False)],
)
async def test_one_lost_reply_changes_nothing(
    lossy: tuple[Rig, LossyProxy], stage: str, once: bool
) -> None:
    rig, proxy = lossy
    messages = [message(f"m{i}", SOON_MS, at_most_once=once) for i in range(20)]
    await rig.schedule(*messages)
    rig.scanner.wake_all()
    for verb, at_ms in (("claim", NOW_MS), ("fire", SOON_MS), ("settle", SOON_MS)):
        rig.memory.hold = verb == "fire"
        proxy.drop_next_replies(int(verb == stage))
        rig.memory.confirm()
        await rig.at(at_ms)
    assert proxy.dropped == 1
    assert sorted(rig.memory.ids) == sorted(m.id for m in messages if m.id)
    assert {publish.attempt for publish in rig.memory.taken} == {1}
    assert await rig.raw("mirror") == []
    assert rig.lost == []


async def test_a_lost_reply_of_the_settle_before_an_at_most_once_publish_delivers_once(
    lossy: tuple[Rig, LossyProxy],
) -> None:
    rig, proxy = lossy
    await claimed(rig, *(message(f"m{i}", SOON_MS, at_most_once=True) for i in range(20)))
    rig.store.hold("fire")
    await rig.at(SOON_MS)
    proxy.drop_next_replies(1)
    rig.store.let_go("fire")
    await rig.quiet()
    assert proxy.dropped == 1
    assert sorted(rig.memory.ids) == sorted(f"m{i}" for i in range(20))
    assert await rig.raw("mirror") == []


# leases that are lost


async def test_a_lease_lost_between_claim_and_fire_publishes_nothing_and_costs_no_attempt(
    rig_of: RigFactory,
) -> None:
    async with rig_of(buckets=1) as old:
        await claimed(old, message("x", SOON_MS))
        await old.expire(0)
        async with rig_of(buckets=1) as new:
            await old.at(SOON_MS)
            assert [reason for _, reason in old.lost] == ["fire refused"]
            await new.at(SOON_MS)
            await old.quiet()
            assert old.memory.taken == []
            assert [(p.id, p.attempt) for p in new.memory.taken] == [("x", 1)]


async def test_a_lease_known_to_be_lost_between_fire_and_publish_publishes_nothing(
    rig_of: RigFactory,
) -> None:
    async with rig_of(buckets=1) as old:
        await claimed(old, message("x", SOON_MS))
        await old.at(SOON_MS - 1)  # fired
        old.lose(old.sessions[0], "renew refused")
        await old.expire(0)
        await old.at(SOON_MS)
        assert old.memory.taken == []
        async with rig_of(buckets=1) as new:
            await new.at(SOON_MS)
            assert [(p.id, p.due_ms, p.attempt) for p in new.memory.taken] == [("x", SOON_MS, 2)]
            assert [e.fired for e in new.events if isinstance(e, LeaseAcquired)] == [1]


async def test_a_stale_owner_s_settle_is_refused_and_leaves_the_new_owner_s_copy_alone(
    rig_of: RigFactory,
) -> None:
    async with rig_of(buckets=1) as old:
        old.memory.hold = True
        await claimed(old, message("x", SOON_MS), message("y", SOON_MS + 50))
        await old.at(SOON_MS)
        await old.expire(0)
        async with rig_of(buckets=1) as new:
            new.memory.hold = True
            await new.at(SOON_MS)
            old.memory.confirm()
            await old.live_until(SOON_MS + 50)
            assert old.memory.ids == ["x"], "y is the new owner's"
            assert await new.state("x") == "in_flight"
            new.memory.hold = False
            new.memory.confirm()
            await new.live_until(SOON_MS + 50)
            assert new.memory.ids == ["x", "y"]
            assert await new.state("x") is None


async def test_copies_of_a_lost_lease_take_no_room_from_the_next_session(
    rig_of: RigFactory,
) -> None:
    async with rig_of(buckets=1, claim_ahead_ms=60_000, wheel_messages=10) as rig:
        await claimed(rig, *(message(f"m{i}", NOW_MS + 30_000) for i in range(10)))
        await rig.expire(0)
        rig.lose(rig.sessions[0], "renew refused")
        await rig.take(0, "w:2")
        await rig.quiet()
        assert len(await rig.raw("mirror")) == 10, "claimed again, ahead of their time"


# what cannot be delivered


@pytest.mark.parametrize(
    "garbage",
    [
        b"",
        b"x",
        b"\x02" + b"\x00" * 40,
        b"\x01" + b"\x00" * 12,
        b"\x01" + b"\x00" * 12 + b"\xc1\xff",
    ],
    ids=["empty", "short", "other version", "no payload", "no msgpack"],
)
async def test_an_unreadable_record_is_buried_and_its_neighbours_are_delivered(
    lone: Rig, garbage: bytes
) -> None:
    await lone.schedule(*(message(id, SOON_MS) for id in "xyz"))
    await lone.store.redis.hset(keys.bucket_key(lone.namespace, 0, "messages"), "y", garbage)
    lone.scanner.wake_all()
    await lone.live_until(SOON_MS)
    assert sorted(lone.memory.ids) == ["x", "z"]
    assert [id for id, _ in await lone.raw("dead")] == [b"y"]
    assert sum(e.messages for e in lone.events if isinstance(e, Buried)) == 1
    await lone.until(lone.begin(lone.scanner.drain(lone.sessions[0])))


async def test_a_record_without_payload_is_buried_and_its_neighbours_are_delivered(
    lone: Rig,
) -> None:
    await lone.schedule(*(message(id, SOON_MS) for id in "xyz"))
    await lone.store.redis.hdel(keys.bucket_key(lone.namespace, 0, "messages"), "y")
    lone.scanner.wake_all()
    await lone.live_until(SOON_MS)
    assert sorted(lone.memory.ids) == ["x", "z"]
    reason = keys.bucket_key(lone.namespace, 0, "dead_reason")
    assert await lone.store.redis.hgetall(reason) == {b"y": b"payload_missing"}


async def test_a_message_too_late_for_its_ttl_is_buried_as_expired(lone: Rig) -> None:
    await claimed(lone, message("late", SOON_MS, ttl=0.2), message("kept", SOON_MS, ttl=0.3))
    await lone.at(SOON_MS + 250)
    assert lone.memory.ids == ["kept"]
    stored = await lone.client.get("late")
    assert stored is not None
    assert stored.state == "dead"
    assert (stored.reason or "").startswith("expired: 250 ms late")
    assert stored.attempts == 0


@pytest.mark.parametrize("outcome", [UNROUTABLE, TIMED_OUT], ids=["refused", "unknown"])
async def test_a_failed_publish_backs_off_keeps_its_due_time_and_is_buried_in_the_end(
    lone: Rig, outcome: Outcome
) -> None:
    lone.memory.next_outcomes.extend([outcome] * 3)
    await claimed(lone, message("x", SOON_MS), message("y", SOON_MS + 1))
    await lone.live_until(SOON_MS + 10_000)
    # y is given the second outcome, and is delivered when it is tried again.
    assert [(p.id, p.at_ms, p.due_ms, p.attempt) for p in lone.memory.taken] == [
        ("x", SOON_MS, SOON_MS, 1),
        ("y", SOON_MS + 1, SOON_MS + 1, 1),
        ("x", SOON_MS + 1000, SOON_MS, 2),
        ("y", SOON_MS + 1001, SOON_MS + 1, 2),
        ("x", SOON_MS + 3000, SOON_MS, 3),
    ]


async def test_the_last_attempt_buries_with_its_reason_and_a_kick_starts_over(lone: Rig) -> None:
    lone.memory.next_outcomes.extend([TIMED_OUT, TIMED_OUT, UNROUTABLE])
    await claimed(lone, message("x", SOON_MS))
    await lone.live_until(SOON_MS + 10_000)
    assert [p.at_ms - SOON_MS for p in lone.memory.taken] == [0, 1000, 3000]
    stored = await lone.client.get("x")
    assert stored is not None
    assert (stored.state, stored.reason, stored.attempts) == ("dead", UNROUTABLE.reason, 3)
    assert stored.maybe_delivered
    assert await lone.client.kick("x") == "kicked"
    lone.scanner.wake_all()
    await lone.quiet()
    assert lone.memory.taken[-1].attempt == 1
    assert [d.id for d in lone.memory.published] == ["x"]
    assert await lone.state("x") is None


async def test_a_message_that_keeps_killing_its_worker_is_buried(rig_of: RigFactory) -> None:
    for crash in range(3):
        async with rig_of(buckets=1) as rig:
            rig.memory.hold = True
            if crash == 0:
                await claimed(rig, message("x", SOON_MS))
            await rig.at(SOON_MS)
            assert [p.attempt for p in rig.memory.taken] == [crash + 1]
            await rig.expire(0)
    async with rig_of(buckets=1) as rig:
        await rig.at(SOON_MS)
        assert rig.memory.taken == []
        stored = await rig.client.get("x")
        assert stored is not None
        assert stored.reason is not None
        assert stored.reason.startswith("used_up")


# at most once


async def test_an_at_most_once_message_is_settled_before_it_is_published(lone: Rig) -> None:
    lone.memory.hold = True
    await claimed(lone, message("x", SOON_MS, at_most_once=True))
    await lone.at(SOON_MS)
    assert lone.memory.ids == ["x"]
    assert await lone.state("x") is None


async def test_a_crash_between_that_settle_and_its_publish_loses_the_message_and_repeats_nothing(
    rig_of: RigFactory,
) -> None:
    async with rig_of(buckets=1) as old:
        await claimed(old, message("x", SOON_MS, at_most_once=True), message("y", SOON_MS))
        old.store.hold("settle")
        await old.at(SOON_MS)
        assert "x" not in old.memory.ids
        await old.expire(0)
    async with rig_of(buckets=1) as new:
        await new.at(SOON_MS)
        assert "x" not in new.memory.ids


async def test_an_at_most_once_message_that_the_store_no_longer_has_is_not_published(
    lone: Rig,
) -> None:
    await claimed(lone, *(message(id, SOON_MS, at_most_once=True) for id in "xyz"))
    lone.store.hold("fire")
    await lone.at(SOON_MS)
    await lone.store.redis.zrem(keys.bucket_key(lone.namespace, 0, "mirror"), "y")
    lone.store.let_go("fire")
    await lone.quiet()
    assert sorted(lone.memory.ids) == ["x", "z"]
    await lone.until(lone.begin(lone.scanner.drain(lone.sessions[0])))


@pytest.mark.parametrize("outcome", [UNROUTABLE, TIMED_OUT], ids=["refused", "unknown"])
async def test_a_failed_at_most_once_publish_is_dropped_and_reported(
    lone: Rig, outcome: Outcome
) -> None:
    lone.memory.next_outcomes.append(outcome)
    await claimed(lone, message("x", SOON_MS, at_most_once=True))
    await lone.live_until(SOON_MS + 10_000)
    assert lone.memory.ids == ["x"]
    assert [e.reason for e in lone.events if isinstance(e, Dropped)] == [outcome.reason]
    await lone.until(lone.begin(lone.scanner.drain(lone.sessions[0])))


async def test_guarantees_may_be_mixed_within_one_key_and_the_order_stays(
    rig_of: RigFactory,
) -> None:
    async with rig_of(batch_messages=10, window=20) as rig:
        mixed = [
            message(f"m{i:03}", NOW_MS - 300 + i, key="k", at_most_once=i % 3 == 0)
            for i in range(100)
        ]
        await claimed(rig, *mixed)
        await rig.quiet()
        assert rig.memory.ids == [m.id for m in mixed]


# destinations and brokers that take nothing


async def test_messages_of_an_unreachable_broker_are_parked_and_come_back_in_order(
    rig: Rig,
) -> None:
    await claimed(rig, *(message(f"m{i:02}", SOON_MS + i) for i in range(50)))
    await claimed(rig, *(message(f"o{i:02}", SOON_MS + i, "b:q") for i in range(50)))
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
    await claimed(rig, *(message(f"m{i:02}", SOON_MS + i, "memory:gone") for i in range(30)))
    await claimed(rig, *(message(f"o{i:02}", SOON_MS + i, "b:q") for i in range(30)))
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
        await claimed(rig, *messages, message("o", SOON_MS + 5))
        await rig.live_until(SOON_MS + 3_600_000)
        assert rig.memory.ids == ["o"]
        assert {await rig.state(each.id or "") for each in messages} == {"parked"}
        await rig.expire(0)
    async with rig_of(buckets=1) as rig:
        await rig.at(SOON_MS + 4_000_000)
        assert rig.other.ids == [each.id for each in messages]
        assert {publish.attempt for publish in rig.other.taken} == {1}


LETTERS = {"memory": "memory:dead"}


async def test_a_message_given_up_is_settled_once_its_dead_letter_is_confirmed(
    rig_of: RigFactory,
) -> None:
    async with rig_of(buckets=1, max_attempts=2, dead_letters=LETTERS) as rig:
        rig.memory.next_outcomes.extend([UNROUTABLE] * 2)
        await claimed(rig, message("x", SOON_MS, headers={"a": "1"}))
        await rig.live_until(SOON_MS + 5_000)
        (letter,) = rig.memory.published
        assert (letter.id, letter.record.destination) == ("x", "memory:dead")
        assert letter.record.headers == (
            ("a", b"1"),
            ("x-dead-reason", b"unroutable: 312 NO_ROUTE"),
            ("x-dead-destination", b"memory:q"),
            ("x-dead-attempts", b"2"),
        )
        assert await rig.state("x") is None


async def test_a_message_whose_dead_letter_fails_is_buried_with_both_reasons(
    rig_of: RigFactory,
) -> None:
    async with rig_of(buckets=1, max_attempts=1, dead_letters=LETTERS) as rig:
        rig.memory.next_outcomes.extend([UNROUTABLE, TIMED_OUT])
        await claimed(rig, message("x", SOON_MS))
        await rig.live_until(SOON_MS + 5_000)
        stored = await rig.client.get("x")
        assert stored is not None
        assert (stored.state, stored.attempts, stored.maybe_delivered) == ("dead", 1, True)
        first, _, then = (stored.reason or "").partition("; ")
        assert first.startswith("unroutable: ") and then.startswith("dead_letter: timeout: ")
        assert len(rig.memory.taken) == 2


async def test_a_crash_before_a_dead_letter_is_confirmed_leaves_the_message_in_the_dead_set(
    rig_of: RigFactory,
) -> None:
    async with rig_of(buckets=1, max_attempts=1, dead_letters=LETTERS) as rig:
        rig.memory.next_outcomes.append(UNROUTABLE)
        rig.memory.hold = True
        await claimed(rig, message("x", SOON_MS))
        await rig.at(SOON_MS)
        rig.memory.confirm(1)
        await rig.quiet()
        assert await rig.state("x") == "in_flight"
        assert len(rig.memory.taken) == 2
        await rig.expire(0)
    async with rig_of(buckets=1, max_attempts=1, dead_letters=LETTERS) as rig:
        await rig.at(SOON_MS + 5_000)
        assert await rig.state("x") == "dead"


async def test_the_dead_set_is_trimmed_to_its_bounds_a_few_at_a_time_and_this_is_reported(
    lone: Rig,
) -> None:
    messages = [message(f"m{i:03}", SOON_MS + i, ttl=0.001) for i in range(250)]
    lone.memory.unavailable = "away"
    await claimed(lone, *messages)
    await lone.at(SOON_MS + 400)
    lone.memory.unavailable = None
    await lone.at(SOON_MS + 10_000)
    assert (await lone.client.stats()).dead == 250
    await lone.scanner.trim(120, None, buckets=1)
    assert (await lone.client.stats()).dead == 150
    await lone.scanner.trim(120, None, buckets=1)
    stats = await lone.client.stats()
    assert (stats.dead, stats.dead_dropped) == (120, 130)
    assert [e.messages for e in lone.events if isinstance(e, DeadDropped)] == [100, 30]
    await lone.scanner.trim(None, 10**9, buckets=1)
    assert (await lone.client.stats()).dead == 120


async def test_a_silent_broker_delays_no_other_destination(rig_of: RigFactory) -> None:
    async with rig_of(window=20) as rig:
        rig.memory.hold = True
        await claimed(rig, *(message(f"m{i:03}", SOON_MS + i) for i in range(100)))
        await claimed(rig, *(message(f"o{i:03}", SOON_MS + 5 * i, "b:q") for i in range(400)))
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
        await schedule_all(rig, slow)
        await claimed(rig, *(message(f"o{n:03}", SOON_MS + 5 * n, "b:q") for n in range(400)))
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


# one key's order, whatever was parked


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


async def schedule_all(rig: Rig, messages: list[Message]) -> None:
    for first in range(0, len(messages), 1000):
        await rig.schedule(*messages[first : first + 1000])
    rig.scanner.wake_all()


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
        monkeypatch.setattr("delaybridge.scan.parked._KNOWN", known)
        return rig_of(buckets=1, **options)

    return lone_rig


@pytest.mark.parametrize("options", SIZES, ids=str)
async def test_one_key_keeps_its_order_when_its_broker_comes_back_while_others_fall_due(
    lone_rig_of: RigFactory, options: dict[str, int]
) -> None:
    async with lone_rig_of(**options) as rig:
        messages = of_one_key(MANY + LATER)
        await schedule_all(rig, messages)
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
    await claimed(lone, message("x", SOON_MS, key="k"), message("y", SOON_MS + 3, key="k"))
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
    await claimed(lone, *messages[:5])
    lone.memory.unavailable = "not_connected"
    await lone.at(SOON_MS + 5)
    lone.store.hold("claim")
    await claimed(lone, *messages[5:])
    lone.memory.unavailable = None
    await lone.at(SOON_MS + 20)
    lone.store.let_go("claim")
    await lone.quiet()
    assert_all_in_order(lone, messages)


async def test_while_parked_messages_come_back_the_scanner_makes_no_useless_call(lone: Rig) -> None:
    await claimed(lone, message("x", SOON_MS))
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
    await schedule_all(lone, of_one_key(MANY + LATER))
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
async def test_one_key_keeps_its_order_when_its_broker_was_silent(
    lone_rig_of: RigFactory, options: dict[str, int]
) -> None:
    async with lone_rig_of(**{"window": 200, **options}) as rig:
        messages = of_one_key(MANY + LATER)
        await schedule_all(rig, messages)
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
async def test_one_key_keeps_its_order_while_its_destination_is_probed(
    lone_rig_of: RigFactory, options: dict[str, int]
) -> None:
    async with lone_rig_of(**options) as rig:
        messages = of_one_key(MANY + LATER)
        await schedule_all(rig, messages)
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
        await schedule_all(old, messages)
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
    await schedule_all(lone, messages)
    await schedule_all(lone, of_one_key(MANY + LATER, destination="b:q"))
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
            await schedule_all(rig, each)
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
        for first in range(0, 5000, 1000):
            await old.schedule(*(message(f"m{first + i}", NOW_MS - 1) for i in range(1000)))
        old.scanner.wake_all()
        await old.quiet()
        assert len(await old.raw("parked")) == 5000
        await old.expire(0)
    async with rig_of(**options) as new:
        new.memory.unavailable = "not_connected"
        await new.live_until(NOW_MS + 10_000)
        assert new.store.sent.count("unpark") <= 40
        new.memory.unavailable = None
        await new.quiet()
        assert len(new.memory.taken) == 5000


# drain


async def test_a_drain_puts_back_unfired_messages_untouched_and_settles_the_rest(
    lone: Rig,
) -> None:
    lone.memory.hold = True
    await claimed(lone, *(message(f"m{i}", SOON_MS + i, priority=i) for i in range(10)))
    assert len(await lone.raw("mirror")) == 10
    await lone.live_until(SOON_MS + 4)
    draining = lone.begin(lone.scanner.drain(lone.sessions[0]))
    lone.memory.hold = False
    lone.memory.confirm()
    await lone.until(draining)
    fired = set(lone.memory.ids)
    assert await lone.raw("mirror") == []
    left = {f"m{i}": SOON_MS + i + (255 - i) / 256 for i in range(10) if f"m{i}" not in fired}
    assert left
    assert {id.decode(): score for id, score in await lone.raw("due")} == left
    assert await lone.store.redis.exists(keys.bucket_key(lone.namespace, 0, "attempts")) == 0


async def test_a_drain_waits_for_the_broker_s_answers_and_until_the_store_is_told(
    lone: Rig,
) -> None:
    lone.memory.hold = True
    await claimed(lone, message("x", SOON_MS))
    await lone.at(SOON_MS)
    draining = lone.begin(lone.scanner.drain(lone.sessions[0]))
    await lone.at(SOON_MS + 1000)
    assert not draining.done()
    lone.memory.confirm()
    await lone.until(draining)
    assert await lone.state("x") is None


async def test_a_claim_under_way_when_a_drain_begins_is_put_back(lone: Rig) -> None:
    await lone.schedule(*(message(f"m{i}", SOON_MS) for i in range(5)))
    lone.store.hold("claim")
    lone.scanner.wake_all()
    await lone.quiet()
    assert len(await lone.raw("mirror")) == 5
    draining = lone.begin(lone.scanner.drain(lone.sessions[0]))
    lone.store.let_go("claim")
    await lone.until(draining)
    assert len(await lone.raw("due")) == 5
    await lone.at(SOON_MS)
    assert lone.memory.taken == []


# the loop's own health


async def test_a_scanner_that_does_not_fire_its_first_message_is_noticed(lone: Rig) -> None:
    await claimed(lone, message("x", SOON_MS), message("y", SOON_MS + 50))
    lone.store.hold("fire")
    await lone.at(SOON_MS)
    await lone.at(SOON_MS + 50)
    lone.scanner.check_moving(1000)
    await lone.at(SOON_MS + 1100)
    lone.scanner.check_moving(1000)
    with pytest.raises(RuntimeError, match="stuck"):
        await lone.scanner.run()
    lone.scanner.failure = None


async def test_a_scanner_whose_first_message_waits_for_room_is_not_stuck_while_its_broker_answers(
    rig_of: RigFactory,
) -> None:
    async with rig_of(window=4) as rig:
        rig.memory.hold = True
        await claimed(rig, *(message(f"m{n}", SOON_MS, key=f"{n % 2}") for n in range(80)))
        for now_ms in range(SOON_MS, SOON_MS + 12_000, 400):
            await rig.at(now_ms)
            rig.memory.confirm(1)
            rig.scanner.check_moving(1000)
        assert rig.scanner.failure is None


async def test_it_is_idle_only_when_nothing_is_due_or_on_its_way(lone: Rig) -> None:
    assert lone.scanner.is_idle()
    lone.memory.hold = True
    await claimed(lone, message("x", SOON_MS))
    assert lone.scanner.is_idle(), "due later"
    await lone.at(SOON_MS)
    assert not lone.scanner.is_idle(), "unconfirmed"
    lone.memory.confirm()
    await lone.quiet()
    assert lone.scanner.is_idle()
    assert sum(e.messages for e in lone.events if isinstance(e, Claimed)) == 1


async def test_it_is_not_idle_before_it_has_looked_into_every_bucket(rig_of: RigFactory) -> None:
    rig = rig_of(buckets=1)
    await rig.schedule(message("x", NOW_MS - 1))
    rig.store.hold("reclaim")
    async with rig:
        assert not rig.scanner.is_idle()
        rig.store.let_go("reclaim")
        session = rig.sessions[0]
        while not session.ready:
            assert not rig.scanner.is_idle()
            await asyncio.sleep(0)
        assert not rig.scanner.is_idle()


async def test_a_repeated_claim_that_is_empty_by_now_does_not_stop_its_bucket(
    redis_url: str, namespace: str
) -> None:
    async with Rig(redis_url, namespace, buckets=1) as rig:
        session = rig.sessions[0]
        await rig.schedule(message("x", NOW_MS + 1000))
        claim = session.bucket.claim(
            *session.owner,
            session.last_claim,
            ahead_ms=2000,
            limit=10,
            max_bytes=1000,
        )
        claimed = await rig.store.run_one(claim)  # its answer never reaches the scanner
        assert claimed is not None
        assert claimed.ids == [b"x"]
        assert await rig.client.cancel("x") == "cancelled"
        await rig.schedule(message("y", NOW_MS + 1000))
        rig.scanner.wake_all()
        await asyncio.wait_for(rig.at(NOW_MS + 1000), DEADLINE_S)
        assert rig.memory.ids == ["y"]
