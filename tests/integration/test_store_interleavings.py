"""The bucket protocol on real Redis: each rule of it, with calls in every harmful order.

"Executed late" and "sent again" mean the identical command once more. To the store, that is what a
re-send looks like, or a request that was given up while it was still in a socket.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from delaybridge.accept.accept import Accepted
from delaybridge.message import Answer, OnConflict
from delaybridge.store.command import RedisCommand
from delaybridge.store.healing import drop
from tests.rigs.bucket import TTL_MS, Copy, Owner, World
from tests.rigs.sample_calls import SAMPLES
from tests.rigs.waiting import until
from tests.servers.process import free_port
from tests.servers.redis import RedisServer


@pytest.fixture
def world(any_redis_url: str, namespace: str, now_ms: int) -> Iterator[World]:
    with World(any_redis_url, namespace, now_ms) as world:
        yield world


@pytest.fixture
def now(now_ms: int) -> int:
    return now_ms


def fired(world: World, id: str, due_ms: int) -> tuple[Owner, Copy]:
    """A message that was claimed and handed to the broker, and its owner."""
    world.schedule(id, due_ms)
    owner = world.owner()
    owner.claim()
    (copy,) = owner.fire(due_ms + 0.999)
    return owner, copy


# "fired" is a pair: a score and a claim number


UNDOING: list[tuple[Callable[[World, int], Answer], Answer]] = [
    (lambda world, _: world.cancel("x"), Answer.CANCELLED),
    (lambda world, due_ms: world.reschedule("x", due_ms), Answer.RESCHEDULED),
    (lambda world, due_ms: world.replace("x", due_ms), Answer.REPLACED),
]
undoing = pytest.mark.parametrize(
    ("undo", "answer"), UNDOING, ids=lambda x: getattr(x, "value", "")
)


@undoing
def test_a_message_claimed_below_the_watermark_is_not_in_flight_before_the_next_fire(
    world: World, now: int, undo: Callable[[World, int], Answer], answer: Answer
) -> None:
    owner, _ = fired(world, "y", now + 1000)
    world.schedule("x", now)
    (x,) = owner.claim()
    assert x.score < owner.watermark
    assert undo(world, now + 1) == answer


@undoing
def test_a_message_rescheduled_to_now_and_claimed_again_is_not_in_flight(
    world: World, now: int, undo: Callable[[World, int], Answer], answer: Answer
) -> None:
    owner, _ = fired(world, "y", now + 1000)
    world.schedule("x", now + 5000)
    owner.claim()
    world.reschedule("x", now)
    owner.claim()
    assert undo(world, now + 1) == answer


def test_a_crash_counts_no_attempt_for_a_message_claimed_below_the_watermark_and_never_fired(
    world: World, now: int
) -> None:
    owner, _ = fired(world, "y", now + 1000)
    world.schedule("x", now)
    owner.claim()
    world.successor()
    assert world.tried("x") is None
    assert world.tried("y") == "1:1:"


def test_a_crash_in_a_backlog_counts_no_attempt_for_messages_above_the_watermark(
    world: World, now: int
) -> None:
    for n in range(5):
        world.schedule(f"x{n}", now - 500 + n)
    owner = world.owner()
    owner.claim()
    owner.fire(now - 499 + 0.999)
    world.successor()
    assert [world.tried(f"x{n}") for n in range(5)] == ["1:1:", "1:1:", None, None, None]


# a copy is named (id, claim number); a revocation affects copies claimed before its turn


def test_a_message_with_a_reused_id_and_due_time_outlives_the_revocation_of_the_first_copy(
    world: World, now: int
) -> None:
    world.schedule("x", now)
    owner = world.owner()
    owner.claim()
    assert world.cancel("x") == Answer.CANCELLED
    world.schedule("x", now)
    (again,) = owner.claim()
    assert owner.fire(again.score) == [again]
    owner.settle(again)
    assert world.place("x") is None


def test_two_revocations_of_one_id_both_count(world: World, now: int) -> None:
    world.schedule("x", now + 10)
    owner = world.owner()
    owner.claim()
    world.cancel("x")
    world.schedule("x", now + 20)
    owner.claim()
    world.cancel("x")
    assert len(owner.wheel) == 2
    assert owner.fire(now + 30) == []
    assert owner.wheel == []


def test_a_copy_revoked_by_a_reschedule_is_not_confused_with_its_successor(
    world: World, now: int
) -> None:
    world.schedule("x", now)
    owner = world.owner()
    owner.claim()
    assert world.reschedule("x", now + 100) == Answer.RESCHEDULED
    (later,) = owner.claim()
    assert owner.fire(now + 0.999) == []
    assert owner.wheel == [later]
    assert owner.fire(now + 100.999) == [later]


# the owner acknowledges revocations by their turn; only acknowledged ones are removed


def test_acknowledging_one_revocation_does_not_hide_a_second_of_the_same_id(
    world: World, now: int
) -> None:
    world.schedule("x", now + 100)
    world.schedule("y", now)
    owner = world.owner()
    owner.claim()
    world.cancel("x")
    owner.fire(now + 0.999)
    world.schedule("x", now + 100)
    owner.claim()
    assert world.cancel("x") == Answer.CANCELLED
    assert owner.fire(now + 100.999) == []


def test_a_revocation_stays_until_its_report_is_acknowledged(world: World, now: int) -> None:
    world.schedule("x", now + 100)
    owner = world.owner()
    owner.claim()
    world.cancel("x")
    world.run(owner.firing(now).command)  # its reply is lost
    assert "revoked" in world.state()
    assert owner.fire(now + 100.999) == []
    owner.fire(now + 100.999)
    assert "revoked" not in world.state()


def test_a_report_is_not_acknowledged_while_a_claim_is_under_way(world: World, now: int) -> None:
    owner = world.owner()
    world.schedule("x", now + 100)
    late = world.run(owner.claiming())
    world.cancel("x")
    assert owner.fire(now) == []
    assert owner.last_revocation == 0
    owner.received(late)
    assert owner.fire(now + 100.999) == []


def test_a_fire_executed_late_keeps_newer_revocations(world: World, now: int) -> None:
    world.schedule("x", now + 100)
    owner = world.owner()
    owner.claim()
    world.cancel("x")
    owner.fire(now)
    early = owner.firing(now)
    owner.publishes(early, world.run(early.command))
    world.schedule("x", now + 100)
    owner.claim()
    world.cancel("x")
    world.run(early.command)
    assert owner.fire(now + 100.999) == []


# claim says which claim the owner has: a lost batch is returned again, and not fired unseen


def test_a_claim_sent_again_gives_the_same_batch_and_moves_nothing_more(
    world: World, now: int
) -> None:
    owner = world.owner()
    world.schedule("x", now)
    claim = owner.claiming()
    first = world.run(claim)
    world.schedule("y", now)
    before = world.state()
    assert world.run(claim)[:4] == first[:4]  # type: ignore[index]
    assert {**world.state(), "marks": None} == {**before, "marks": None}
    assert [copy.id for copy in owner.received(first)] == ["x"]
    assert [copy.id for copy in owner.claim()] == ["y"]


def test_a_claim_executed_twice_leaves_no_batch_without_an_owner(world: World, now: int) -> None:
    owner = world.owner()
    claim = owner.claiming()
    owner.received(world.run(claim))
    world.schedule("x", now)
    world.run(claim)  # once more; its answer reaches no owner
    assert world.place("x") == "mirror"
    assert [copy.id for copy in owner.claim()] == ["x"]
    assert [copy.id for copy in owner.fire(now + 0.999)] == ["x"]


def test_a_renewal_tells_of_a_claim_that_was_executed_late(world: World, now: int) -> None:
    owner = world.owner()
    claim = owner.claiming()
    owner.received(world.run(claim))
    world.schedule("x", now)
    world.run(claim)  # once more: x is in no `due`, and its owner may sleep for long
    renewed = world.run(world.bucket.renew(owner.token, TTL_MS, owner.last_claim))
    assert renewed == (True, 0.0)
    assert [copy.id for copy in owner.claim()] == ["x"]
    assert world.run(world.bucket.renew(owner.token, TTL_MS, owner.last_claim)) == (True, None)


def test_a_message_cancelled_from_a_lost_batch_is_missing_when_the_batch_is_returned_again(
    world: World, now: int
) -> None:
    owner = world.owner()
    world.schedule("x", now)
    world.schedule("y", now)
    world.run(owner.claiming())  # its reply is lost
    world.cancel("x")
    assert [copy.id for copy in owner.claim()] == ["y"]


def test_a_fire_does_not_count_a_batch_that_the_owner_has_not_received(
    world: World, now: int
) -> None:
    owner = world.owner()
    world.schedule("x", now)
    late = world.run(owner.claiming())
    owner.fire(now + 100)
    assert world.cancel("x") == Answer.CANCELLED
    owner.received(late)
    assert owner.fire(now + 100) == []


def test_a_batch_that_arrives_while_a_fire_is_under_way_waits_for_the_next(
    world: World, now: int
) -> None:
    owner = world.owner()
    world.schedule("x", now)
    late = world.run(owner.claiming())
    firing = owner.firing(now + 100)
    answer = world.run(firing.command)
    owner.received(late)
    assert owner.publishes(firing, answer) == []
    assert world.cancel("x") == Answer.CANCELLED
    assert owner.fire(now + 100) == []


# settle, retry, bury, park name (id, claim number); reclaim stays below the token's turn


def _settling(owner: Owner, copy: Copy) -> RedisCommand[Any]:
    return owner.settling(copy)


def _settling_once(owner: Owner, copy: Copy) -> RedisCommand[Any]:
    return owner.settling_once(copy)


def _retrying(owner: Owner, copy: Copy) -> RedisCommand[Any]:
    return owner.retrying(copy, delay_ms=5)


def _putting_back(owner: Owner, copy: Copy) -> RedisCommand[Any]:
    return owner.retrying(copy)


def _burying(owner: Owner, copy: Copy) -> RedisCommand[Any]:
    return owner.burying(copy)


def _parking(owner: Owner, copy: Copy) -> RedisCommand[Any]:
    return owner.parking(copy)


def _deferring(owner: Owner, copy: Copy) -> RedisCommand[Any]:
    return owner.deferring(copy)


EXITS = [_settling, _settling_once, _retrying, _putting_back, _deferring, _burying, _parking]
Exit = Callable[[Owner, Copy], RedisCommand[Any]]


@pytest.mark.parametrize("ending", EXITS)
def test_a_verb_that_ends_an_old_claim_late_does_not_touch_a_new_message_with_its_id(
    world: World, now: int, ending: Exit
) -> None:
    owner, x = fired(world, "x", now)
    late = ending(owner, x)
    owner.settle(x)
    world.schedule("x", now)
    (again,) = owner.claim()
    before = world.state()
    assert again.score == x.score
    assert world.run(late) is not None
    assert world.state() == before
    assert owner.fire(again.score) == [again]


@pytest.mark.parametrize("ending", EXITS)
def test_a_verb_that_ends_an_old_claim_late_leaves_a_copy_on_the_wheel_revocable(
    world: World, now: int, ending: Exit
) -> None:
    owner, x = fired(world, "x", now)
    late = ending(owner, x)
    owner.retry(x, delay_ms=0)
    owner.claim()
    world.run(late)
    assert world.cancel("x") == Answer.CANCELLED
    assert owner.fire(now + 1000) == []


@pytest.mark.parametrize("ending", EXITS)
def test_a_verb_that_ends_a_claim_counts_once_however_often_it_is_executed(
    world: World, now: int, ending: Exit
) -> None:
    owner, x = fired(world, "x", now)
    world.run(ending(owner, x))
    before = world.state()
    world.run(ending(owner, x))
    assert world.state() == before


def test_a_reclaim_executed_late_does_not_touch_the_wheel_of_its_own_session(
    world: World, now: int
) -> None:
    owner, _ = fired(world, "x", now)
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
    world.schedule("x", now)
    owner = world.owner()
    owner.claim()
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


def test_an_acquire_sent_again_while_the_lease_holds_gets_the_same_token(
    world: World, now: int
) -> None:
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


def test_a_lease_made_longer_by_a_clock_step_is_cut_to_its_ttl(
    world: World,
) -> None:
    world.owner()
    world.redis.pexpire(world.key("lease"), 7_229_654)
    answer = world.run(world.bucket.acquire("second:1", 30_000))
    assert answer.left_ms <= TTL_MS
    assert 0 < world.redis.pttl(world.key("lease")) <= TTL_MS


def test_a_bucket_with_another_birth_id_is_not_taken(world: World) -> None:
    world.owner()
    world.end_lease()
    world.redis.hset(world.key("marks"), "birth", "another")
    before = world.state()
    assert world.run(world.bucket.acquire("worker:1", TTL_MS)).stranger
    assert world.state() == before


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
    endings = {make.__name__: make(owner, copy) for make in EXITS}
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
    world.schedule("x", now)
    stale = world.owner()
    (x,) = stale.claim()
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


def test_an_owner_without_its_lease_changes_nothing_even_if_the_lease_is_free(
    world: World, now: int
) -> None:
    owner, x = fired(world, "x", now)
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
    world.schedule("x", now)
    owner = world.owner()
    owner.claim()
    owner.last_claim += 1
    before = world.state()
    sent = owner.claiming() if verb == "claim" else owner.firing(now).command
    assert world.run(sent) is None
    assert world.state() == before


def test_every_owner_verb_renews_the_lease(world: World, now: int) -> None:
    owner, x = fired(world, "x", now)
    for name, command in owner_verbs(owner, x).items():
        world.redis.pexpire(world.key("lease"), 1000)
        world.run(command)
        left_ms = world.redis.pttl(world.key("lease"))
        assert left_ms > 1000 or name == "release", name


# the watermark: replaced by the first fire of a session, never lowered within one


def test_the_first_fire_of_a_session_replaces_the_watermark_of_the_one_before(
    world: World, now: int
) -> None:
    fired(world, "high", now + 9000)
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
    fired(world, "high", now + 9000)
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
    owner, _ = fired(world, "y", now + 1000)
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


# an earlier publish may have arrived


def test_a_reschedule_between_a_fire_and_its_late_publish_says_maybe(
    world: World, now: int
) -> None:
    fired(world, "x", now)
    world.successor()
    assert world.reschedule("x", now + 1000) == Answer.RESCHEDULED_MAYBE_DELIVERED


def test_a_cancel_between_a_fire_and_its_late_publish_says_maybe(world: World, now: int) -> None:
    fired(world, "x", now)
    world.successor()
    assert world.cancel("x") == Answer.CANCELLED_MAYBE_DELIVERED
    assert world.tried("x") is None


def test_a_replacement_remembers_that_an_earlier_publish_may_have_arrived(
    world: World, now: int
) -> None:
    fired(world, "x", now)
    world.successor()
    assert world.replace("x", now + 1) == Answer.REPLACED
    assert world.tried("x") == "0:1:"
    assert world.cancel("x") == Answer.CANCELLED_MAYBE_DELIVERED


@pytest.mark.parametrize(
    ("maybe", "answer"), [(False, Answer.CANCELLED), (True, Answer.CANCELLED_MAYBE_DELIVERED)]
)
def test_a_failed_publish_is_remembered_by_whether_it_may_have_arrived(
    world: World, now: int, maybe: bool, answer: Answer
) -> None:
    owner, x = fired(world, "x", now)
    owner.retry(x, delay_ms=100, maybe=maybe)
    assert world.tried("x") == f"1:{int(maybe)}:{now}"
    assert world.cancel("x") == answer


def test_a_message_is_dropped_only_for_the_call_that_scheduled_it(world: World, now: int) -> None:
    world.schedule("x", now + 1000)
    record = world.state()["messages"][b"x"]
    who = world.owner().token, TTL_MS

    def dropped(stamp: bytes) -> int | None:
        return world.run(drop(world.bucket, who, [("x", stamp)]))

    assert dropped(b"else") == 0 and world.place("x") == "due"
    assert dropped(record[9:13]) == 1 and world.place("x") is None


def test_nothing_is_left_of_the_failures_of_a_message_that_is_settled(
    world: World, now: int
) -> None:
    owner = world.owner()
    for id in ("x", "y"):
        world.schedule(id, now)
    owner.retry(*owner.claim(), delay_ms=0)
    owner.settle(*owner.claim())
    assert world.state().keys() == {"lease", "marks"}


def test_a_retried_message_is_claimed_with_its_new_due_time_and_remembers_the_first(
    world: World, now: int
) -> None:
    owner, x = fired(world, "x", now)
    owner.retry(x, delay_ms=100)
    (again,) = owner.claim()
    assert again.score == now + 100 + 255 / 256
    assert world.tried("x") == f"1:0:{now}"
    assert world.cancel("x") == Answer.CANCELLED  # the score that it was fired with does not count


def test_maybe_delivered_is_not_forgotten_by_a_later_certain_failure(
    world: World, now: int
) -> None:
    owner, x = fired(world, "x", now)
    owner.retry(x, delay_ms=0, maybe=True)
    (x,) = owner.claim()
    owner.fire(x.score)
    owner.retry(x, delay_ms=0, maybe=False)
    assert world.tried("x") == f"2:1:{now}"


# call stamps: a client's call that is sent again changes nothing more


def test_a_schedule_sent_again_after_a_cancel_does_not_revive_the_message(
    world: World, now: int
) -> None:
    schedule = world.scheduling("x", now)
    world.run(schedule)
    world.cancel("x")
    assert world.run(schedule) == [(Answer.CANCELLED, now)]
    assert world.place("x") is None


def test_a_cancel_sent_again_does_not_remove_a_later_message(world: World, now: int) -> None:
    world.schedule("x", now)
    cancel = world.canceling("x")
    assert world.run(cancel) == Answer.CANCELLED
    world.schedule("x", now + 1)
    before = world.state()
    assert world.run(cancel) == Answer.CANCELLED
    assert world.state() == before


def test_a_reschedule_sent_again_does_not_undo_a_later_one(world: World, now: int) -> None:
    world.schedule("x", now)
    reschedule = world.rescheduling("x", now + 100)
    assert world.run(reschedule) == Answer.RESCHEDULED
    world.reschedule("x", now + 200)
    assert world.run(reschedule) == Answer.RESCHEDULED
    assert world.score("x") == now + 200 + 255 / 256


def test_a_replace_sent_again_does_not_undo_a_later_change(world: World, now: int) -> None:
    world.schedule("x", now)
    replace = world.scheduling("x", now + 100, payload=b"b", policy="replace")
    assert world.run(replace) == [(Answer.REPLACED, now + 100)]
    world.reschedule("x", now + 200)
    before = world.state()
    assert world.run(replace) == [(Answer.REPLACED, now + 200)]
    assert world.state() == before
    world.replace("x", now + 300, b"c")
    before = world.state()
    assert world.run(replace)[0][0] == Answer.CANCELLED  # type: ignore[index]
    assert world.state() == before


def test_a_schedule_sent_again_after_its_message_was_replaced_is_answered_cancelled(
    world: World, now: int
) -> None:
    schedule = world.scheduling("x", now)
    world.run(schedule)
    world.replace("x", now + 100)
    before = world.state()
    assert world.run(schedule)[0][0] == Answer.CANCELLED  # type: ignore[index]
    assert world.state() == before


@pytest.mark.parametrize("verb", ["kick", "discard"])
def test_a_call_on_the_dead_set_sent_again_does_not_touch_a_message_buried_later(
    world: World, now: int, verb: str
) -> None:
    owner, x = fired(world, "x", now)
    owner.bury(x)
    call = world.kicking("x") if verb == "kick" else world.discarding("x")
    first = world.run(call)
    world.cancel("x")
    world.schedule("x", now)
    (again,) = owner.claim()
    owner.bury(again)
    before = world.state()
    assert world.run(call) == first
    assert world.state() == before


def test_an_at_most_once_schedule_sent_again_after_the_publish_schedules_nothing(
    world: World, now: int
) -> None:
    schedule = world.scheduling("x", now)
    world.run(schedule)
    owner = world.owner()
    owner.claim()
    (x,) = owner.fire(now + 0.999)
    assert world.run(owner.settling_once(x)) == {"x"}
    assert world.run(schedule) == [(Answer.CREATED, now)]
    assert world.place("x") is None


def test_an_at_most_once_settle_sent_again_still_allows_its_one_publish(
    world: World, now: int
) -> None:
    owner, x = fired(world, "x", now)
    settle = owner.settling_once(x)
    assert world.run(settle) == {"x"}
    world.schedule("x", now)
    owner.claim()
    before = world.state()
    assert world.run(settle) == {"x"}
    assert world.state() == before


def test_an_at_most_once_settle_does_not_allow_a_copy_that_another_verb_ended(
    world: World, now: int
) -> None:
    owner, x = fired(world, "x", now)
    owner.retry(x, delay_ms=0)
    assert world.run(owner.settling_once(x)) == set()
    assert world.place("x") == "due"


def test_a_schedule_sent_again_after_the_publish_schedules_once_more_as_designed(
    world: World, now: int
) -> None:
    schedule = world.scheduling("x", now)
    world.run(schedule)
    owner = world.owner()
    owner.claim()
    owner.settle(*owner.fire(now + 0.999))
    assert world.run(schedule) == [(Answer.CREATED, now)]
    assert world.place("x") == "due"


def test_stamps_are_forgotten_after_ten_minutes(world: World, now: int) -> None:
    world.schedule("x", now)
    world.cancel("x")
    assert len(world.state()["calls"]) == 2
    world.now_ms += 10 * 60 * 1000 + 1
    world.schedule("y", now)
    world.cancel("y")
    assert all(b"y" in call for call in world.state()["calls"])


@pytest.mark.parametrize("verb", ["schedule", "claim"])
def test_any_schedule_or_claim_forgets_old_stamps_of_all_kinds_of_calls(
    world: World, now: int, verb: str
) -> None:
    owner, x = fired(world, "x", now)
    world.run(owner.settling_once(x))
    assert len(world.state()["calls"]) == 2
    world.now_ms += 10 * 60 * 1000 + 1
    if verb == "claim":
        owner.claim()
    else:
        world.schedule("y", now)
    assert "calls" not in world.state()


@pytest.mark.parametrize("verb", ["schedule", "claim", "cancel", "settle_once"])
def test_old_stamps_are_forgotten_a_few_at_a_time(world: World, now: int, verb: str) -> None:
    owner = world.owner()
    world.schedule("x", now)
    (x,) = owner.claim()
    world.schedule("y", now)
    old = {f"call{n:05}": now - 700_000 for n in range(5000)}
    world.redis.zadd(world.key("calls"), old)
    calls = {
        "schedule": lambda: world.schedule("z", now),
        "claim": lambda: owner.claim(),
        "cancel": lambda: world.cancel("y"),
        "settle_once": lambda: world.run(owner.settling_once(x)),
    }
    calls[verb]()
    left = world.redis.zcount(world.key("calls"), now - 700_000, now - 700_000)
    assert 5000 - 500 <= left <= 5000 - 100


def test_schedule_and_plain_settle_write_no_stamps(world: World, now: int) -> None:
    owner, x = fired(world, "x", now)
    owner.settle(x)
    assert "calls" not in world.state()
    assert world.state().keys() == {"lease", "marks"}


# what each call answers in each state of the message


def _delayed(world: World, now: int) -> None:
    world.schedule("x", now)


def _parked(world: World, now: int) -> None:
    world.schedule("x", now)
    owner = world.owner()
    owner.park(*owner.claim())


def _on_the_wheel(world: World, now: int) -> None:
    world.schedule("x", now)
    world.owner().claim()


def _in_flight(world: World, now: int) -> None:
    fired(world, "x", now)


def _dead(world: World, now: int) -> None:
    owner, x = fired(world, "x", now)
    owner.bury(x)


def _nowhere(world: World, now: int) -> None:
    pass


ANSWERS = [
    (_delayed, "cancelled", "rescheduled", "replaced", "unknown", "unknown"),
    (_parked, "cancelled", "rescheduled", "replaced", "unknown", "unknown"),
    (_on_the_wheel, "cancelled", "rescheduled", "replaced", "unknown", "unknown"),
    (_in_flight, "in_flight", "in_flight", "in_flight", "unknown", "unknown"),
    (_dead, "cancelled", "dead", "replaced", "kicked", "discarded"),
    (_nowhere, "unknown", "unknown", "created", "unknown", "unknown"),
]
VERBS = ("cancel", "reschedule", "replace", "kick", "discard")
CASES = [
    pytest.param(where, verb, answer, id=f"{verb} {where.__name__[1:]}")
    for where, *answers in ANSWERS
    for verb, answer in zip(VERBS, answers, strict=True)
]
AFTER = dict.fromkeys(("cancelled", "discarded")) | dict.fromkeys(
    ("created", "rescheduled", "replaced", "kicked"), "due"
)


@pytest.mark.parametrize(("where", "verb", "answer"), CASES)
def test_each_call_answers_truthfully_in_every_state_of_the_message(
    world: World, now: int, where: Callable[[World, int], None], verb: str, answer: str
) -> None:
    where(world, now)
    before, place = world.state(), world.place("x")
    due = () if verb in ("cancel", "kick", "discard") else (now + 50,)
    assert getattr(world, verb)("x", *due) == answer
    if answer in AFTER:
        assert world.place("x") == AFTER[answer]
    else:
        assert (world.state(), world.place("x")) == (before, place)
    revoked = where is _on_the_wheel and verb in ("cancel", "reschedule", "replace")
    assert ("revoked" in world.state()) == revoked


@pytest.mark.parametrize(
    ("policy", "payload", "answer"),
    [
        ("fail", b"same", Answer.DUPLICATE),
        ("fail", b"other", Answer.CONFLICT),
        ("keep", b"same", Answer.DUPLICATE),
        ("keep", b"other", Answer.DUPLICATE),
        ("replace", b"same", Answer.REPLACED),
        ("replace", b"other", Answer.REPLACED),
    ],
)
def test_the_conflict_policy_decides_the_fate_of_a_pending_id(
    world: World, now: int, policy: Any, payload: bytes, answer: Answer
) -> None:
    world.schedule("x", now, payload=b"same")
    second = world.scheduling("x", now + 50, payload=payload, policy=policy)
    moved = answer is Answer.REPLACED
    assert world.run(second) == [(answer, now + 50 if moved else now)]
    assert world.score("x") == now + (50 if moved else 0) + 255 / 256


def test_one_call_may_hold_an_id_twice(world: World, now: int) -> None:
    first, second = (Accepted("x", b"x", str(now + n), 255, b"%d" % n) for n in (0, 5))
    twice = world.scheduling_all([first, second], OnConflict.REPLACE)
    assert world.run(twice) == [(Answer.CREATED, now), (Answer.REPLACED, now + 5)]
    assert world.place("x") == "due"
    assert world.score("x") == now + 5 + 255 / 256


# claim: limits, order, unreadable records


def test_claims_take_messages_by_score_within_their_limits_and_return_the_next_score(
    world: World, now: int
) -> None:
    for n in range(4):
        world.schedule(f"x{n}", now + n, payload=b"." * 87)  # 100 bytes with the head
    world.schedule("far", now + 60_000)
    owner = world.owner()
    two = world.run(owner.claiming(limit=2))
    assert [copy.id for copy in owner.received(two)] == ["x0", "x1"]
    assert two is not None and two.more and two.next_score == now + 2 + 255 / 256
    one = world.run(owner.claiming(max_bytes=1))
    assert [copy.id for copy in owner.received(one)] == ["x2"]
    last = world.run(owner.claiming())
    assert [copy.id for copy in owner.received(last)] == ["x3"]
    assert last is not None and not last.more and last.next_score == now + 60_000 + 255 / 256


def test_a_claim_ends_with_the_record_that_reaches_its_bytes(world: World, now: int) -> None:
    sizes = [13, *([113] * 6)]  # with the head; after the first, twelve more seem to fit
    for n, size in enumerate(sizes):
        world.schedule(f"x{n}", now + n, payload=b"." * (size - 13))
    owner = world.owner()
    assert len(owner.claim(max_bytes=13 + 113)) == 2
    assert len(owner.claim(max_bytes=114)) == 2
    assert len(owner.claim(max_bytes=113)) == 1


def test_a_message_due_just_after_the_horizon_is_not_claimed(world: World, now: int) -> None:
    world.schedule("in", now + 100, priority=0)
    world.schedule("out", now + 101, priority=255)
    assert [copy.id for copy in world.owner().claim(ahead_ms=100)] == ["in"]


def test_a_message_without_payload_is_buried_and_does_not_stop_others(
    world: World, now: int
) -> None:
    world.schedule("gone", now)
    world.schedule("x", now + 1)
    world.redis.hdel(world.key("messages"), "gone")
    assert [copy.id for copy in world.owner().claim()] == ["x"]
    assert world.state()["dead_reason"] == {b"gone": b"payload_missing"}


def test_a_batch_returned_again_buries_messages_that_lost_their_payload(
    world: World, now: int
) -> None:
    world.schedule("gone", now)
    world.schedule("x", now + 1)
    owner = world.owner()
    world.run(owner.claiming())
    world.redis.hdel(world.key("messages"), "gone")
    assert [copy.id for copy in owner.claim()] == ["x"]
    assert b"gone" in world.state()["dead"]
    assert world.place("x") == "mirror"


def test_reclaim_buries_messages_without_payload(world: World, now: int) -> None:
    world.schedule("gone", now)
    world.owner().claim()
    world.redis.hdel(world.key("messages"), "gone")
    world.successor()
    assert world.state()["dead_reason"] == {b"gone": b"payload_missing"}


def test_a_claim_returns_the_remembered_failures(world: World, now: int) -> None:
    owner, x = fired(world, "x", now)
    owner.retry(x, delay_ms=10, maybe=True)
    world.schedule("y", now)
    claimed = world.run(owner.claiming())
    assert claimed is not None
    assert dict(zip(claimed.ids, claimed.tried, strict=True)) == {
        b"x": f"1:1:{now}".encode(),
        b"y": b"",
    }


def test_every_verb_takes_many_messages_in_one_call(world: World, now: int) -> None:
    names = [f"x{n:04}" for n in range(2500)]
    messages = [
        Accepted(name, b"", str(now + n % 7), 255, b"payload") for n, name in enumerate(names)
    ]
    world.run(world.scheduling_all(messages))
    owner = world.owner()
    copies = owner.claim(limit=5000)
    assert len(copies) == 2500
    owner.retry(*copies)
    copies = owner.claim(limit=5000)
    owner.park(*copies)
    world.run(owner.unparking(limit=5000))
    copies = owner.claim(limit=5000)
    assert len(owner.fire(now + 10)) == 2500
    owner.settle(*copies)
    assert world.state().keys() == {"lease", "marks"}


# parked


def test_parked_messages_are_not_claimed_and_come_back_in_order(world: World, now: int) -> None:
    for n in range(4):
        world.schedule(f"x{n}", now + n)
    owner = world.owner()
    owner.park(*owner.claim())
    assert owner.claim() == []
    assert world.run(owner.unparking(limit=2)) == 2
    assert [copy.id for copy in owner.claim()] == ["x0", "x1"]
    assert world.run(owner.unparking(ids=["x3", "unheard of"])) == 1
    assert [copy.id for copy in owner.claim()] == ["x3"]
    assert world.tried("x0") is None


def test_a_message_parked_before_the_fire_that_would_cover_it_can_still_be_cancelled(
    world: World, now: int
) -> None:
    world.schedule("x", now)
    world.schedule("y", now)
    owner = world.owner()
    x, y = owner.claim()
    owner.park(x)
    assert owner.fire(now + 0.999) == [y]
    assert world.cancel("x") == Answer.CANCELLED
    assert owner.fire(now + 0.999) == []


# the dead set


def test_a_kicked_message_is_due_now_with_its_failures_forgotten(world: World, now: int) -> None:
    owner, x = fired(world, "x", now - 5000)
    owner.bury(x, maybe=False)
    assert world.tried("x") == "1:0:"
    assert world.kick("x") == Answer.KICKED
    assert world.score("x") == now + 255 / 256
    assert world.tried("x") is None


def test_a_kicked_message_remembers_that_it_may_have_been_delivered(world: World, now: int) -> None:
    owner, x = fired(world, "x", now)
    owner.bury(x, maybe=True)
    world.kick("x")
    assert world.tried("x") == "0:1:"


# one slot of a cluster


@pytest.fixture
def in_cluster(now_ms: int) -> Iterator[World]:
    """A bucket on the only node of a cluster."""
    # The default port of the bus is in the range of those for outgoing connections.
    options = ["--cluster-enabled", "yes", "--cluster-port", str(free_port())]
    with RedisServer(options) as server, World(server.url, "slots", now_ms) as world:
        world.redis.execute_command("CLUSTER ADDSLOTS", *range(16_384))
        # A node refuses writes for two seconds after its start.
        until(lambda: world.redis.execute_command("CLUSTER INFO")["cluster_state"] == "ok")
        yield world


def test_every_script_loads_and_its_keys_are_in_one_slot(in_cluster: World) -> None:
    for verb, sample in SAMPLES.items():
        keys = sample(1).keys
        slots = {in_cluster.redis.execute_command("CLUSTER KEYSLOT", key) for key in keys}
        assert len(slots) == 1, verb
        in_cluster.run(sample(2))


def test_a_whole_life_runs_on_a_node_of_a_cluster(in_cluster: World, now_ms: int) -> None:
    owner, x = fired(in_cluster, "x", now_ms)
    owner.bury(x)
    in_cluster.kick("x")
    (x,) = owner.claim()
    owner.park(x)
    in_cluster.run(owner.unparking())
    owner.claim()
    in_cluster.reschedule("x", now_ms)
    owner = in_cluster.successor()
    owner.settle(*owner.claim())
    assert in_cluster.place("x") is None
