"""A bucket of which one key came back as it was long ago, and contradicts the others."""

from __future__ import annotations

import pytest

from delaybridge.store.namespace.rules import Rule
from delaybridge.store.protocol.keys import bucket_key
from tests.rigs.mending import compare, counts, look, mended, old, retake
from tests.rigs.outcomes import NACK, UNROUTABLE
from tests.rigs.scanner import NOW_MS, SOON_MS, Rig, RigFactory, message

FAR_MS = NOW_MS + 3_600_000
LATER_MS = FAR_MS + 60_000


async def mend(rig: Rig) -> None:
    """The owner notices, at the latest in its look, and mends."""
    if await compare(rig):
        assert not await look(rig)
        await retake(rig)
    assert await compare(rig)
    assert await look(rig)


async def die(rig: Rig, id: str, outcome: object = UNROUTABLE) -> None:
    rig.memory.next_outcomes.extend([outcome] * 3)
    rig.scanner.wake_all()
    await rig.live_until(NOW_MS + 60_000)
    assert await rig.state(id) == "dead"
    rig.memory.taken.clear()


@pytest.mark.parametrize("name", ["due", "messages"])
async def test_of_two_due_times_the_later_one_counts(lone: Rig, name: str) -> None:
    await lone.send(message("x", FAR_MS), message("y", FAR_MS))
    async with old(lone, name):
        answer = await lone.client.reschedule("x", at=message("x", LATER_MS).at)
        assert answer == "rescheduled"
    await mend(lone)
    await lone.live_until(LATER_MS)
    assert [(each.id, each.at_ms) for each in lone.memory.taken] == [("y", FAR_MS), ("x", LATER_MS)]


@pytest.mark.parametrize("score", [2**52, float("inf"), -1.0])
async def test_what_is_no_due_time_does_not_count(lone: Rig, score: float) -> None:
    await lone.send(message("x", FAR_MS))
    await lone.store.redis.zadd(bucket_key(lone.namespace, 0, "due"), {"x": score})
    if score > 0:
        await mend(lone)
    await lone.live_until(FAR_MS)
    assert [(each.id, each.at_ms) for each in lone.memory.taken] == [("x", FAR_MS)]


async def test_old_entries_beside_the_present_ones_are_dropped(lone: Rig) -> None:
    await lone.send(message("moved", FAR_MS), message("parked", FAR_MS + 1))
    async with old(lone, "due"):
        answer = await lone.client.reschedule("moved", at=message("moved", LATER_MS).at)
        assert answer == "rescheduled"
    parked = bucket_key(lone.namespace, 0, "parked")
    await lone.store.redis.zadd(parked, {"parked": FAR_MS + 1})
    assert not await compare(lone)
    scores = {id: int(score) for id, score in await lone.raw("due")}
    assert scores == {b"moved": LATER_MS, b"parked": FAR_MS + 1}
    assert await lone.raw("parked") == []


async def test_what_died_is_not_published_again_though_due_is_old(lone: Rig) -> None:
    await lone.schedule(message("x", NOW_MS + 5000), message("y", FAR_MS))
    async with old(lone, "due"):
        await die(lone, "x")
    await mend(lone)
    await lone.live_until(NOW_MS + 120_000)
    assert lone.memory.ids == []
    stored = await lone.client.get("x")
    assert stored is not None
    assert (stored.state.value, stored.reason, stored.attempts) == ("dead", "unroutable: 312", 3)


async def test_what_expired_just_before_it_was_due_again_stays_dead(rig_of: RigFactory) -> None:
    async with rig_of(buckets=1, fire_lead_ms=100) as lone:
        lone.memory.next_outcomes.append(UNROUTABLE)  # tried again a second later
        await lone.send(message("x", SOON_MS, ttl="500ms"), message("y", FAR_MS))
        await lone.live_until(SOON_MS + 500)
        async with old(lone, "mirror"):
            await lone.live_until(SOON_MS + 990)
            assert await lone.state("x") == "dead"
        await mend(lone)
        await lone.live_until(NOW_MS + 120_000)
        assert (await lone.state("x"), lone.memory.ids) == ("dead", ["x"])


async def test_what_was_kicked_lives_and_may_have_been_delivered_though_dead_is_old(
    lone: Rig,
) -> None:
    await lone.schedule(message("x", NOW_MS), message("y", NOW_MS + 7_200_000))
    await die(lone, "x", NACK)
    async with old(lone, "dead", "dead_reason"):
        assert await lone.client.dead.kick("x") == "kicked"
        # The client's calls have the server's time, and the scanner another.
        await lone.client.reschedule("x", at=message("x", FAR_MS).at)
    await mend(lone)
    assert await lone.state("x") == "delayed"
    assert await lone.client.cancel("x") == "cancelled_maybe_delivered"


async def test_what_was_cancelled_does_not_come_though_messages_is_old(lone: Rig) -> None:
    await lone.send(message("x", FAR_MS), message("y", FAR_MS), message("z", FAR_MS))
    async with old(lone, "messages"):
        assert await lone.client.cancel("x") == "cancelled"
        replaced = message("z", FAR_MS, body=b"new")
        await lone.client.schedule_message(replaced, on_conflict="replace")
        assert await lone.client.cancel("z") == "cancelled"
    await mend(lone)
    assert (await mended(lone)).other == 2
    await lone.live_until(FAR_MS)
    assert lone.memory.ids == ["y"]


