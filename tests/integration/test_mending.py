"""A bucket that lost one of its keys: the owner notices, and mends it before it claims."""

from __future__ import annotations

import struct
import time
from collections.abc import Sequence

import pytest

from delaybridge.events import OrphansMended
from delaybridge.message import Message
from delaybridge.publish import CONFIRMED
from delaybridge.store.namespace import orphans
from delaybridge.store.namespace.orphans import SOUND, KeySizes
from delaybridge.store.namespace.rules import Rule
from delaybridge.store.protocol.keys import bucket_key
from delaybridge.store.protocol.verbs import bucket_of
from tests.rigs.crew import BUCKETS, CALM, Arrived, Crew
from tests.rigs.mending import compare, counts, look, lose, mended, retake
from tests.rigs.outcomes import UNROUTABLE
from tests.rigs.scanner import NOW_MS, SOON_MS, Rig, message
from tests.rigs.waiting import until_async

FAR_MS = NOW_MS + 3_600_000
LONG_MS = 2 * 3_600_000  # overdue by over an hour


async def test_messages_come_at_their_time_though_due_vanished(lone: Rig) -> None:
    due = {f"m{n:03}": SOON_MS + 5000 + n for n in range(250)}  # two pages
    await lone.send(*(message(id, due_ms) for id, due_ms in due.items()))
    await lose(lone, "due")
    assert not await compare(lone)
    await lone.live_until(SOON_MS + 6000)
    assert {publish.id: publish.at_ms for publish in lone.memory.taken} == due
    (event,) = (event for event in lone.events if isinstance(event, OrphansMended))
    assert (event.due, event.dead, event.parked, event.bare, event.other) == (250, 0, 0, 0, 0)
    found = await mended(lone)
    assert (found.due, found.at_ms > 0, found.waiting) == (250, True, 0)
    assert await compare(lone)


async def test_nothing_comes_twice_from_a_wheel_though_the_mirror_vanished(lone: Rig) -> None:
    await lone.claim(*(message(f"m{n}", SOON_MS) for n in range(20)))
    assert len(await lone.raw("mirror")) == 20
    await lose(lone, "mirror")
    assert not await compare(lone)
    await lone.live_until(SOON_MS)
    assert sorted(lone.memory.ids) == sorted(f"m{n}" for n in range(20))


async def test_what_was_with_the_broker_may_have_been_delivered(lone: Rig) -> None:
    lone.memory.hold = True
    await lone.claim(message("fired", SOON_MS), message("later", FAR_MS))
    await lone.at(SOON_MS)
    await lose(lone, "mirror", "due")
    assert await lone.client.cancel("fired") == "cancelled_maybe_delivered"
    assert await lone.client.cancel("later") == "cancelled"
    await lone.claim(message("again", lone.now_ms))
    await lose(lone, "mirror")
    lone.memory.hold = False
    assert not await compare(lone)
    assert await lone.client.get("again") is None
    assert lone.memory.ids.count("again") == 2, "at least once: nobody knows how the first ended"


@pytest.mark.parametrize("change", ["cancel", "reschedule", "replace"])
async def test_a_change_of_a_message_in_no_set_voids_its_copy(lone: Rig, change: str) -> None:
    await lone.claim(message("x", SOON_MS), message("y", SOON_MS))
    await lose(lone, "mirror")
    if change == "cancel":
        assert await lone.client.cancel("x") == "cancelled"
    elif change == "reschedule":
        assert await lone.client.reschedule("x", at=message("x", FAR_MS).at) == "rescheduled"
    else:
        other = message("x", FAR_MS, body=b"other")
        receipt = await lone.client.schedule_message(other, on_conflict="replace")
        assert receipt.answer == "replaced"
    await lone.at(SOON_MS)
    assert lone.memory.ids == ["y"]


