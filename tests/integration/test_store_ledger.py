"""The ledger's side of one bucket on real Redis: what is sealed, told as left, and restored."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import redis

from delaybridge.accept.accept import Accepted
from delaybridge.errors import StoreWiped
from delaybridge.ledger.comparing import healing
from delaybridge.ledger.comparing.healing import Lacking, Presence, Sealed, Standing
from delaybridge.message import Answer
from delaybridge.store.protocol.bucket import Bucket
from delaybridge.store.protocol.keys import BUCKET_KEYS, spread
from tests.rigs.bucket import BIRTH, NUMBER, TTL_MS, Owner, World
from tests.rigs.waiting import DEADLINE_S

ABSENT, HERE, OTHER, LEFT, _ = Presence
STAMP = b"call"


def sealed(owner: Owner, known: int | None = None, healed: str = "") -> Sealed | None:
    """Seal; known: the ledger has all up to this generation."""
    lease = owner.token, TTL_MS
    return owner.world.run(healing.seal(owner.bucket, lease, known=known, healed=healed))


def told(world: World) -> dict[str, str]:
    """What left, and how, as the ledger is told it."""
    found = world.run(healing.left(world.bucket, -1, 100, 0, 10_000))
    return {each.id: each.state for each in found}


def standing(world: World) -> Standing:
    return world.run(healing.standing(world.bucket))


def restored(world: World, as_of: Standing, *lacking: Lacking) -> list[Presence] | None:
    return world.run(healing.restore(world.bucket, as_of, lacking, now_ms=world.now_ms))


def row(world: World, id: str, *, stamp: bytes = STAMP, reason: str = "") -> Lacking:
    """A message of the ledger, with a priority."""
    return Lacking(id, stamp, world.now_ms + 200 / 256, b"payload", reason)


def stamp_of(world: World, id: str) -> bytes:
    return bytes(world.state()["messages"][id.encode()][9:13])


# seal


def test_an_entry_is_forgotten_at_the_second_seal_after_the_one_by_which_the_ledger_had_it(
    world: World,
) -> None:
    owner, copies = world.fired("x")
    assert sealed(owner) == (0, 0, "")
    owner.settle(*copies)
    assert sealed(owner) == (1, 1, "")
    assert sealed(owner, known=1) == (2, 1, "")
    assert sealed(owner, known=2) == (3, 0, "")


def test_a_seal_after_the_store_lost_writes_does_nothing(world: World) -> None:
    owner = world.owner()
    assert sealed(owner) == (0, 0, "")
    before = world.state()
    assert sealed(owner, known=1) is None
    assert world.state() == before
    assert sealed(owner, known=0) == (1, 0, "")


def test_a_seal_keeps_the_name_of_the_last_comparison(world: World) -> None:
    owner = world.owner()
    assert sealed(owner, healed="run:1.a") == (0, 0, "run:1.a")
    assert sealed(owner) == (1, 0, "run:1.a")
    assert standing(world) == ("2", "run:1.a", "")


def test_without_the_lease_nothing_is_sealed_and_with_it_the_lease_is_renewed(world: World) -> None:
    late = world.owner()
    owner = world.successor()
    before = world.state()
    assert sealed(late, healed="run:1.a") is None
    assert world.state() == before
    world.redis.pexpire(world.key("lease"), 1000)
    sealed(owner)
    assert world.redis.pttl(world.key("lease")) > 1000


# what left


def published(world: World) -> None:
    owner, copies = world.fired("x")
    sealed(owner)
    owner.settle(*copies)


def published_at_most_once(world: World) -> None:
    owner, copies = world.claimed("x")
    sealed(owner)
    assert world.run(owner.settling_once(*copies)) == {"x"}


def cancelled(world: World) -> None:
    owner, _ = world.claimed("x")
    sealed(owner)
    assert world.cancel("x") == Answer.CANCELLED


def dropped_from_the_dead(world: World) -> None:
    owner, copies = world.fired("x")
    sealed(owner)
    owner.bury(*copies)
    trim = owner.bucket.trim(owner.token, TTL_MS, keep=0, age_ms=None, now_ms=world.now_ms)
    assert world.run(trim) == (1,)


LEAVING = [
    (published, "published"),
    (published_at_most_once, "published"),
    (cancelled, "cancelled"),
    (dropped_from_the_dead, "cancelled"),
]


@pytest.mark.parametrize(("leave", "how"), LEAVING, ids=lambda x: getattr(x, "__name__", ""))
def test_what_left_is_told_and_not_brought_back(
    world: World, leave: Callable[[World], None], how: str
) -> None:
    leave(world)
    stamp = b"\0\0\0\1"
    assert told(world) == {"x": how}
    assert world.run(healing.left(world.bucket, 0, 0, 0, 10)) == []
    assert world.run(healing.left(world.bucket, 0, 1, 0, 10)) == [("x", stamp, how)]
    world.redis.delete(world.key("calls"))
    assert restored(world, standing(world), row(world, "x", stamp=stamp)) == [LEFT]
    assert restored(world, standing(world), row(world, "x", stamp=STAMP)) == [ABSENT]


def test_calls_that_were_undone_or_refused_are_not_brought_back(world: World, now: int) -> None:
    world.schedule("x", now + 1000)
    stamp = stamp_of(world, "x")
    world.cancel("x")  # nothing is sealed yet: only `calls` knows it
    assert "gone" not in world.state()
    assert restored(world, Standing(), row(world, "x", stamp=stamp)) == [LEFT]
    world.schedule("x", now + 2000)
    stamp = stamp_of(world, "x")
    assert world.replace("x", now + 3000) == Answer.REPLACED
    other = stamp_of(world, "x")
    world.redis.delete(world.key("messages"), world.key("due"))
    assert restored(world, Standing(), row(world, "x", stamp=stamp)) == [LEFT]
    assert restored(world, Standing(), row(world, "x", stamp=other)) == [ABSENT]


@pytest.mark.parametrize("once", [False, True], ids=["at least once", "at most once"])
def test_more_than_five_hundred_messages_leave_in_one_call(
    world: World, now: int, once: bool
) -> None:
    ids = [f"x{n}" for n in range(1201)]
    world.run(world.scheduling_all([Accepted(i, b"x", str(now), 255, b"p") for i in ids]))
    stamps = {i: world.state()["messages"][i.encode()][9:13] for i in ids[::400]}
    owner = world.owner(dedup_ms=1000)
    sealed(owner)
    owner.claim(limit=2000)
    owner.retry(*owner.wheel, delay_ms=0)
    copies = owner.claim(limit=2000)
    settle = owner.settling_once(*copies) if once else owner.settling(*copies)
    answer = world.run(settle)
    assert answer == {*ids} if once else answer is not None
    assert world.state().keys() - {"calls"} == {"lease", "marks", "gone", "delivered"}
    left = world.run(healing.left(world.bucket, 0, 1, 0, 2000))
    assert {each.id for each in left} == {*ids}
    assert {each.id: each.stamp for each in left if each.id in stamps} == stamps
    assert world.state()["delivered"] == {id.encode(): now + 1000 for id in ids}
    if once:
        assert world.run(settle) == {*ids}


def test_a_call_sent_again_revives_nothing_that_was_published_at_most_once(
    world: World, now: int
) -> None:
    call = world.scheduling("x", now)
    first = world.run(call)
    owner = world.owner()
    assert world.run(owner.settling_once(*owner.claim())) == {"x"}
    assert world.run(call) == first
    assert world.place("x") is None


# restore


@pytest.mark.parametrize(("seals", "is_late"), [(0, False), (1, False), (2, True), (3, True)])
def test_a_restore_by_a_reading_from_before_the_last_seal_but_one_does_nothing(
    world: World, seals: int, is_late: bool
) -> None:
    owner = world.owner()
    as_of = standing(world)
    for _ in range(seals):
        sealed(owner)
    before = world.state()
    assert restored(world, as_of, row(world, "x")) == (None if is_late else [ABSENT])
    assert (world.state() == before) == is_late


def test_a_restore_by_a_reading_that_redis_has_forgotten_does_nothing(world: World) -> None:
    owner = world.owner()
    sealed(owner)
    before = world.state()
    assert restored(world, Standing("2"), row(world, "x")) is None
    assert world.state() == before


def test_a_restore_from_before_another_comparison_does_nothing(world: World) -> None:
    owner = world.owner()
    sealed(owner, healed="?run:1.a")
    as_of = standing(world)
    sealed(owner, healed="?run:1.b")
    before = world.state()
    assert restored(world, as_of, row(world, "x")) is None
    assert world.state() == before
    assert restored(world, as_of._replace(healed="?run:1.b"), row(world, "x")) == [ABSENT]


def test_a_restore_is_for_the_namespace_whose_ledger_was_read(world: World) -> None:
    assert restored(world, Standing(), row(world, "x")) == [ABSENT]
    assert world.state()["marks"] == {b"birth": BIRTH.encode()}
    before = world.state()
    other = Bucket(world.namespace, NUMBER, "another")
    with pytest.raises(StoreWiped):
        world.run(healing.restore(other, Standing(), [row(world, "y")]))
    assert world.state() == before


def test_a_message_is_here_only_as_the_call_that_scheduled_it(world: World, now: int) -> None:
    world.schedule("x", now)
    stamp, before = stamp_of(world, "x"), world.state()
    rows = [row(world, "x", stamp=stamp), row(world, "x")]
    assert restored(world, Standing(), *rows, row(world, "y")._replace(payload=b"")) == [
        HERE, OTHER, ABSENT,
    ]  # fmt: skip
    assert world.state() == before  # what is only looked for is not restored


def test_a_message_comes_back_with_its_priority_and_a_dead_one_dead(world: World, now: int) -> None:
    rows = row(world, "x"), row(world, "y", reason="refused: why")
    assert restored(world, Standing(), *rows) == [ABSENT, ABSENT]
    state = world.state()
    assert state["due"] == {b"x": now + 200 / 256}
    assert (state["dead"], state["dead_reason"]) == ({b"y": now}, {b"y": b"refused: why"})
    assert {record[9:] for record in state["messages"].values()} == {STAMP + b"payload"}
    owner = world.owner()
    assert [copy.score for copy in owner.claim()] == [now + 200 / 256]


@pytest.mark.parametrize(
    ("reason", "place"), [("", "due"), ("refused: why", "dead")], ids=["alive", "dead"]
)
def test_what_was_buried_without_its_record_is_that_message_again(
    world: World, now: int, reason: str, place: str
) -> None:
    for id in ("x", "y"):
        world.schedule(id, now)
    world.redis.delete(world.key("messages"))
    world.owner().claim()
    assert world.state()["marks"][b"bare"] == b"2"
    restored(world, Standing(), row(world, "x", reason=reason))
    state = world.state()
    assert (world.place("x"), state["marks"][b"bare"]) == (place, b"1")
    assert state["dead_reason"].get(b"x", b"") == reason.encode()


@pytest.mark.parametrize(("tried", "left"), [("3:1:5", "0:1:"), ("3:0:5", None)])
def test_attempts_of_an_earlier_message_are_forgotten_but_not_that_one_may_have_arrived(
    world: World, tried: str, left: str | None
) -> None:
    world.redis.hset(world.key("attempts"), mapping={"x": tried, "x\0": "1\nkafka:t\nwhy"})
    restored(world, Standing(), row(world, "x"))
    assert world.tried("x") == left
    assert world.tried("x\0") is None


@pytest.mark.parametrize("sharded", [False, True])
def test_a_restore_wakes_an_owner_that_would_look_too_late(
    redis_url: str, raw: redis.Redis, namespace: str, now_ms: int, sharded: bool
) -> None:
    birth = spread(BIRTH, 8, sharded=True) if sharded else BIRTH
    look = {"birth": birth, "look": now_ms + 1000}
    listener = raw.pubsub(ignore_subscribe_messages=True)
    with World(redis_url, namespace, now_ms, birth=birth) as world, listener:
        channel = world.bucket.wake.removeprefix("+")
        (listener.ssubscribe if sharded else listener.subscribe)(channel)
        listener.get_message(timeout=DEADLINE_S)

        def heard(*rows: Lacking) -> list[bytes]:
            """What is published when these rows are restored."""
            raw.hset(world.bucket.key("marks"), mapping=look)
            assert restored(world, Standing(), *rows) == [ABSENT] * len(rows)
            raw.execute_command("SPUBLISH" if sharded else "PUBLISH", channel, "marker")
            found = list[bytes]()
            while found[-1:] != [b"marker"]:
                if (message := listener.get_message(timeout=DEADLINE_S)) is not None:
                    found.append(message["data"])
            return found[:-1]

        def due(id: str, after_ms: int) -> Lacking:
            return row(world, id)._replace(score=now_ms + after_ms + 0.5)

        assert heard(due("a", 1000), due("b", 2000)) == []
        assert heard(row(world, "c", reason="refused: why")) == []
        first = f"{NUMBER} {now_ms + 700}".encode()
        assert heard(due("d", 900), due("e", 700), due("f", 5000)) == [first]
        raw.delete(*(world.bucket.key(name) for name in BUCKET_KEYS))