async def test_what_was_cancelled_does_not_come_for_the_next_message_of_its_id(lone: Rig) -> None:
    await lone.send(message("x", FAR_MS), message("y", FAR_MS), message("z", FAR_MS))
    new = [message(id, LATER_MS, body=b"new") for id in ("x", "z")]
    async with old(lone, "messages"):
        assert await lone.client.cancel("x") == "cancelled"
        assert await lone.client.schedule_message(new[0]) == "created"
        assert await lone.client.schedule_message(new[1], on_conflict="replace") == "replaced"
    await mend(lone)
    assert (await counts(lone)).bare == 2, "the new ones are lost with their records, and told"
    await lone.live_until(LATER_MS)
    assert lone.memory.ids == ["y"]


async def test_what_was_sent_at_most_once_does_not_come_again_though_messages_is_old(
    lone: Rig,
) -> None:
    await lone.send(message("x", SOON_MS, at_most_once=True), message("y", SOON_MS))
    async with old(lone, "messages"):
        await lone.live_until(SOON_MS)
        assert sorted(lone.memory.ids) == ["x", "y"]
    await mend(lone)
    await lone.live_until(FAR_MS)
    assert sorted(lone.memory.ids) == ["x", "y", "y"], "at least once: nobody knows of the first"


async def test_a_copy_on_a_wheel_is_revoked_though_an_old_due_lists_it(lone: Rig) -> None:
    await lone.send(message("x", SOON_MS), message("y", SOON_MS))
    async with old(lone, "due"):
        await lone.quiet()
        assert [id for id, _ in await lone.raw("mirror")] == [b"x", b"y"]
    assert await lone.client.cancel("x") == "cancelled"
    await lone.at(SOON_MS)
    assert lone.memory.ids == ["y"]


async def test_an_old_entry_in_parked_does_not_outlive_a_replacement(lone: Rig) -> None:
    await lone.steer({"memory": Rule(paused=True)})
    await lone.claim(message("x", NOW_MS))
    await lone.live_until(NOW_MS + 10)
    assert len(await lone.raw("parked")) == 1
    async with old(lone, "parked"):
        later = lone.client.reschedule("x", at=message("x", SOON_MS).at)
        assert await later == "rescheduled"
        lone.scanner.wake_all()
        await lone.quiet()
        assert len(await lone.raw("mirror")) == 1
    other = message("x", FAR_MS, body=b"other")
    assert await lone.client.schedule_message(other, on_conflict="replace") == "replaced"
    assert await lone.raw("parked") == []


async def test_what_was_sent_at_most_once_goes_once_though_due_is_old(lone: Rig) -> None:
    await lone.send(message("x", SOON_MS, at_most_once=True), message("y", SOON_MS))
    async with old(lone, "due"):
        await lone.quiet()
    lone.scanner.wake_all()
    await lone.quiet()
    await lone.at(SOON_MS)
    assert lone.memory.ids.count("x") == 1
    assert await lone.raw("mirror") == []


async def take_out(rig: Rig, id: str, how: str) -> None:
    """Somebody wants the message out of the dead set; it is not done until it is mended."""
    session = rig.sessions[0]
    if how == "trim":
        trim = session.bucket.trim(*session.owner, keep=0, age_ms=None)
        assert (await rig.store.run_one(trim)).dropped == 0
    else:
        assert await getattr(rig.client.dead, how)(id) == "in_flight"


@pytest.mark.parametrize("how", ["trim", "discard", "kick"])
async def test_what_lives_is_not_taken_for_dead_though_dead_is_old(lone: Rig, how: str) -> None:
    await lone.schedule(message("x", NOW_MS), message("y", NOW_MS + 7_200_000))
    await die(lone, "x")
    async with old(lone, "dead", "dead_reason"):
        assert await lone.client.dead.kick("x") == "kicked"
        # The client's calls have the server's time, and the scanner another.
        await lone.client.reschedule("x", at=message("x", FAR_MS).at)
    await take_out(lone, "x", how)
    await mend(lone)
    await lone.live_until(FAR_MS)
    assert [(each.id, each.at_ms) for each in lone.memory.taken] == [("x", FAR_MS)]


@pytest.mark.parametrize("how", ["trim", "discard", "kick"])
async def test_what_died_is_not_revived_by_who_ends_it_though_due_is_old(
    lone: Rig, how: str
) -> None:
    await lone.schedule(message("x", NOW_MS + 5000), message("y", FAR_MS))
    async with old(lone, "due"):
        await die(lone, "x")
    await take_out(lone, "x", how)
    await mend(lone)
    await lone.live_until(NOW_MS + 120_000)
    assert (await lone.state("x"), lone.memory.ids) == ("dead", [])


@pytest.mark.parametrize("how", ["discard", "kick"])
async def test_for_what_may_live_the_quarantined_ones_of_its_id_do_not_go(
    lone: Rig, how: str
) -> None:
    await lone.schedule(message("x", FAR_MS))
    bucket = lone.sessions[0].bucket
    await lone.store.run_one(bucket.quarantine([(b"1234", "x~1", b"payload", "ingress:foreign x")]))
    dead = bucket_key(lone.namespace, 0, "dead")
    await lone.store.redis.zadd(dead, {"x": NOW_MS})
    assert await getattr(lone.client.dead, how)("x") == "in_flight"
    assert await getattr(lone.client.dead, f"{how}_many")(["x", "none"]) == ["in_flight", "unknown"]
    assert {id for id, _ in await lone.raw("dead")} == {b"x", b"x~1"}
    assert [(id, int(score)) for id, score in await lone.raw("due")] == [(b"x", FAR_MS)]