async def test_dead_messages_stay_dead_with_their_reasons(lone: Rig) -> None:
    lone.memory.next_outcomes.extend([UNROUTABLE] * 3)
    await lone.send(message("x", NOW_MS), message("y", FAR_MS))
    await lone.live_until(NOW_MS + 60_000)
    assert await lone.state("x") == "dead"
    await lose(lone, "dead", "due")
    assert not await compare(lone)
    stored = await lone.client.get("x")
    assert stored is not None
    assert (stored.state.value, stored.reason) == ("dead", "unroutable: 312")
    assert await lone.state("y") == "delayed"
    await lose(lone, "dead_reason")
    assert not await compare(lone)
    stored = await lone.client.get("x")
    assert stored is not None
    assert (stored.state.value, stored.reason) == ("dead", "unknown: its reason was lost")
    await lose(lone, "dead", "messages")
    assert not await compare(lone)
    assert (await counts(lone)).difference == SOUND


async def test_records_that_are_gone_are_told_and_their_ids_can_be_scheduled_again(
    lone: Rig,
) -> None:
    await lone.send(message("x", FAR_MS), message("y", FAR_MS))
    await lose(lone, "messages")
    assert not await compare(lone)
    assert (await mended(lone)).bare == 2
    assert (await counts(lone)).bare == 2
    assert await compare(lone), "dead ones without a record are no contradiction"
    await lone.send(message("x", FAR_MS))
    assert await lone.state("x") == "delayed"
    assert (await counts(lone)).bare == 1
    await lone.client.dead.discard("y")
    assert (await counts(lone)).bare == 0
    assert await compare(lone)
    assert await look(lone)


async def test_equal_losses_hide_from_the_counts_and_not_from_a_look(lone: Rig) -> None:
    await lone.send(message("x", FAR_MS), message("y", FAR_MS))
    redis = lone.store.redis
    await redis.zrem(bucket_key(lone.namespace, 0, "due"), "x")
    await redis.hdel(bucket_key(lone.namespace, 0, "messages"), "y")
    assert await compare(lone)
    assert not await look(lone)
    await retake(lone)
    assert [id for id, _ in await lone.raw("due")] == [b"x"]


async def test_dead_ones_whose_record_was_gone_when_they_were_claimed_are_no_contradiction(
    lone: Rig,
) -> None:
    await lone.schedule(message("x", NOW_MS), message("y", NOW_MS))
    await lone.store.redis.hdel(bucket_key(lone.namespace, 0, "messages"), "x")
    lone.scanner.wake_all()
    await lone.at(NOW_MS + 1)
    assert await lone.state("x") == "dead"
    assert (await counts(lone)).bare == 1
    assert await compare(lone)
    session = lone.sessions[0]
    await lone.store.run_one(session.bucket.trim(*session.owner, keep=0, age_ms=None))
    assert (await counts(lone)).bare == 0
    assert await compare(lone)


# long overdue


GONE = ("due", "parked", "mirror")


async def overdue(
    rig: Rig, many: int, gone: Sequence[str] = GONE, **options: object
) -> Sequence[str]:
    """That many messages are two hours overdue, and in no set."""
    since_ms = time.time_ns() // 1_000_000 - LONG_MS
    ids = [f"{many}-{n:03}-{len(options)}" for n in range(many)]
    await rig.steer({"memory": Rule(paused=True)})
    await rig.schedule(*(message(id, NOW_MS, **options) for id in ids))
    redis, messages = rig.store.redis, bucket_key(rig.namespace, 0, "messages")
    for id in ids:  # they were accepted in time
        record = await redis.hget(messages, id)
        await redis.hset(messages, id, record[:1] + struct.pack(">d", since_ms) + record[9:])
    await lose(rig, *gone)
    return ids


async def test_a_hundred_that_are_long_overdue_are_published(lone: Rig) -> None:
    ids = await overdue(lone, 100)
    assert not await compare(lone)
    await lone.steer({})
    await lone.live_until(NOW_MS + 1000)
    assert sorted(lone.memory.ids) == sorted(ids)


async def test_more_that_are_long_overdue_wait_for_the_operator(lone: Rig) -> None:
    ids = await overdue(lone, 101)
    assert not await compare(lone)
    await lone.steer({})
    found = await mended(lone)
    assert (found.due, found.parked, found.waiting) == (0, 101, 101)
    await retake(lone)
    lone.scanner.wake_all()
    await lone.live_until(NOW_MS + 1000)
    assert lone.memory.ids == []
    assert await compare(lone)
    assert await look(lone)
    for id in ids:
        assert await lone.client.reschedule(id, at=message(id, lone.now_ms).at) == "rescheduled"
    lone.scanner.wake_all()
    await lone.live_until(NOW_MS + 2000)
    assert sorted(lone.memory.ids) == sorted(ids)


