"""A bucket that lost its records, before anybody has noticed: old entries and the next messages."""

from __future__ import annotations

import pytest

from delaybridge.ledger.comparing import healing
from delaybridge.store.messages.scheduling import Patience
from delaybridge.store.protocol.bucket import Item
from delaybridge.store.protocol.keys import bucket_key
from delaybridge.store.protocol.verbs import bucket_of
from tests.rigs.crew import BUCKETS, CALM, Crew
from tests.rigs.mending import compare, counts, lose, old
from tests.rigs.outcomes import NACK, UNROUTABLE
from tests.rigs.scanner import NOW_MS, SOON_MS, Rig, message
from tests.rigs.waiting import until_async

FAR_MS = NOW_MS + 3_600_000


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time in which a call waits for what is in flight is over at once."""
    monkeypatch.setattr(Patience, "pause_s", lambda patience: 0.0)


@pytest.mark.parametrize("outcome", [UNROUTABLE, NACK], ids=["refused", "unknown"])
async def test_a_failed_publish_without_a_record_does_not_end_the_session(
    lone: Rig, outcome: object
) -> None:
    lone.memory.next_outcomes.extend([outcome])
    await lone.claim(message("x", SOON_MS), message("y", SOON_MS + 100))
    await lose(lone, "messages")
    await lone.live_until(SOON_MS + 2000)
    assert lone.sessions[0].alive
    assert lone.memory.ids == ["x", "y"]
    assert await lone.raw("dead") != [], "it is told as a message without a record"
    assert (await counts(lone)).bare == 1
    assert await compare(lone)


async def test_what_is_put_off_without_a_record_does_not_end_the_session(lone: Rig) -> None:
    await lone.claim(message("x", SOON_MS))
    ((_, claim),) = await lone.raw("mirror")
    await lose(lone, "messages")
    session = lone.sessions[0]
    later = [(Item("x", int(claim), float(SOON_MS)), float(FAR_MS))]
    assert await lone.store.run_one(session.bucket.defer(*session.owner, later)) is not None
    assert await lone.raw("due") == [(b"x", SOON_MS)], "the next claim buries it"


# the next message of an id


@pytest.mark.parametrize("is_confirmed", [True, False])
async def test_a_copy_of_the_last_message_does_not_end_the_next_one(
    lone: Rig, is_confirmed: bool
) -> None:
    lone.memory.hold = True
    await lone.claim(message("x", SOON_MS))
    await lose(lone, "messages")
    await lone.at(SOON_MS)
    following = message("x", FAR_MS, body=b"next")
    assert await lone.client.schedule_message(following) == "in_flight", "as with any fired one"
    lone.memory.hold = False
    if is_confirmed:
        lone.memory.confirm()
    else:
        lone.memory.lose()
    await lone.quiet()
    assert await lone.client.schedule_message(following) == "created"
    await compare(lone)
    lone.scanner.wake_all()
    await lone.live_until(FAR_MS)
    assert [each.at_ms for each in lone.memory.taken] == [SOON_MS, FAR_MS]


async def test_a_copy_of_the_last_message_is_not_published_after_the_next_one_is_cancelled(
    lone: Rig,
) -> None:
    await lone.claim(message("x", SOON_MS))
    await lose(lone, "messages")
    following = message("x", FAR_MS, body=b"next")
    assert await lone.client.schedule_message(following) == "in_flight"
    assert await lone.client.cancel("x") == "unknown"
    await lone.at(SOON_MS)
    assert await lone.client.schedule_message(following) == "created"
    assert await lone.client.cancel("x") == "cancelled"
    await lone.live_until(FAR_MS)
    assert lone.memory.ids == ["x"]


@pytest.mark.parametrize("is_claimed", [True, False])
async def test_failed_attempts_are_not_those_of_the_next_message(
    lone: Rig, is_claimed: bool
) -> None:
    lone.memory.next_outcomes.extend([UNROUTABLE])
    await lone.claim(message("x", SOON_MS))
    await lone.at(SOON_MS)
    await lose(lone, "messages")
    if is_claimed:
        lone.scanner.wake_all()
        await lone.live_until(SOON_MS + 10_000)
        assert await compare(lone), "it is dead, and counted"
    answer = await lone.client.schedule_message(message("x", FAR_MS, body=b"next", ttl=60))
    assert answer == "created"
    lone.scanner.wake_all()
    await lone.live_until(FAR_MS + 1000)
    assert lone.memory.ids == ["x", "x"]


@pytest.mark.parametrize("names", [("messages",), ("messages", "due")], ids=" and ".join)
async def test_a_receipt_of_the_last_message_does_not_finish_the_next_one(
    crew: Crew, names: tuple[str, ...]
) -> None:
    crew.start(lease=CALM)
    await crew.client.schedule("pull:t", b"x", delay=0, id="x")
    received = []

    async def is_received() -> bool:
        received.extend(await crew.client.topics.receive("t", ttr="30s"))
        return bool(received)

    await until_async(is_received, "received")
    number = bucket_of(b"x", BUCKETS)
    keys = [bucket_key(crew.namespace, number, name) for name in names]
    await crew.store.redis.delete(*keys)
    assert await crew.client.schedule("pull:t", b"next", delay="1h", id="x") == "created"
    assert await crew.client.topics.finish(received) == ["unknown"]
    assert await crew.client.get("x") is not None


async def fail_once(rig: Rig) -> None:
    """x is tried again; its due time is kept with its attempts."""
    rig.memory.next_outcomes.extend([UNROUTABLE])
    await rig.claim(message("x", SOON_MS))
    await rig.at(SOON_MS)


@pytest.mark.parametrize("others", [0, 1])
@pytest.mark.parametrize("how", ["lost", "old"])
async def test_attempts_that_nothing_contradicts_are_not_those_of_the_next_message(
    lone: Rig, how: str, others: int
) -> None:
    await fail_once(lone)
    if how == "lost":
        await lose(lone, "messages", "due")
    else:
        async with old(lone, "attempts"):
            lone.scanner.wake_all()
            await lone.live_until(SOON_MS + 20_000)
            assert await lone.client.get("x") is None
    assert await compare(lone), "attempts are in no size"
    await lone.schedule(*[message("pending", FAR_MS + 60_000, body=b"y")] * others)
    new = [message("x", FAR_MS, body=b"next", ttl=60)]
    new += [message("pending", FAR_MS + 60_000, body=b"y")] * others  # then it goes one by one
    assert (await lone.client.schedule_many(new))[0] == "created"
    stored = await lone.client.get("x")
    assert stored is not None
    assert (stored.attempts, stored.last_error) == (0, None)
    lone.memory.taken.clear()
    lone.scanner.wake_all()
    await lone.live_until(FAR_MS + 1000)
    assert [(each.id, each.at_ms) for each in lone.memory.taken] == [("x", FAR_MS)]


async def test_of_what_the_ledger_brings_back_only_that_it_may_have_arrived_is_kept(
    lone: Rig,
) -> None:
    lone.memory.next_outcomes.extend([NACK])
    await lone.claim(message("x", SOON_MS), message("y", FAR_MS + 60_000))
    await lone.at(SOON_MS)
    payload = (await lone.store.redis.hget(bucket_key(lone.namespace, 0, "messages"), "x"))[13:]
    await lose(lone, "messages", "due")
    bucket = lone.sessions[0].bucket
    lacking = [healing.Lacking("x", b"next", float(FAR_MS), payload)]
    assert await lone.store.run_one(healing.restore(bucket, healing.Standing(), lacking))
    attempts = await lone.store.redis.hgetall(bucket_key(lone.namespace, 0, "attempts"))
    assert attempts == {b"x": b"0:1:"}
    assert await lone.client.cancel("x") == "cancelled_maybe_delivered"


async def test_what_is_quarantined_begins_without_attempts(lone: Rig) -> None:
    await fail_once(lone)
    await lose(lone, "messages", "due")
    bucket = lone.sessions[0].bucket
    await lone.store.run_one(bucket.quarantine([(b"next", "x", b"payload", "bad_header: x")]))
    assert await lone.store.redis.hgetall(bucket_key(lone.namespace, 0, "attempts")) == {}


async def test_of_a_call_only_ids_with_a_copy_wait_and_sets_of_the_others_are_cleared(
    lone: Rig,
) -> None:
    await lone.schedule(message("parked", FAR_MS))
    await lone.claim(message("x", SOON_MS))
    redis = lone.store.redis
    for name in ("parked", "dead"):
        await redis.zadd(bucket_key(lone.namespace, 0, name), {name: FAR_MS})
    await lose(lone, "messages")
    ids = ["new", "parked", "dead", "x"]
    new = [message(id, FAR_MS + 1000, body=b"next") for id in ids]
    answers = [str(each.answer) for each in await lone.client.schedule_many(new)]
    assert answers == ["created"] * 3 + ["in_flight"]
    assert [id for id, _ in await lone.raw("due")] == [b"dead", b"new", b"parked"]
    assert (await lone.raw("parked"), await lone.raw("dead")) == ([], [])
    await lone.at(SOON_MS)
    assert await lone.client.schedule_message(new[-1]) == "created"
    assert await compare(lone)


@pytest.mark.parametrize("name", ["mirror", "parked", "dead", "attempts"])
async def test_a_key_of_a_wrong_type_keeps_no_message_out(lone: Rig, name: str) -> None:
    key = bucket_key(lone.namespace, 0, name)
    await lone.store.redis.set(key, "odd")
    await lone.schedule(message("x", FAR_MS), message("y", FAR_MS))
    await lone.store.redis.delete(key)
    assert await compare(lone)
