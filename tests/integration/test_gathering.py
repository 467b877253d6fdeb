"""Debounce and throttle on one bucket, with the time passed in."""

from __future__ import annotations

from typing import Any

import pytest

from delaybridge.accept.accept import Accepted, accept
from delaybridge.gathering import Debounce, Gathering, Throttle
from delaybridge.message import (
    Answer,
    GatheredRecord,
    Limits,
    Message,
    OnConflict,
    decode_record,
)
from delaybridge.store.messages import pulling
from delaybridge.store.protocol.bucket import Item
from delaybridge.store.protocol.record import split_record
from delaybridge.store.protocol.verbs import SourceOffsets
from tests.rigs.bucket import TTL_MS, Owner, World
from tests.rigs.waiting import DEADLINE_S

CREATED, REPLACED, KEPT = Answer.CREATED, Answer.REPLACED, Answer.KEPT
IN_FLIGHT, CONFLICT = Answer.IN_FLIGHT, Answer.CONFLICT
KINDS = {"kafka": "kafka", "pull": "pull"}
QUIET_MS, LONGEST_MS, EVERY_MS = 10_000, 25_000, 60_000
DEBOUNCE, THROTTLE = Debounce("k", "10s", "25s"), Throttle("k", "60s")
BOTH = pytest.mark.parametrize("gathering", [DEBOUNCE, THROTTLE], ids=["debounce", "throttle"])
TO = "kafka:t"


def accepted(gathering: Gathering, body: bytes = b"x", to: str = TO, **fields: Any) -> Accepted:
    return accept(Message(to, body, delay=gathering, **fields), KINDS, Limits())


def call(world: World, gathering: Gathering, body: bytes = b"x", **fields: Any) -> Any:
    """Answer, and in how many ms it is due."""
    command = world.scheduling_all([accepted(gathering, body, **fields)])
    ((answer, due_ms),) = world.run(command) or [(None, 0)]
    return answer, due_ms - world.now_ms


def body_of(world: World, id: str = "k") -> bytes | None:
    row = world.run(world.bucket.get(id))
    return None if row is None else decode_record(split_record(row.record)[1]).body


def deliver(world: World, owner: Owner) -> list[bytes | None]:
    """What is due goes out; the bodies, in order."""
    owner.claim(ahead_ms=0)
    copies = owner.fire(world.now_ms + 0.999)
    bodies = [body_of(world, copy.id) for copy in copies]
    owner.settle(*copies)
    return bodies


# debounce


def test_each_call_postpones_and_the_last_content_wins(world: World) -> None:
    assert call(world, DEBOUNCE, b"1") == (CREATED, QUIET_MS)
    world.now_ms += 9_000
    assert call(world, DEBOUNCE, b"2") == (REPLACED, QUIET_MS)
    world.now_ms += QUIET_MS
    assert deliver(world, world.owner()) == [b"2"]


def test_it_is_never_later_than_longest_after_the_first_call(world: World) -> None:
    call(world, DEBOUNCE)
    for left_ms in (QUIET_MS, 9_000, 1_000):
        world.now_ms += 8_000
        assert call(world, DEBOUNCE, b"last") == (REPLACED, left_ms)
    world.now_ms += 1_000
    assert deliver(world, world.owner()) == [b"last"]
    assert call(world, DEBOUNCE) == (CREATED, QUIET_MS)


def test_the_first_call_decides_about_longest(world: World) -> None:
    call(world, DEBOUNCE)
    world.now_ms += 9_000
    assert call(world, Debounce("k", "1h", "2h")) == (REPLACED, LONGEST_MS - 9_000)


# throttle


def test_the_first_goes_at_once_and_of_the_others_only_the_last(world: World) -> None:
    owner = world.owner()
    assert call(world, THROTTLE, b"1") == (CREATED, 0)
    assert deliver(world, owner) == [b"1"]
    world.now_ms += 10_000
    assert call(world, THROTTLE, b"2") == (KEPT, EVERY_MS - 10_000)
    world.now_ms += 10_000
    assert call(world, THROTTLE, b"3") == (REPLACED, EVERY_MS - 20_000)
    world.now_ms += EVERY_MS - 20_000
    assert deliver(world, owner) == [b"3"]
    # Its delivery began the span again.
    world.now_ms += EVERY_MS - 1
    assert call(world, THROTTLE, b"4") == (KEPT, 1)
    world.now_ms += 1
    assert deliver(world, owner) == [b"4"]
    world.now_ms += EVERY_MS
    assert call(world, THROTTLE, b"5") == (CREATED, 0)


