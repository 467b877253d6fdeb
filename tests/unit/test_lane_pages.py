"""Lanes: of very many parked messages the next are read, a page for all lanes of a bucket."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from delaybridge.scan.lanes.lane import Copy
from delaybridge.store.messages.destinations_of_state import BoundSlice
from tests.rigs.board import NOW_MS, Board
from tests.rigs.bucket_session import new_session


def ids(copies: Sequence[Copy]) -> list[str]:
    return [copy.id for copy in copies]


def test_of_too_many_to_remember_the_known_ones_come_back_and_the_next_are_read(
    board: Board, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("delaybridge.scan.lanes.parked._KNOWN", 10)
    copies = board.parked()
    assert board.recover() == ids(copies[:10])
    board.come_back()
    page, end = board.next_page(), board.copy("a:other")
    assert page.after == (copies[9].score, copies[9].id)
    left = [(copy.score, copy.id.encode(), "a:q") for copy in copies[10:15]]
    left.insert(2, (copies[12].score, b"another", "a:other"))
    left.append((end.score, end.id.encode(), "a:other"))
    board.lanes.returning.add_page(page, BoundSlice(left, more=True), NOW_MS)
    board.session.next_score = NOW_MS  # claimed from
    assert board.recover() == ids(copies[10:15])
    assert board.next_page().after == (end.score, end.id), "whoever's the last one of a page was"


def test_of_ever_so_many_lanes_and_buckets_each_lets_pages_be_read(
    board: Board, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("delaybridge.scan.lanes.parking._ALL_KNOWN", 1)
    monkeypatch.setattr("delaybridge.scan.lanes.parked._KNOWN", 1)
    board.parked()
    board.a.unavailable = "not_connected"
    for _ in range(3):
        board.pass_(board.copy(session=new_session()))
    board.a.unavailable = None
    board.recover()
    board.come_back()
    board.recover()
    assert board.next_page()


def test_if_all_that_was_not_known_is_cancelled_the_lane_is_free_again(
    board: Board, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("delaybridge.scan.lanes.parked._KNOWN", 10)
    board.parked()
    board.recover()
    board.come_back()
    board.session.next_score = NOW_MS  # claimed from
    board.recover()
    board.lanes.returning.add_page(board.next_page(), BoundSlice([], more=False), NOW_MS)
    board.recover()
    assert not board.lanes.parking.is_returning
    assert board.pass_(board.copy()) == "go"


def test_a_parked_message_that_nobody_can_read_any_more_comes_back_to_be_buried(
    board: Board, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("delaybridge.scan.lanes.parked._KNOWN", 0)
    board.parked()
    board.recover()
    found = BoundSlice([(1.0, b"damaged", "")], more=True)
    board.lanes.returning.add_page(board.next_page(), found, NOW_MS)
    assert board.recover() == ["damaged"]


@pytest.fixture
def few_known(board: Board, monkeypatch: pytest.MonkeyPatch) -> dict[str, list[Copy]]:
    """By destination: it has parked four messages, the earliest two of which have come back."""
    monkeypatch.setattr("delaybridge.scan.lanes.parked._KNOWN", 2)
    board.a.unavailable = "not_connected"
    copies = {to: [board.copy(to) for _ in range(4)] for to in ("a:y", "a:x")}
    assert {board.pass_(copy) for copy in copies["a:x"] + copies["a:y"]} == {"leave"}
    board.a.unavailable = None
    assert sorted(board.recover()) == sorted(ids(copies["a:x"][:2] + copies["a:y"][:2]))
    board.come_back()
    board.session.next_score = NOW_MS  # claimed from
    return copies


def stored(copies: Sequence[Copy]) -> list[tuple[float, bytes, str]]:
    return [(copy.score, copy.id.encode(), copy.record.destination) for copy in copies]


def test_a_page_is_read_for_all_lanes_of_its_bucket_each_takes_what_it_does_not_know(
    board: Board, few_known: dict[str, list[Copy]]
) -> None:
    x, y = few_known["a:x"], few_known["a:y"]
    page = board.next_page()
    assert page.after == (y[1].score, y[1].id), "the earliest of both"
    found = [*stored(y[2:]), (y[3].score, b"nobody's", ""), *stored(x[:3])]
    board.lanes.returning.add_page(page, BoundSlice(found, more=True), NOW_MS)
    assert sorted(board.recover()) == sorted([*ids(y[2:]), "nobody's", x[2].id])
    board.come_back()
    board.session.next_score = NOW_MS
    board.recover()
    page = board.next_page()
    assert page.after == (x[2].score, x[2].id)
    board.lanes.returning.add_page(page, BoundSlice(stored(x[3:]), more=False), NOW_MS)
    assert board.recover() == [x[3].id]
    board.come_back()
    board.session.next_score = NOW_MS
    board.recover()
    assert not board.lanes.parking.is_returning


def test_a_page_that_ends_before_what_a_lane_knows_takes_nothing_from_it(
    board: Board, few_known: dict[str, list[Copy]]
) -> None:
    x, y = few_known["a:x"], few_known["a:y"]
    found = BoundSlice(stored(y[2:3]), more=True)
    board.lanes.returning.add_page(board.next_page(), found, NOW_MS)
    found = BoundSlice(stored([y[3], *x]), more=False)
    board.recover()
    board.lanes.returning.add_page(board.next_page(), found, NOW_MS)
    board.come_back()
    board.session.next_score = NOW_MS
    assert {*board.recover()} <= {*ids([y[3], *x[2:]])}, "none that is back already"


def test_buckets_take_turns_and_none_waits_for_one_that_is_over_draining_or_parking(
    board: Board, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("delaybridge.scan.lanes.parked._KNOWN", 0)
    one, two, over, draining, parking = (new_session(number) for number in range(5))
    board.a.unavailable = "not_connected"
    for session in (over, draining, parking, one, two):
        board.pass_(board.copy(session=session))
    board.a.unavailable = None
    board.recover()
    parking.exits.take_report()
    draining.exits.drain()
    over.alive = False
    board.lanes.returning.session_over(over)
    turns = []
    for _ in range(4):
        page = board.next_page()
        turns.append(page.session)
        board.recover()  # a pass, while the page is on its way
        board.lanes.returning.add_page(page, BoundSlice([(1.0, b"x", "b:q")], more=True), NOW_MS)
        board.recover()
    assert turns == [one, two, one, two]


def test_a_page_that_comes_when_its_session_or_lane_has_nothing_parked_is_ignored(
    board: Board, few_known: dict[str, list[Copy]]
) -> None:
    page = board.next_page()
    board.session.end()
    board.lanes.returning.session_over(board.session)
    board.lanes.returning.add_page(page, BoundSlice(stored(few_known["a:y"]), more=True), NOW_MS)
    assert board.recover() == []
    assert board.lanes.returning.begin_page() is None
