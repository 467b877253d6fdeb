"""An owner's session on real Redis: its lease, its watermark, and how its claims end."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from delaybridge.message import Answer
from delaybridge.store.protocol.verbs import RedisCommand
from tests.rigs.bucket import TTL_MS, Copy, Owner, World

# settle, retry, bury, park name (id, claim number); reclaim stays below the token's turn


Exit = Callable[[Owner, Copy], RedisCommand[Any]]
EXITS: dict[str, Exit] = {
    "_settling": Owner.settling,
    "_settling_once": Owner.settling_once,
    "_retrying": partial(Owner.retrying, delay_ms=5),
    "_putting_back": Owner.retrying,
    "_deferring": Owner.deferring,
    "_burying": Owner.burying,
    "_parking": Owner.parking,
}
ending_each_way = pytest.mark.parametrize("ending", EXITS.values(), ids=EXITS)


@ending_each_way
def test_a_verb_that_ends_an_old_claim_late_does_not_touch_a_new_message_with_its_id(
    world: World, now: int, ending: Exit
) -> None:
    owner, (x,) = world.fired("x")
    late = ending(owner, x)
    owner.settle(x)
    world.schedule("x", now)
    (again,) = owner.claim()
    before = world.state()
    assert again.score == x.score
    assert world.run(late) is not None
    assert world.state() == before
    assert owner.fire(again.score) == [again]


@ending_each_way
def test_a_verb_that_ends_an_old_claim_late_leaves_a_copy_on_the_wheel_revocable(
    world: World, now: int, ending: Exit
) -> None:
    owner, (x,) = world.fired("x")
    late = ending(owner, x)
    owner.retry(x, delay_ms=0)
    owner.claim()
    world.run(late)
    assert world.cancel("x") == Answer.CANCELLED
    assert owner.fire(now + 1000) == []


@ending_each_way
def test_a_verb_that_ends_a_claim_counts_once_however_often_it_is_executed(
    world: World, ending: Exit
) -> None:
    owner, (x,) = world.fired("x")
    world.run(ending(owner, x))
    before = world.state()
    world.run(ending(owner, x))
    assert world.state() == before


def test_a_reclaim_executed_late_does_not_touch_the_wheel_of_its_own_session(
    world: World, now: int
) -> None:
    owner, _ = world.fired("x")
    owner = world.successor()
    late = owner.reclaiming()
    owner.claim()
    before = world.state()
    assert world.run(late).left == 0
    assert world.state() == before
    assert world.cancel("x") == Answer.CANCELLED_MAYBE_DELIVERED
    assert owner.fire(now + 1000) == []


# each acquire is a new session, and a renewal never creates one


def test_an_expired_lease_is_not_renewed_even_if_no_other_worker_took_it(
    world: World, now: int
) -> None:
    owner, _ = world.claimed("x")
    world.end_lease()
    before = world.state()
    assert not world.run(world.bucket.renew(owner.token, TTL_MS)).held
    assert world.state() == before
    assert world.run(owner.firing(now + 1).command) is None


def test_an_acquire_executed_late_starts_a_new_session_and_does_not_renew_the_old(
    world: World, now: int
) -> None:
    taking = world.bucket.acquire("worker:same", TTL_MS)
    first = world.run(taking)
    owner = Owner(world, first.token or "", first.turn)
    world.schedule("x", now)
    owner.claim()
    world.end_lease()
    world.successor()
    world.end_lease()
    assert world.cancel("x") == Answer.CANCELLED
    again = world.run(taking)
    assert again.turn > first.turn
    assert world.run(owner.firing(now + 1).command) is None


def test_an_acquire_sent_again_while_the_lease_holds_gets_the_same_token(world: World) -> None:
    taking = world.bucket.acquire("worker:same", TTL_MS)
    first = world.run(taking)
    before = world.state()
    assert world.run(taking) == first
    assert world.state() == before


def test_another_owner_is_told_who_holds_the_lease_and_for_how_long(world: World) -> None:
    owner = world.owner("first")
    answer = world.run(world.bucket.acquire("second:1", TTL_MS))
    assert answer.token is None
    assert answer.holder == owner.token
    assert 0 < answer.left_ms <= TTL_MS


def test_a_lease_made_longer_by_a_clock_step_is_cut_to_its_ttl(world: World) -> None:
    world.owner()
    world.redis.pexpire(world.key("lease"), 7_229_654)
    answer = world.run(world.bucket.acquire("second:1", 30_000))
    assert answer.left_ms <= TTL_MS
    assert 0 < world.redis.pttl(world.key("lease")) <= TTL_MS


def test_a_bucket_with_another_birth_id_is_taken_only_without_messages(
    world: World, now: int
) -> None:
    world.schedule("x", now)
    world.redis.hset(world.key("marks"), "birth", "another")
    before = world.state()
    assert world.run(world.bucket.acquire("worker:1", TTL_MS)).stranger
    assert world.state() == before
    world.redis.delete(world.key("messages"), world.key("due"))
    assert world.run(world.bucket.acquire("worker:2", TTL_MS)).token
    assert world.redis.hget(world.key("marks"), "birth") == world.bucket.birth.encode()


def test_only_the_first_acquire_of_a_bucket_is_fresh_also_when_sent_again(
    world: World, now: int
) -> None:
    world.schedule("x", now)
    taking = world.bucket.acquire("worker:same", TTL_MS)
    assert world.run(taking).fresh
    assert world.run(taking).fresh
    world.end_lease()
    assert not world.run(world.bucket.acquire("worker:other", TTL_MS)).fresh


def test_a_release_executed_late_leaves_the_next_session_its_lease(world: World) -> None:
    first = world.owner("same")
    release = world.bucket.release(first.token)
    world.run(release)
    second = world.owner("same")
    world.run(release)
    assert world.run(world.bucket.renew(second.token, TTL_MS)).held


def owner_verbs(owner: Owner, copy: Copy) -> dict[str, RedisCommand[Any]]:
    """Every call that an owner may send."""
    endings = {name: make(owner, copy) for name, make in EXITS.items()}
    return endings | {
        "claim": owner.claiming(),
        "fire": owner.firing(copy.score).command,
        "unpark": owner.unparking(),
        "unpark ids": owner.unparking(ids=[copy.id]),
        "reclaim": owner.reclaiming(),
        "renew": owner.bucket.renew(owner.token, TTL_MS),
        "release": owner.bucket.release(owner.token),
    }


def test_a_stale_owner_changes_nothing_and_learns_it(world: World, now: int) -> None:
    stale, (x,) = world.claimed("x")
    sent = owner_verbs(stale, x)
    fresh = world.successor()
    world.schedule("p", now)
    copies = fresh.claim()
    fresh.park(*(copy for copy in copies if copy.id == "p"))
    world.cancel("x")
    before = world.state()
    for name, command in sent.items():
        answer = world.run(command)
        if name == "renew":
            assert not answer.held
        elif name != "release":
            assert answer is None, name
        assert world.state() == before, name


def test_an_owner_without_its_lease_changes_nothing_even_if_the_lease_is_free(world: World) -> None:
    owner, (x,) = world.fired("x")
    sent = owner_verbs(owner, x)
    world.end_lease()
    before = world.state()
    for command in sent.values():
        world.run(command)
        assert world.state() == before, command.name


@pytest.mark.parametrize("verb", ["claim", "fire"])
def test_an_owner_that_is_ahead_of_a_rolled_back_store_has_lost_its_lease(
    world: World, now: int, verb: str
) -> None:
    owner, _ = world.claimed("x")
    owner.last_claim += 1
    before = world.state()
    sent = owner.claiming() if verb == "claim" else owner.firing(now).command
    assert world.run(sent) is None
    assert world.state() == before


def test_every_owner_verb_renews_the_lease(world: World) -> None:
    owner, (x,) = world.fired("x")
    for name, command in owner_verbs(owner, x).items():
        world.redis.pexpire(world.key("lease"), TTL_MS // 2)
        world.run(command)
        left_ms = world.redis.pttl(world.key("lease"))
        assert left_ms > TTL_MS // 2 or name == "release", name


# the watermark: replaced by the first fire of a session, never lowered within one


def test_the_first_fire_of_a_session_replaces_the_watermark_of_the_one_before(
    world: World, now: int
) -> None:
    world.fired("high", due_ms=now + 9000)
    owner = world.successor()
    world.schedule("z", now)
    world.schedule("y", now + 5000)
    owner.claim()
    assert [copy.id for copy in owner.fire(now + 0.999)] == ["z"]
    assert world.cancel("y") == Answer.CANCELLED


def test_a_session_is_not_told_of_revocations_that_cannot_concern_it(
    world: World, now: int
) -> None:
    world.schedule("x", now)
    world.owner().claim()
    world.cancel("x")
    owner = world.successor()
    fire = world.run(owner.firing(now).command)
    assert fire is not None and fire.revoked == {}


def test_before_its_first_fire_a_session_has_nothing_in_flight(world: World, now: int) -> None:
    world.fired("high", due_ms=now + 9000)
    owner = world.successor()
    world.schedule("y", now)
    owner.claim()
    assert world.cancel("y") == Answer.CANCELLED


def test_reclaim_continues_until_dead_sessions_have_nothing_left_in_the_mirror(
    world: World, now: int
) -> None:
    for n in range(5):
        world.schedule(f"x{n}", now + n)
    dead = world.owner()
    dead.claim()
    dead.fire(now + 1.999)
    world.end_lease()
    owner = world.owner()
    assert [world.run(owner.reclaiming(limit=2)).left for _ in range(3)] == [3, 1, 0]
    assert [world.tried(f"x{n}") for n in range(5)] == ["1:1:", "1:1:", None, None, None]
    assert {world.place(f"x{n}") for n in range(5)} == {"due"}


def test_a_reclaimed_message_has_the_score_it_was_claimed_with(world: World, now: int) -> None:
    world.schedule("x", now + 7, priority=9)
    score = world.score("x")
    world.owner().claim()
    world.successor()
    assert world.score("x") == score == now + 7 + 246 / 256


def test_a_fire_executed_late_does_not_lower_the_watermark(world: World, now: int) -> None:
    world.schedule("x", now)
    world.schedule("y", now + 1000)
    owner = world.owner()
    owner.claim()
    low = owner.firing(now + 0.999)
    owner.publishes(low, world.run(low.command))
    owner.fire(now + 1000.999)
    world.run(low.command)
    assert world.cancel("y") == Answer.IN_FLIGHT


def test_a_message_claimed_below_its_sessions_watermark_goes_out_with_the_next_fire(
    world: World, now: int
) -> None:
    owner, _ = world.fired("y", due_ms=now + 1000)
    world.schedule("x", now)
    world.schedule("z", now + 500)
    owner.claim()
    published = owner.fire(now + 0.999)  # raised to the watermark of the one before
    assert [copy.id for copy in published] == ["x", "z"]
    assert world.cancel("z") == Answer.IN_FLIGHT


# the watermark includes the fraction for the priority


def test_a_message_of_priority_0_is_in_flight_once_it_is_fired(world: World, now: int) -> None:
    world.schedule("x", now, priority=0)
    owner = world.owner()
    (x,) = owner.claim()
    assert x.score == now + 255 / 256
    assert owner.fire(x.score) == [x]
    assert world.cancel("x") == Answer.IN_FLIGHT


def test_a_lower_priority_of_the_same_millisecond_is_not_fired_with_a_higher(
    world: World, now: int
) -> None:
    world.schedule("low", now, priority=0)
    world.schedule("high", now, priority=255)
    owner = world.owner()
    high, _ = owner.claim()
    assert high.id == "high"
    assert owner.fire(high.score) == [high]
    assert world.cancel("low") == Answer.CANCELLED