def test_what_was_kept_and_cancelled_leaves_the_span_as_it_is(world: World) -> None:
    owner = world.owner()
    call(world, THROTTLE)
    deliver(world, owner)
    world.now_ms += 1_000
    assert call(world, THROTTLE) == (KEPT, EVERY_MS - 1_000)
    assert world.cancel("k") == Answer.CANCELLED
    world.now_ms += 1_000
    assert call(world, THROTTLE) == (KEPT, EVERY_MS - 2_000)


def test_a_call_whose_time_is_behind_does_not_repeat_a_span(world: World) -> None:
    call(world, THROTTLE)
    deliver(world, world.owner())
    world.now_ms -= 5  # it was made before its row was written in the ledger
    assert call(world, THROTTLE) == (KEPT, EVERY_MS + 5)


def test_a_span_that_ended_leaves_nothing_behind(world: World) -> None:
    owner = world.owner()
    for n in range(12):
        call(world, Throttle(f"k{n}", "1s"))
    deliver(world, owner)
    world.now_ms += 700_000
    assert call(world, THROTTLE) == (CREATED, 0)
    deliver(world, owner)
    world.now_ms += 700_000
    call(world, THROTTLE)
    deliver(world, owner)
    state = world.state()
    assert set(state["delivered"]) == {b"k\0"}
    assert len(state["calls"]) == 1 and "messages" not in state


def test_an_owner_forgets_spans_where_nobody_calls(world: World) -> None:
    owner = world.owner()
    call(world, THROTTLE)
    deliver(world, owner)
    for later_ms, left in ((EVERY_MS - 1, 1), (1, 0)):
        world.now_ms += later_ms
        trim = world.bucket.trim(owner.token, TTL_MS, keep=10, age_ms=None, now_ms=world.now_ms)
        world.run(trim)
        assert len(world.state().get("delivered", ())) == left


# what is leaving, has left, or cannot leave


@BOTH
def test_what_is_due_is_leaving_and_the_next_message_is_another(
    world: World, gathering: Gathering
) -> None:
    call(world, gathering, b"1")
    world.now_ms += QUIET_MS if gathering is DEBOUNCE else 0
    owner = world.owner()
    for step in (lambda: None, lambda: owner.claim(ahead_ms=0)):
        step()
        answer, due_in_ms = call(world, gathering, b"2")
        assert (answer, due_in_ms, body_of(world)) == (IN_FLIGHT, 0, b"1")
    world.now_ms += 5_000  # it is claimed: it goes out, however late
    assert call(world, gathering, b"2")[0] == IN_FLIGHT
    fired = owner.fire(world.now_ms + 0.999)
    assert call(world, gathering, b"2")[0] == IN_FLIGHT
    owner.settle(*fired)
    assert call(world, gathering, b"2")[0] == (CREATED if gathering is DEBOUNCE else KEPT)


@BOTH
def test_what_cannot_leave_is_replaced_by_each_call(world: World, gathering: Gathering) -> None:
    call(world, gathering, b"1")
    world.now_ms += LONGEST_MS + 1_000
    for _ in range(2):  # no worker: the second is not to wait for the first
        assert call(world, gathering, b"2") == (REPLACED, -1_000)
    owner = world.owner()
    owner.park(*owner.claim())
    assert call(world, gathering, b"3") == (REPLACED, -1_000)
    assert world.place("k") == "due"
    assert deliver(world, owner) == [b"3"]


@BOTH
def test_one_that_is_tried_again_is_replaced(world: World, gathering: Gathering) -> None:
    call(world, gathering, b"1")
    world.now_ms += QUIET_MS
    owner = world.owner()
    owner.claim()
    owner.retry(*owner.fire(world.now_ms + 0.999), delay_ms=3_000, maybe=True)
    answer, due_in_ms = call(world, gathering, b"2")
    assert (answer, due_in_ms) == (REPLACED, QUIET_MS if gathering is DEBOUNCE else 3_000)
    assert (body_of(world), world.tried("k")) == (b"2", "0:1:")


@BOTH
def test_a_dead_message_does_not_wait(world: World, gathering: Gathering) -> None:
    call(world, gathering, b"1")
    world.now_ms += QUIET_MS
    owner = world.owner()
    owner.claim()
    owner.bury(*owner.fire(world.now_ms + 0.999))
    due_in_ms = QUIET_MS if gathering is DEBOUNCE else EVERY_MS - QUIET_MS
    assert call(world, gathering, b"2") == (REPLACED, due_in_ms)
    assert world.place("k") == "due"


