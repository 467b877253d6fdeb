"""Clients' calls on real Redis: sent again, and in every state of the message."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from delaybridge.accept.accept import Accepted
from delaybridge.message import Answer, OnConflict
from tests.rigs.bucket import World

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
    owner, (x,) = world.fired("x")
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
    owner, (x,) = world.fired("x")
    settle = owner.settling_once(x)
    assert world.run(settle) == {"x"}
    world.schedule("x", now)
    owner.claim()
    before = world.state()
    assert world.run(settle) == {"x"}
    assert world.state() == before


def test_an_at_most_once_settle_does_not_allow_a_copy_that_another_verb_ended(world: World) -> None:
    owner, (x,) = world.fired("x")
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
    owner, (x,) = world.fired("x")
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


def test_schedule_and_plain_settle_write_no_stamps(world: World) -> None:
    owner, (x,) = world.fired("x")
    owner.settle(x)
    assert "calls" not in world.state()
    assert world.state().keys() == {"lease", "marks"}


# what each call answers in each state of the message


def _park(world: World) -> None:
    owner, copies = world.claimed("x")
    owner.park(*copies)


def _bury(world: World) -> None:
    owner, copies = world.fired("x")
    owner.bury(*copies)


VERBS = ("cancel", "reschedule", "replace", "kick", "discard")
STATES: list[tuple[str, Callable[[World], object], str]] = [
    ("delayed", lambda world: world.schedule("x", world.now_ms),
     "cancelled rescheduled replaced unknown unknown"),
    ("parked", _park, "cancelled rescheduled replaced unknown unknown"),
    ("on_the_wheel", lambda world: world.claimed("x"),
     "cancelled rescheduled replaced unknown unknown"),
    ("in_flight", lambda world: world.fired("x"), "in_flight in_flight in_flight unknown unknown"),
    ("dead", _bury, "cancelled dead replaced kicked discarded"),
    ("nowhere", lambda world: None, "unknown unknown created unknown unknown"),
]  # fmt: skip
CASES = [
    pytest.param(state, bring, verb, answer, id=f"{verb} {state}")
    for state, bring, answers in STATES
    for verb, answer in zip(VERBS, answers.split(), strict=True)
]
AFTER = dict.fromkeys(("cancelled", "discarded")) | dict.fromkeys(
    ("created", "rescheduled", "replaced", "kicked"), "due"
)


@pytest.mark.parametrize(("state", "bring", "verb", "answer"), CASES)
def test_each_call_answers_truthfully_in_every_state_of_the_message(
    world: World, now: int, state: str, bring: Callable[[World], object], verb: str, answer: str
) -> None:
    bring(world)
    before, place = world.state(), world.place("x")
    due = () if verb in ("cancel", "kick", "discard") else (now + 50,)
    assert getattr(world, verb)("x", *due) == answer
    if answer in AFTER:
        assert world.place("x") == AFTER[answer]
    else:
        assert (world.state(), world.place("x")) == (before, place)
    revoked = state == "on_the_wheel" and verb in ("cancel", "reschedule", "replace")
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


# the dead set


def test_a_kicked_message_is_due_now_with_its_failures_forgotten(world: World, now: int) -> None:
    owner, (x,) = world.fired("x", due_ms=now - 5000)
    owner.bury(x, maybe=False)
    assert world.tried("x") == "1:0:"
    assert world.kick("x") == Answer.KICKED
    assert world.score("x") == now + 255 / 256
    assert world.tried("x") is None


def test_a_kicked_message_remembers_that_it_may_have_been_delivered(world: World) -> None:
    owner, (x,) = world.fired("x")
    owner.bury(x, maybe=True)
    world.kick("x")
    assert world.tried("x") == "0:1:"
