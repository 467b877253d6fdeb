"""The exits that the owner of a bucket tells the store, and what comes back from parking."""

from __future__ import annotations

from math import inf
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from delaybridge.scan.leases.exits import ExitReport
from delaybridge.scan.leases.session import Session
from delaybridge.store.protocol.bucket import Item
from delaybridge.store.protocol.verbs import RedisCommand
from tests.rigs.bucket_session import TURN, copy_of, new_session

CALL_ITEMS = 1000
MANY = 2500


def item(number: int) -> Item:
    return Item(f"id{number}", TURN + 1, 5.0)


def ids_of(command: RedisCommand[Any]) -> list[str]:
    """The ids that an owner verb names."""
    if command.name == "settle":
        ids, at = [], 4
        while at < len(command.args):
            size = command.args[at + 1]
            ids += command.args[at + 2 : at + 2 + size]
            at += 2 + size
        return ids
    first, step = {"retry": (3, 6), "bury": (3, 5), "park": (2, 3), "unpark": (3, 1)}[command.name]
    return list(command.args[first::step])


# exits


def test_exits_are_told_once_in_calls_of_a_bounded_size(session: Session) -> None:
    for number in range(MANY):
        session.exits.settle(TURN + 1 + number // 300, [copy_of(session, f"s{number}")], "a:q")
        session.exits.retry(Item(f"r{number}", TURN + 1, 5.0), 1000)
        session.exits.bury(Item(f"b{number}", TURN + 1, 5.0), "unroutable", counted=True)
        session.exits.park(Item(f"p{number}", TURN + 1, 5.0))
    assert session.exits.any
    session.exits.defer(Item("d2", TURN + 1, 5.0), 9.5)
    session.exits.defer(Item("d1", TURN + 1, 5.0), 8.5)
    report = session.exits.take_report()
    told, copies, back_off_ms, parked, settled, deferred_to = report[:6]
    assert copies == 4 * MANY + 2
    assert deferred_to == 8.5
    assert back_off_ms == 1000
    assert settled == {"a:q": MANY}
    assert parked == {f"p{number}" for number in range(MANY)}
    assert max(len(ids_of(call)) for call in told) == CALL_ITEMS
    for verb in ("settle", "retry", "bury", "park"):
        ids = [id for call in told if call.name == verb for id in ids_of(call)]
        deferred = ["d2", "d1"] if verb == "retry" else []
        assert ids == [f"{verb[0]}{number}" for number in range(MANY)] + deferred
    assert not session.exits.any
    assert len(report.published) == MANY
    assert len(report.retried) == len(report.buried) == MANY
    assert session.exits.take_report()[:6] == ([], 0, None, set(), {}, None)


def test_a_settled_id_keeps_the_number_of_its_claim(session: Session) -> None:
    session.exits.settle(11, [copy_of(session, "x")], "a:q")
    session.exits.settle(12, [copy_of(session, "y")], "a:q")
    session.exits.settle(11, [copy_of(session, "z")], "a:q")
    (settle,) = session.exits.take_report().commands
    assert list(settle.args[4:]) == [11, 2, "x", "z", 12, 1, "y"]


def test_parked_copies_are_told_first_so_that_a_fire_behind_them_cannot_cover_them(
    session: Session,
) -> None:
    session.exits.settle(11, [copy_of(session, "s")], "a:q")
    session.exits.retry(item(1), None)
    session.exits.bury(item(2), "expired", counted=False)
    session.exits.park(item(3))
    assert session.exits.take_report().commands[0].name == "park"


def test_the_shortest_back_off_is_reported_with_the_exits(session: Session) -> None:
    session.exits.retry(item(1), 3000)
    session.exits.retry(item(2), 2000, maybe=True)
    assert session.exits.take_report().back_off_ms == 2000
    session.exits.retry(item(1), 3000)
    session.exits.retry(item(3), None)
    assert session.exits.take_report().back_off_ms == 0, (
        "put back as it was: it may be due at any time"
    )


def test_ended_copies_wake_the_task_that_waits_for_the_last(session: Session) -> None:
    session.copies = 3
    session.moved.clear()
    session.ended(2)
    assert session.copies == 1
    assert session.moved.is_set()


# unparking


def test_known_ids_come_back_in_calls_of_a_bounded_size_and_the_bucket_is_looked_at(
    session: Session,
) -> None:
    session.look_at_ms = session.next_score = inf
    ids = [f"id{number}" for number in range(MANY)]
    session.exits.unpark(ids[:10])
    session.exits.unpark(ids[10:])
    back: list[str] = []
    while session.exits.any:
        (unpark,) = session.exits.take_unpark()
        assert len(ids_of(unpark)) <= CALL_ITEMS
        assert not session.exits.any, "one call at a time"
        back += ids_of(unpark)
        session.unparked(MANY)
    assert back == ids
    assert session.look_at_ms == -inf
    assert session.next_score == -inf, "what came back may be earlier than all else"


def test_parked_messages_come_back_until_none_are_left(session: Session) -> None:
    session.exits.unpark(["x"])
    session.exits.unpark(None)
    for left in (2 * CALL_ITEMS, CALL_ITEMS, 0):
        (unpark,) = session.exits.take_unpark()
        assert ids_of(unpark) == [], "the earliest"
        session.unparked(left)
    assert ids_of(*session.exits.take_unpark()) == ["x"]
    session.unparked(0)
    assert not session.exits.any
    assert not session.exits.is_unparking


@pytest.mark.parametrize("ids", [["x"], None], ids=str)
def test_nothing_is_claimed_until_all_wanted_messages_are_back(
    session: Session, ids: list[str] | None
) -> None:
    assert session.may_claim
    session.exits.unpark(ids)
    assert not session.may_claim
    assert session.exits.take_unpark()
    assert not session.may_claim, "the answer is on its way"
    session.unparked(0)
    assert session.may_claim


@pytest.mark.parametrize("ids", [["x"], None], ids=str)
def test_messages_parked_by_a_call_under_way_are_brought_back_only_after_it(
    session: Session, ids: list[str] | None
) -> None:
    session.exits.park(Item("x", TURN + 1, 5.0))
    exits = session.exits.take_report()
    session.exits.unpark(ids)
    assert not session.exits.any
    assert session.exits.take_unpark() == []
    session.answered(exits)
    (unpark,) = session.exits.take_unpark()
    assert ids_of(unpark) == (ids or [])


def test_known_ids_come_back_though_other_copies_keep_being_parked(session: Session) -> None:
    session.exits.park(Item("other", TURN + 1, 5.0))
    session.exits.take_report()
    session.exits.unpark(["x"])
    assert session.exits.any
    assert session.exits.take_unpark()


class Parker:
    """A session whose exits go out with fires and tells, two calls at once, and a store."""

    def __init__(self) -> None:
        self.session = new_session()
        self.due = {f"id{number}" for number in range(4)}
        self.claimed: set[str] = set()
        self.parked: set[str] = set()
        self.wanted: set[str] = set()
        self.fire_calls: tuple[ExitReport, list[RedisCommand[Any]]] | None = None
        self.tell_calls: tuple[ExitReport, list[RedisCommand[Any]]] | None = None

    def claim(self) -> None:
        if self.session.may_claim:
            self.claimed |= self.due
            self.due = set()

    def park(self, id: str) -> None:
        if id in self.claimed:
            self.claimed.remove(id)
            self.wanted.add(id)
            self.session.exits.park(Item(id, TURN + 1, 5.0))

    def unpark(self, is_all: bool) -> None:
        if self.wanted:
            self.session.exits.unpark(None if is_all else sorted(self.wanted))
            self.wanted = set()

    def fire(self) -> None:
        if self.fire_calls is None:
            self.fire_calls = self.session.exits.take_report(), []

    def tell(self) -> None:
        if self.tell_calls is None and self.session.exits.any:
            unparking = self.session.exits.take_unpark()
            self.tell_calls = self.session.exits.take_report(), unparking
            assert self.tell_calls[0].commands or unparking, "for nothing, again and again"

    def fire_answers(self) -> None:
        calls, self.fire_calls = self.fire_calls, None
        self._execute(calls)

    def tell_answers(self) -> None:
        calls, self.tell_calls = self.tell_calls, None
        self._execute(calls)

    def _execute(self, calls: tuple[ExitReport, list[RedisCommand[Any]]] | None) -> None:
        exits, unparking = calls or (self.session.exits.take_report(), [])
        for park in exits.commands:
            self.parked.update(ids_of(park))
        self.session.answered(exits)
        for unpark in unparking:
            back = self.parked & set(ids_of(unpark) or sorted(self.parked)[:2])
            self.parked -= back
            self.due |= back
            self.session.unparked(len(self.parked))

    def finish(self) -> None:
        self.unpark(False)
        for _ in range(10):
            self.fire_answers()
            self.tell()
            self.tell_answers()


CALLS = ("claim", "claim", "fire", "fire_answers", "tell", "tell_answers")
PARKER_STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("park"), st.sampled_from([f"id{number}" for number in range(4)])),
        st.tuples(st.just("unpark"), st.booleans()),
        *(st.tuples(st.just(s)) for s in CALLS),
    ),
    min_size=15,
    max_size=40,
)


@settings(max_examples=300)
@given(PARKER_STEPS)
def test_all_wanted_messages_come_back_however_fires_and_tells_overlap(
    steps: list[tuple[Any, ...]],
) -> None:
    parker = Parker()
    for verb, *arguments in steps:
        getattr(parker, verb)(*arguments)
    parker.finish()
    assert parker.parked == set(), "asked back before they were parked, and never again"
    assert not parker.session.exits.is_unparking


def test_a_draining_session_leaves_its_parked_messages_to_the_next_owner(session: Session) -> None:
    session.exits.unpark(["x"])
    session.exits.unpark(None)
    session.exits.drain()
    assert not session.exits.any
    assert session.exits.take_unpark() == []