async def test_what_waits_already_counts_when_a_walk_is_made_again(lone: Rig) -> None:
    await overdue(lone, 101)
    assert not await compare(lone)
    await overdue(lone, 50, gone=["due"])
    assert not await compare(lone)
    found = await mended(lone)
    assert (found.due, found.parked, found.waiting) == (0, 151, 151)


async def test_what_waits_for_the_operator_stays_when_all_others_are_unparked(lone: Rig) -> None:
    ids = await overdue(lone, 101)
    assert not await compare(lone)
    session = lone.sessions[0]
    for named in ((), ids):
        assert await lone.store.run_one(session.bucket.unpark(*session.owner, ids=named)) == 0
    assert len(await lone.raw("parked")) == 101


async def test_those_whose_time_to_live_is_over_are_dead(lone: Rig) -> None:
    ids = await overdue(lone, 101, ttl="1h")
    assert not await compare(lone)
    await lone.steer({})
    await lone.live_until(NOW_MS + 1000)
    assert (await mended(lone)).parked == 0
    reasons = [await lone.client.get(id) for id in ids]
    assert {(each.reason or "").partition(":")[0] for each in reasons if each} == {"expired"}


@pytest.mark.parametrize("walked", [True, False])
async def test_an_id_whose_dead_message_vanished_may_be_scheduled_again(
    walked: bool, lone: Rig
) -> None:
    lone.memory.next_outcomes.extend([UNROUTABLE] * 3)
    await lone.send(message("x", NOW_MS))
    await lone.live_until(NOW_MS + 60_000)
    assert len(await lone.raw("dead")) == 1
    lone.memory.taken.clear()
    await lose(lone, "messages")
    if walked:
        assert not await compare(lone)
    await lone.send(message("x", FAR_MS))
    if await compare(lone) and not await look(lone):
        await retake(lone)
    await lone.live_until(FAR_MS)
    assert lone.memory.ids == ["x"]


async def test_a_key_that_vanishes_during_the_walk_is_mended_by_the_same_session(lone: Rig) -> None:
    lone.memory.next_outcomes.extend([UNROUTABLE] * 3)
    await lone.send(message("dead", NOW_MS), message("x", FAR_MS))
    await lone.live_until(NOW_MS + 60_000)
    await lose(lone, "due")
    await lone.scanner.mending.compare()
    lone.store.hold("mend")
    await retake(lone)
    await lose(lone, "due", "dead")
    lone.store.let_go("mend")
    await lone.quiet()
    assert [await lone.state(id) for id in ("dead", "x")] == ["dead", "delayed"]
    assert await compare(lone)
    assert len(lone.lost) == 1


async def test_what_no_walk_can_mend_ends_one_session_and_no_further(lone: Rig) -> None:
    await lone.send(message("x", SOON_MS))
    future = {"nothing": 10**6}  # a claim that nobody will ever make
    await lone.store.redis.zadd(bucket_key(lone.namespace, 0, "mirror"), future)
    assert not await compare(lone)
    assert await compare(lone)
    await lone.live_until(SOON_MS)
    assert lone.memory.ids == ["x"]


async def test_a_worker_that_leaves_during_the_walk_gives_the_bucket_back(lone: Rig) -> None:
    await lone.send(*(message(f"m{n:03}", FAR_MS) for n in range(500)))
    await lose(lone, "due")
    await lone.scanner.mending.compare()
    lone.store.hold("mend")
    await retake(lone)
    session, lone.store.sent = lone.sessions[0], []
    leaving = lone.begin(lone.scanner.drain(session))
    lone.store.let_go("mend")
    await lone.until(leaving)
    assert not {"mend", "claim"} & {*lone.store.sent}, "it waits for one page, not for the walk"
    lone.lose(session, "released")
    await retake(lone)
    assert len(await lone.raw("due")) == 500


