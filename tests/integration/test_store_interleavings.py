"""The bucket protocol on real Redis: each rule of it, with calls in every harmful order.

"Executed late" and "sent again" mean the identical command once more. To the store, that is what a
re-send looks like, or a request that was given up while it was still in a socket. Sessions are in
`test_store_sessions.py`, clients' calls in `test_store_calls.py`.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from delaybridge.ledger.comparing.healing import drop
from delaybridge.message import Answer
from tests.rigs.bucket import TTL_MS, World

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
    owner, _ = world.fired("y", due_ms=now + 1000)
    world.schedule("x", now)
    (x,) = owner.claim()
    assert x.score < owner.watermark
    assert undo(world, now + 1) == answer


@undoing
def test_a_message_rescheduled_to_now_and_claimed_again_is_not_in_flight(
    world: World, now: int, undo: Callable[[World, int], Answer], answer: Answer
) -> None:
    owner, _ = world.fired("y", due_ms=now + 1000)
    world.schedule("x", now + 5000)
    owner.claim()
    world.reschedule("x", now)
    owner.claim()
    assert undo(world, now + 1) == answer


def test_a_crash_counts_no_attempt_for_a_message_claimed_below_the_watermark_and_never_fired(
    world: World, now: int
) -> None:
    owner, _ = world.fired("y", due_ms=now + 1000)
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
    owner, _ = world.claimed("x")
    assert world.cancel("x") == Answer.CANCELLED
    world.schedule("x", now)
    (again,) = owner.claim()
    assert owner.fire(again.score) == [again]
    owner.settle(again)
    assert world.place("x") is None


def test_two_revocations_of_one_id_both_count(world: World, now: int) -> None:
    owner, _ = world.claimed("x", due_ms=now + 10)
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
    owner, _ = world.claimed("x")
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
    owner, _ = world.claimed("x", due_ms=now + 100)
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
    owner, _ = world.claimed("x", due_ms=now + 100)
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


# an earlier publish may have arrived


def test_a_reschedule_between_a_fire_and_its_late_publish_says_maybe(
    world: World, now: int
) -> None:
    world.fired("x")
    world.successor()
    assert world.reschedule("x", now + 1000) == Answer.RESCHEDULED_MAYBE_DELIVERED


def test_a_cancel_between_a_fire_and_its_late_publish_says_maybe(world: World) -> None:
    world.fired("x")
    world.successor()
    assert world.cancel("x") == Answer.CANCELLED_MAYBE_DELIVERED
    assert world.tried("x") is None


def test_a_replacement_remembers_that_an_earlier_publish_may_have_arrived(
    world: World, now: int
) -> None:
    world.fired("x")
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
    owner, (x,) = world.fired("x")
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
    owner, (x,) = world.fired("x")
    owner.retry(x, delay_ms=100)
    (again,) = owner.claim()
    assert again.score == now + 100 + 255 / 256
    assert world.tried("x") == f"1:0:{now}"
    assert world.cancel("x") == Answer.CANCELLED  # the score that it was fired with does not count


def test_maybe_delivered_is_not_forgotten_by_a_later_certain_failure(
    world: World, now: int
) -> None:
    owner, (x,) = world.fired("x")
    owner.retry(x, delay_ms=0, maybe=True)
    (x,) = owner.claim()
    owner.fire(x.score)
    owner.retry(x, delay_ms=0, maybe=False)
    assert world.tried("x") == f"2:1:{now}"
