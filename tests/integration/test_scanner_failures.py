"""What cannot be delivered: attempts, burials, dead letters, and at most once."""

from __future__ import annotations

import pytest

from delaybridge.events import Buried, DeadDropped, Dropped
from delaybridge.publish import Outcome
from delaybridge.store.protocol import keys
from tests.rigs.outcomes import NACK, UNROUTABLE
from tests.rigs.scanner import NOW_MS, SOON_MS, Rig, RigFactory, message


@pytest.mark.parametrize(
    "garbage",
    [
        b"",
        b"x",
        b"\x02" + b"\x00" * 40,
        b"\x01" + b"\x00" * 12,
        b"\x01" + b"\x00" * 12 + b"\xc1\xff",
        None,
    ],
    ids=["empty", "short", "other version", "no payload", "no msgpack", "missing"],
)
async def test_an_unreadable_record_is_buried_and_its_neighbours_are_delivered(
    lone: Rig, garbage: bytes | None
) -> None:
    await lone.schedule(*(message(id, SOON_MS) for id in "xyz"))
    messages = keys.bucket_key(lone.namespace, 0, "messages")
    if garbage is None:
        await lone.store.redis.hdel(messages, "y")
    else:
        await lone.store.redis.hset(messages, "y", garbage)
    lone.scanner.wake_all()
    await lone.live_until(SOON_MS)
    assert sorted(lone.memory.ids) == ["x", "z"]
    assert [id for id, _ in await lone.raw("dead")] == [b"y"]
    if garbage is None:  # the store buries it
        reason = keys.bucket_key(lone.namespace, 0, "dead_reason")
        assert await lone.store.redis.hgetall(reason) == {b"y": b"payload_missing"}
    else:
        assert sum(e.messages for e in lone.events if isinstance(e, Buried)) == 1
    await lone.until(lone.begin(lone.scanner.drain(lone.sessions[0])))


async def test_a_message_too_late_for_its_ttl_is_buried_as_expired(lone: Rig) -> None:
    await lone.claim(message("late", SOON_MS, ttl=0.2), message("kept", SOON_MS, ttl=0.3))
    await lone.at(SOON_MS + 250)
    assert lone.memory.ids == ["kept"]
    stored = await lone.client.get("late")
    assert stored is not None
    assert stored.state == "dead"
    assert (stored.reason or "").startswith("expired: 250 ms late")
    assert stored.attempts == 0


@pytest.mark.parametrize("outcome", [UNROUTABLE, NACK], ids=["refused", "unknown"])
async def test_a_failed_publish_backs_off_keeps_its_due_time_and_is_buried_in_the_end(
    lone: Rig, outcome: Outcome
) -> None:
    lone.memory.next_outcomes.extend([outcome] * 3)
    await lone.claim(message("x", SOON_MS), message("y", SOON_MS + 1))
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
    lone.memory.next_outcomes.extend([NACK, NACK, UNROUTABLE])
    await lone.claim(message("x", SOON_MS))
    await lone.live_until(SOON_MS + 10_000)
    assert [p.at_ms - SOON_MS for p in lone.memory.taken] == [0, 1000, 3000]
    stored = await lone.client.get("x")
    assert stored is not None
    assert (stored.state, stored.reason, stored.attempts) == ("dead", UNROUTABLE.reason, 3)
    assert stored.maybe_delivered
    assert await lone.client.dead.kick("x") == "kicked"
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
                await rig.claim(message("x", SOON_MS))
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


async def test_an_at_most_once_message_is_settled_before_it_is_published(lone: Rig) -> None:
    lone.memory.hold = True
    await lone.claim(message("x", SOON_MS, at_most_once=True))
    await lone.at(SOON_MS)
    assert lone.memory.ids == ["x"]
    assert await lone.state("x") is None


async def test_a_crash_between_that_settle_and_its_publish_loses_the_message_and_repeats_nothing(
    rig_of: RigFactory,
) -> None:
    async with rig_of(buckets=1) as old:
        await old.claim(message("x", SOON_MS, at_most_once=True), message("y", SOON_MS))
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
    await lone.claim(*(message(id, SOON_MS, at_most_once=True) for id in "xyz"))
    lone.store.hold("fire")
    await lone.at(SOON_MS)
    await lone.store.redis.zrem(keys.bucket_key(lone.namespace, 0, "mirror"), "y")
    lone.store.let_go("fire")
    await lone.quiet()
    assert sorted(lone.memory.ids) == ["x", "z"]
    await lone.until(lone.begin(lone.scanner.drain(lone.sessions[0])))


@pytest.mark.parametrize("outcome", [UNROUTABLE, NACK], ids=["refused", "unknown"])
async def test_a_failed_at_most_once_publish_is_dropped_and_reported(
    lone: Rig, outcome: Outcome
) -> None:
    lone.memory.next_outcomes.append(outcome)
    await lone.claim(message("x", SOON_MS, at_most_once=True))
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
        await rig.claim(*mixed)
        await rig.quiet()
        assert rig.memory.ids == [m.id for m in mixed]


LETTERS = {"memory": "memory:dead"}


async def test_a_message_given_up_is_settled_once_its_dead_letter_is_confirmed(
    rig_of: RigFactory,
) -> None:
    async with rig_of(buckets=1, max_attempts=2, dead_letters=LETTERS) as rig:
        rig.memory.next_outcomes.extend([UNROUTABLE] * 2)
        await rig.claim(message("x", SOON_MS, headers={"a": "1"}))
        await rig.live_until(SOON_MS + 5_000)
        (letter,) = rig.memory.published
        assert (letter.id, letter.record.destination) == ("x", "memory:dead")
        assert letter.record.headers == (
            ("a", b"1"),
            ("x-dead-reason", UNROUTABLE.reason.encode()),
            ("x-dead-destination", b"memory:q"),
            ("x-dead-attempts", b"2"),
        )
        assert await rig.state("x") is None


async def test_a_message_whose_dead_letter_fails_is_buried_with_both_reasons(
    rig_of: RigFactory,
) -> None:
    async with rig_of(buckets=1, max_attempts=1, dead_letters=LETTERS) as rig:
        rig.memory.next_outcomes.extend([UNROUTABLE, NACK])
        await rig.claim(message("x", SOON_MS))
        await rig.live_until(SOON_MS + 5_000)
        stored = await rig.client.get("x")
        assert stored is not None
        assert (stored.state, stored.attempts, stored.maybe_delivered) == ("dead", 1, True)
        first, _, then = (stored.reason or "").partition("; ")
        assert first.startswith("unroutable: ") and then.startswith("dead_letter: nack: ")
        assert len(rig.memory.taken) == 2


async def test_a_crash_before_a_dead_letter_is_confirmed_leaves_the_message_in_the_dead_set(
    rig_of: RigFactory,
) -> None:
    async with rig_of(buckets=1, max_attempts=1, dead_letters=LETTERS) as rig:
        rig.memory.next_outcomes.append(UNROUTABLE)
        rig.memory.hold = True
        await rig.claim(message("x", SOON_MS))
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
    await lone.claim(*messages)
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
