"""Parked messages: the earliest come back first, and later copies wait behind them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delaybridge.message import Destination, Record
from delaybridge.scan.copy import Copy, Lot
from delaybridge.scan.flow import Flow
from delaybridge.scan.lane import Lane
from delaybridge.scan.parked import Parked
from delaybridge.scan.retry import RetryPolicy
from delaybridge.scan.terms import Terms
from delaybridge.store.record import Tried
from tests.rigs.bucket_session import new_session

SESSION = new_session()
KNOWN = 8
HANDFUL = 3


def copy(score: float) -> Copy:
    destination: Any = Destination("a", "", "q")
    lane = Lane("a:q", None, Flow(10, 0), Terms(RetryPolicy()))
    return Copy(Lot(SESSION, 11), str(score), score, Tried(), Record("a:q", b""), destination, lane)


STEPS = st.integers(0, 60).map(lambda drawn: None if drawn < 6 else float(drawn))


@given(st.lists(STEPS, min_size=10, max_size=60))
def test_the_earliest_come_back_first_however_many_are_not_remembered(
    steps: list[float | None],
) -> None:
    """A step: the score of a message to park, or None: a few come back."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr("delaybridge.scan.parked._KNOWN", KNOWN)
        park_and_bring_back(steps)


def park_and_bring_back(steps: list[float | None]) -> None:
    parked, scores = Parked(), set[float]()
    for score in steps:
        if score is not None and score not in scores:
            scores.add(score)
            parked.add(score, str(score))
        elif score is None:
            back = parked.take(HANDFUL)
            assert sorted(map(float, back)) == sorted(scores)[: len(back)]
            assert len(back) == HANDFUL or not len(parked)
            scores -= {*map(float, back)}
        assert parked.is_empty == (not scores)
        if scores:
            assert parked.is_before(copy(min(scores) + 0.5))
    while not parked.is_empty:
        if not len(parked):
            read_page(parked, scores)
        back = parked.take(HANDFUL)
        assert sorted(map(float, back)) == sorted(scores)[: len(back)]
        scores -= {*map(float, back)}
    assert not scores


def read_page(parked: Parked, scores: set[float], size: int = 4) -> None:
    """As the store would answer."""
    after, _ = parked.begin_page()
    left = [(score, str(score)) for score in sorted(scores) if score > after]
    parked.add_page(left[:size], left[size - 1] if len(left) > size else None, KNOWN)


@given(
    st.sets(st.integers(0, 60), min_size=KNOWN + 1, max_size=40),
    st.lists(st.integers(61, 120), max_size=30, unique=True),
    st.integers(0, 40),
)
def test_what_is_parked_while_a_page_is_read_is_neither_lost_nor_known_twice(
    before: set[int], meanwhile: list[int], seen: int
) -> None:
    """seen: how many of those parked meanwhile the store had when it read the page."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr("delaybridge.scan.parked._KNOWN", KNOWN)
        parked = Parked()
        for score in sorted(before):
            parked.add(float(score), str(float(score)))
        after, _ = parked.begin_page()
        for score in meanwhile:
            parked.add(float(score), str(float(score)))
        stored = sorted({*before, *meanwhile[:seen]})
        page = [(float(score), str(float(score))) for score in stored if score > after]
        parked.add_page(page, None, KNOWN)
        left = {float(score) for score in {*before, *meanwhile}}
        while left:
            if not len(parked):
                read_page(parked, left)
            for id in parked.take(1):
                assert float(id) == min(left)
                left.remove(float(id))
        assert parked.is_empty


def test_a_page_that_comes_after_all_were_brought_back_is_ignored(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("delaybridge.scan.parked._KNOWN", KNOWN)
    parked = Parked()
    for score in range(2 * KNOWN):
        parked.add(float(score), str(float(score)))
    parked.begin_page()
    assert parked.take_all() is None
    parked.add_page([(9.0, "9.0")], None, KNOWN)
    assert parked.is_empty


@given(st.lists(st.floats(0, 50), max_size=40), st.integers(0, 50), st.integers(1, 20))
def test_what_is_due_is_counted_as_far_as_it_matters(
    scores: list[float], now_ms: int, most: int
) -> None:
    parked = Parked()
    for score in scores:
        parked.add(score, str(score))
    due = sum(int(score) <= now_ms for score in scores)
    counted = parked.count_due(now_ms, most)
    assert counted == due or most <= counted <= due


def test_a_copy_earlier_than_all_parked_ones_waits_only_while_they_come_back() -> None:
    parked = Parked()
    parked.add(5.0, copy(5.0).id)
    assert not parked.is_before(copy(4.0))
    parked.is_returning = True
    assert parked.is_before(copy(4.0))


def test_all_parked_messages_are_named_if_all_are_known() -> None:
    parked = Parked()
    for score in (3.0, 1.0, 2.0):
        parked.add(score, str(score))
    back = parked.take_all()
    assert back is not None
    assert sorted(back) == ["1.0", "2.0", "3.0"]
    assert parked.is_empty