@pytest.mark.parametrize("of", ["messages", "parked"])
async def test_a_page_after_large_records_is_smaller(lone: Rig, of: str) -> None:
    await lone.steer({"memory": Rule(paused=True)})
    many, size = orphans.FIRST.limit, 250_000
    await lone.claim(*(message(f"m{n}", NOW_MS, body=b"x" * size) for n in range(many)))
    session, place = lone.sessions[0], orphans.WalkPlace(of)
    page = await lone.store.run_one(orphans.mend(session.bucket, session.owner, place))
    assert page is not None
    assert page.size > many * size
    following = place.after(page._replace(cursor=b"1"))
    assert following is not None
    assert following.limit == 2**20 // size
    for _ in range(10):
        following = following.after(page._replace(cursor=b"1", size=1000))
        assert following is not None
    assert following.limit == orphans.PAGE


async def test_a_sound_bucket_stays_with_its_session(lone: Rig) -> None:
    lone.memory.next_outcomes.extend([UNROUTABLE, CONFIRMED, UNROUTABLE, UNROUTABLE])
    await lone.send(*(message(f"m{n}", NOW_MS + n) for n in range(30)))
    await lone.send(message("b", NOW_MS, "b:q"), message("far", FAR_MS))
    await lone.steer({"b": Rule(paused=True)})
    for step in range(20):
        await lone.at(NOW_MS + 200 * step)
        assert await compare(lone)
        assert await look(lone)


@pytest.mark.parametrize("vanished", [("due",), ("mirror",), ("due", "mirror")], ids=", ".join)
async def test_a_worker_delivers_everything_though_keys_vanish_from_half_of_its_buckets(
    crew: Crew, arrived: Arrived, monkeypatch: pytest.MonkeyPatch, vanished: Sequence[str]
) -> None:
    monkeypatch.setattr("delaybridge.worker.shift._COMPARE_S", 0.1)
    crew.start(lease=CALM)
    await crew.shared("w")
    ids = await crew.schedule(200, seconds=0.5, first_s=0.5)
    await crew.store.redis.delete(
        *(bucket_key(crew.namespace, n, name) for n in range(0, BUCKETS, 2) for name in vanished)
    )
    await arrived.all(ids)
    await crew.settled()
    assert min(arrived.late_ms) >= 0
    if vanished == ("due",):
        await until_async(lambda: any(isinstance(event, OrphansMended) for event in crew.events))


@pytest.mark.parametrize("has_backlog", [False, True])
async def test_messages_of_a_pull_topic_can_be_received_again_though_their_order_vanished(
    crew: Crew, monkeypatch: pytest.MonkeyPatch, has_backlog: bool
) -> None:
    monkeypatch.setattr("delaybridge.scan.mending._LONGEST_S", 0.001)
    crew.start(lease=CALM)
    await crew.client.schedule("pull:t", b"x", delay=0, id="x")

    async def is_offered() -> bool:
        return (await crew.client.stats()).parked == 1

    await until_async(is_offered, "offered")
    number = bucket_of(b"x", BUCKETS)
    parked, ready = (bucket_key(crew.namespace, number, name) for name in ("parked", "ready"))
    if has_backlog:  # for longer than this test
        await crew.client.destinations.set_rule("pull:t", rate=2.0)
        ids = [id for id in map(str, range(4000)) if bucket_of(id.encode(), BUCKETS) == number]
        await crew.client.schedule_many([Message("pull:t", b"x", delay=0, id=id) for id in ids])

        async def is_held_back() -> bool:
            return bool(await crew.store.redis.zcard(parked) > len(ids) // 2)

        await until_async(is_held_back, "held back")
    await crew.store.redis.delete(ready)

    async def received() -> bool:
        return any(each.id == "x" for each in await crew.client.topics.receive("t", ttr="30s"))

    await until_async(received, "received")


async def test_each_bucket_is_looked_at_within_an_hour(lone: Rig) -> None:
    session = lone.sessions[0]
    for size in (0, 10_000, 10_000_000):
        session.counts = KeySizes(messages=size, due=size)
        wait_s = await lone.scanner.mending.look_further()
        assert wait_s * session.counts.pages() <= 3600 * 1.001