@BOTH
def test_what_a_consumer_has_was_delivered(world: World, gathering: Gathering) -> None:
    call(world, gathering, b"1", to="pull:t")
    world.now_ms += QUIET_MS
    owner = world.owner()
    offered = [(Item(*copy), "pull:t") for copy in owner.claim()]
    world.run(pulling.offer(world.bucket, (owner.token, TTL_MS), offered))
    assert call(world, gathering, b"2", to="pull:t")[0] == REPLACED  # no consumer has it yet
    owner.claim(ahead_ms=0)
    offered = [(Item(*copy), "pull:t") for copy in owner.wheel]
    world.now_ms += QUIET_MS
    owner.claim(ahead_ms=0)
    offered = [(Item(*copy), "pull:t") for copy in owner.wheel[-1:]]
    world.run(pulling.offer(world.bucket, (owner.token, TTL_MS), offered))
    receive = pulling.receive(world.bucket, "t", 1, TTL_MS, 7, now_ms=world.now_ms)
    assert len(world.run(receive)) == 1
    assert call(world, gathering, b"3", to="pull:t")[0] in (CREATED, KEPT)


# whose key it is


@BOTH
def test_a_key_is_of_one_destination_and_of_gathered_messages(
    world: World, gathering: Gathering
) -> None:
    later = Throttle("k", "60s") if gathering is THROTTLE else gathering
    world.schedule("k", world.now_ms + 5_000)
    assert call(world, later, b"2")[0] == CONFLICT
    world.cancel("k")
    call(world, DEBOUNCE, b"1")
    before = world.state()
    assert call(world, later, b"2", to="kafka:other")[0] == CONFLICT
    assert world.schedule("k", world.now_ms) == CONFLICT
    assert world.state() == before
    assert call(world, later, b"2")[0] == REPLACED


def test_an_ordinary_policy_does_not_matter_and_others_of_the_call_keep_theirs(
    world: World,
) -> None:
    world.owner(dedup_ms=600_000)
    world.schedule("y", world.now_ms + 5_000)
    call(world, DEBOUNCE)
    plain = Accepted("y", b"y", str(world.now_ms + 5_000), 255, b"other")
    for policy, answer in ((OnConflict.FAIL, CONFLICT), (OnConflict.KEEP, Answer.DUPLICATE)):
        both = [accepted(DEBOUNCE), plain]
        found = world.run(world.scheduling_all(both, policy)) or []
        assert [word for word, _ in found] == [REPLACED, answer]


def test_priority_ttl_and_key_are_of_the_last(world: World) -> None:
    call(world, DEBOUNCE, priority=9)
    call(world, DEBOUNCE, priority=255, ttl="1s", key=b"k")
    row = world.run(world.bucket.get("k"))
    assert row is not None
    record = decode_record(split_record(row.record)[1])
    assert isinstance(record, GatheredRecord)
    assert (row.score % 1, record.ttl_ms, record.key) == (0.0, 1000, b"k")
    assert record.until_ms == world.now_ms + LONGEST_MS
    assert record.given_id("k", 5) == "k@5"


# a call that is sent again


@BOTH
def test_a_call_sent_again_changes_nothing(world: World, gathering: Gathering) -> None:
    command = world.scheduling_all([accepted(gathering, b"1")])
    first = world.run(command)
    world.now_ms += 4_000
    before = world.state()
    assert (world.run(command), world.state()) == (first, before)
    owner = world.owner()
    world.now_ms += QUIET_MS
    deliver(world, owner)
    before = world.state()
    ((answer, _),) = world.run(command) or [()]
    assert (answer, world.state()) == (CREATED, before)


@BOTH
def test_a_replacing_call_sent_again_changes_nothing(world: World, gathering: Gathering) -> None:
    call(world, gathering, b"1")
    if gathering is THROTTLE:
        deliver(world, world.owner())
        assert call(world, gathering, b"1")[0] == KEPT
    command = world.scheduling_all([accepted(gathering, b"2")])
    first = world.run(command)
    before = world.state()
    world.now_ms += 1_000
    assert (world.run(command), world.state()) == (first, before)
    call(world, gathering, b"3")
    before = world.state()
    world.run(command)
    assert (world.state(), body_of(world)) == (before, b"3")


def test_what_was_read_from_a_source_counts_once(world: World) -> None:
    source = SourceOffsets("topic:0", [5])
    for answer in (CREATED, Answer.DUPLICATE):
        found = world.run(world.scheduling_all([accepted(DEBOUNCE)], source=source)) or []
        assert [word for word, _ in found] == [answer]


# kinds of damage


def test_an_owner_that_sleeps_is_woken(world: World) -> None:
    owner = world.owner()
    owner.claim()
    with world.redis.pubsub(ignore_subscribe_messages=True) as heard:
        heard.subscribe(world.bucket.wake.lstrip("+"))
        heard.get_message(timeout=DEADLINE_S)
        call(world, THROTTLE)
        said = heard.get_message(timeout=DEADLINE_S)
    assert said is not None and said["data"].split()[1] == str(world.now_ms).encode()
