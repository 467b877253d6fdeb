"""The scanner on a real Redis, with time in the test's hands and a broker in memory."""

from __future__ import annotations

import asyncio
import random

import pytest

from delaybridge.events import Claimed
from delaybridge.store.protocol import keys, verbs
from tests.rigs.scanner import NOW_MS, SOON_MS, Rig, RigFactory, message
from tests.rigs.waiting import DEADLINE_S

BACKLOG = 400


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
        await rig.send(*(message(id, due_ms) for id, due_ms in due.items()))
        await rig.live_until(NOW_MS + 5000)
        assert {publish.id: publish.at_ms for publish in rig.memory.taken} == due
        assert len(rig.memory.taken) == len(due)


async def test_a_fired_message_does_not_go_out_a_millisecond_early(lone: Rig) -> None:
    await lone.claim(message("x", SOON_MS))
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
    await rig.claim(*order)
    await rig.live_until(SOON_MS + 1)
    order.sort(key=lambda m: (m.at, -m.priority))
    ranks = {m.id: (m.at, -m.priority) for m in order}
    assert [ranks[id] for id in rig.memory.ids] == [ranks[m.id] for m in order]


async def test_messages_of_one_key_keep_their_order_in_a_backlog_over_many_batches(
    rig_of: RigFactory,
) -> None:
    async with rig_of(batch_messages=7, window=10) as rig:
        dues = random.Random(7).sample(range(NOW_MS - 5000, NOW_MS + 50), BACKLOG)
        await rig.claim(*(message(f"m{due_ms}", due_ms, key="k") for due_ms in dues))
        await rig.live_until(NOW_MS + 50)
        assert rig.memory.ids == [f"m{due_ms}" for due_ms in sorted(dues)]


@pytest.mark.parametrize(
    "options",
    [{}, {"batch_messages": 9}, {"wheel_messages": 40}, {"wheel_messages": 40, "window": 20}],
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
        await rig.claim(*(message(id, SOON_MS) for id in ids))
        rig.store.hold("fire")
        await rig.at(SOON_MS)
        rig.store.let_go("fire")
        rig.store.hold("fire")
        await rig.quiet()
        first = {verbs.bucket_of(id.encode(), 4) for id in rig.memory.ids}
        assert 0 < len(first) < 4
        whole = [id for id in ids if verbs.bucket_of(id.encode(), 4) in first]
        assert sorted(rig.memory.ids) == sorted(whole), "all that the first fires covered"
        rig.store.let_go("fire")
        await rig.quiet()
        assert sorted(rig.memory.ids) == sorted(ids)
        assert rig.store.sent.count("fire") == 4


async def test_wheel_and_window_are_never_exceeded_in_messages(rig_of: RigFactory) -> None:
    async with rig_of(wheel_messages=50, window=10) as rig:
        rig.memory.hold = True
        await rig.send(*(message(f"m{i}", NOW_MS - 500 + i) for i in range(500)))
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
        await rig.send(*(message(f"m{i}", NOW_MS - 500 + i, body=body) for i in range(200)))
        while len(rig.memory.published) < 200:
            await rig.quiet()
            in_flight = [len(await rig.raw("mirror", number)) for number in rig.sessions]
            assert sum(in_flight) <= 20 + len(rig.sessions) + 8
            assert 0 < len(rig.memory.held) <= 8
            rig.memory.confirm(2)
        assert len(rig.memory.taken) == 200


async def test_claims_are_paced_while_more_messages_become_due_soon(lone: Rig) -> None:
    await lone.send(*(message(f"m{i}", NOW_MS + 10 * i) for i in range(1000)))
    lone.store.sent.clear()
    await lone.live_until(NOW_MS + 10_000)
    assert len(lone.memory.taken) == 1000
    assert lone.store.sent.count("claim") <= 10_000 / (2000 / 4) + 2


async def test_a_drain_puts_back_unfired_messages_untouched_and_settles_the_rest(lone: Rig) -> None:
    lone.memory.hold = True
    await lone.claim(*(message(f"m{i}", SOON_MS + 3 * i, priority=i) for i in range(10)))
    assert len(await lone.raw("mirror")) == 10
    await lone.live_until(SOON_MS + 4)
    draining = lone.begin(lone.scanner.drain(lone.sessions[0]))
    lone.memory.hold = False
    lone.memory.confirm()
    await lone.until(draining)
    fired = set(lone.memory.ids)
    assert await lone.raw("mirror") == []
    left = {f"m{i}": SOON_MS + 3 * i + (255 - i) / 256 for i in range(10) if f"m{i}" not in fired}
    assert left
    assert {id.decode(): score for id, score in await lone.raw("due")} == left
    assert await lone.store.redis.exists(keys.bucket_key(lone.namespace, 0, "attempts")) == 0


async def test_a_drain_waits_for_the_broker_s_answers_and_until_the_store_is_told(
    lone: Rig,
) -> None:
    lone.memory.hold = True
    await lone.claim(message("x", SOON_MS))
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


async def test_a_scanner_that_does_not_fire_its_first_message_is_noticed(lone: Rig) -> None:
    await lone.claim(message("x", SOON_MS), message("y", SOON_MS + 50))
    lone.store.hold("fire")
    await lone.at(SOON_MS)
    await lone.at(SOON_MS + 50)
    lone.scanner.check_moving(1000)
    await lone.at(SOON_MS + 1100)
    lone.scanner.check_moving(1000)
    assert lone.scanner.calls.failure is not None  # else it runs for ever
    with pytest.raises(RuntimeError, match="stuck"):
        await lone.scanner.run()
    lone.scanner.calls.failure = None


async def test_a_scanner_whose_first_message_waits_for_room_is_not_stuck_while_its_broker_answers(
    rig_of: RigFactory,
) -> None:
    async with rig_of(window=4) as rig:
        rig.memory.hold = True
        await rig.claim(*(message(f"m{n}", SOON_MS, key=f"{n % 2}") for n in range(80)))
        for now_ms in range(SOON_MS, SOON_MS + 12_000, 400):
            await rig.at(now_ms)
            rig.memory.confirm(1)
            rig.scanner.check_moving(1000)
        assert rig.scanner.calls.failure is None


async def test_it_is_idle_only_when_nothing_is_due_or_on_its_way(lone: Rig) -> None:
    assert lone.scanner.is_idle()
    lone.memory.hold = True
    await lone.claim(message("x", SOON_MS))
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
    rig_of: RigFactory,
) -> None:
    async with rig_of(buckets=1) as rig:
        session = rig.sessions[0]
        await rig.schedule(message("x", NOW_MS + 1000))
        claim = session.bucket.claim(
            *session.owner, session.claims.last, ahead_ms=2000, limit=10, max_bytes=1000
        )
        claimed = await rig.store.run_one(claim)  # its answer never reaches the scanner
        assert claimed is not None
        assert claimed.ids == [b"x"]
        assert await rig.client.cancel("x") == "cancelled"
        await rig.send(message("y", NOW_MS + 1000))
        await asyncio.wait_for(rig.at(NOW_MS + 1000), DEADLINE_S)
        assert rig.memory.ids == ["y"]
