"""Parked messages: the earliest come back first, and later copies wait behind them."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delaybridge.message import Destination, Record
from delaybridge.scan.lanes.flow import Flow
from delaybridge.scan.lanes.lane import Copy, Lane, LaneRules, Lot
from delaybridge.scan.lanes.parked import Parked
from delaybridge.scan.lanes.retry import RetryPolicy
from delaybridge.store.protocol.record import Tried
from tests.rigs.bucket_session import new_session

SESSION = new_session()
KNOWN = 8
Parkable = tuple[float, str]  # score and id


def copy(score: float) -> Copy:
    destination: Any = Destination("a", "", "q")
    lane = Lane("a:q", None, Flow(10, 0), LaneRules(RetryPolicy()))
    return Copy(Lot(SESSION, 11), str(score), score, Tried(), Record("a:q", b""), destination, lane)


class OneLane:
    """Its parked messages, those of them that are known, and what happens to them at random.

    stored: `parked` in the store; some of it is `leaving`, for `due`. gone: what was there, and may
    be parked again. A page may begin earlier than it must, for the sake of another lane.
    """

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.known, self.bound = Parked(), self.random.randint(1, 8)
        self.stored: set[Parkable] = set()
        self.leaving: set[Parkable] = set()
        self.gone: list[Parkable] = []
        self.parked = 0
        self.after: Parkable | None = None  # a page is on its way
        self.page: tuple[list[Parkable], Parkable | None] | None = None

    def live(self, steps: int) -> None:
        acts = [self.park, self.park, self.park_again, self.take, self.leave]
        acts += [self.ask, self.read, self.answer]
        for _ in range(steps):
            self.random.choice(acts)()
            assert not self.known.is_empty or self.stored == self.leaving

    def drain(self) -> None:
        for _ in range(self.parked):
            for act in (self.ask, self.read, self.answer, self.take, self.leave):
                act()

    def park(self) -> None:
        self.parked += 1
        self.add((float(self.random.randint(0, 60)), f"m{self.parked}"))

    def park_again(self) -> None:
        if self.gone:
            self.add(self.gone.pop(self.random.randrange(len(self.gone))))

    def add(self, one: Parkable) -> None:
        self.stored.add(one)
        self.known.add(*one, self.bound)
        assert self.known.is_before(min(self.stored - self.leaving)[0] + 0.5)

    def take(self) -> None:
        there = sorted(self.stored - self.leaving)
        most = self.random.choice([None, 1, 2, 3])
        ids = self.known.take_earliest(most)
        assert sorted(ids) == sorted(id for _, id in there[: len(ids)]), "the earliest, once"
        self.leaving.update(there[: len(ids)])
        if self.known.is_empty:
            self.leave()  # it does not know any more that these were taken

    def leave(self) -> None:
        self.stored -= self.leaving
        self.gone += sorted(self.leaving)
        self.leaving.clear()

    def ask(self) -> None:
        if self.after is None and self.known.lacks_page(self.bound):
            score, id = self.known.begin_page()
            self.after = score - self.random.choice([0, 0, 5, 20]), id

    def read(self) -> None:
        if self.after is not None and self.page is None:
            left = sorted(one for one in self.stored if one > self.after)
            page = left[: self.random.randint(1, 5)]
            self.page = page, page[-1] if page != left else None

    def answer(self) -> None:
        if self.page is not None:
            self.known.add_page(*self.page, self.bound)
            self.after = self.page = None


@given(st.integers())
def test_the_earliest_come_back_first_and_none_is_forgotten_however_few_are_known(
    seed: int,
) -> None:
    lane = OneLane(seed)
    lane.live(400)
    lane.drain()
    assert lane.known.is_empty
    assert not lane.stored


def test_a_page_that_comes_after_all_were_brought_back_is_ignored(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("delaybridge.scan.lanes.parked._KNOWN", KNOWN)
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
    assert not parked.is_before(4.0)
    parked.is_returning = True
    assert parked.is_before(4.0)


def test_all_parked_messages_are_named_if_all_are_known() -> None:
    parked = Parked()
    for score in (3.0, 1.0, 2.0):
        parked.add(score, str(score))
    back = parked.take_all()
    assert back is not None
    assert sorted(back) == ["1.0", "2.0", "3.0"]
    assert parked.is_empty
