"""Which shift serves which buckets, while nodes of a Redis Cluster come and go."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from delaybridge.publish import CONFIRMED
from delaybridge.store.protocol.bucket import Bucket
from delaybridge.worker.shifts import BucketNodes, Shifts

BUCKETS = 6


class FakeShift:
    """Holds at once what it is to hold; drains when it is told to."""

    def __init__(self, node: str, nodes: int) -> None:
        self.node, self.nodes = node, nodes
        self.here: dict[int, Bucket] = {}
        self.log: list[str] = []
        damaged = SimpleNamespace(numbers=set())
        self.leases: Any = SimpleNamespace(sessions={}, draining=[], damaged_buckets=damaged)

    def assign(self, here: dict[int, Bucket], share: set[int], *, may_take: bool) -> None:
        self.here = here
        if may_take:
            self.leases.sessions |= dict.fromkeys(here.keys() & share)

    def drained(self) -> None:
        """Everything that is not here is released."""
        sessions = self.leases.sessions
        self.leases.sessions = {n: s for n, s in sessions.items() if n in self.here}

    def start(self, background: Any) -> None:
        self.log.append("start")

    def renamed(self, node: str) -> None:
        self.node = node
        self.log.append("renamed")

    async def end(self) -> None:
        self.log.append("end")

    @property
    def is_over(self) -> bool:
        return not (self.here or self.leases.sessions)


class Table:
    """The nodes of the buckets; all shifts that were ever made."""

    def __init__(self, *nodes: str) -> None:
        self.nodes = list(nodes)
        self.made: list[FakeShift] = []
        buckets = [Bucket("ns", number, "b") for number in range(len(nodes))]
        at = {bucket.key("lease"): bucket.number for bucket in buckets}
        store: Any = SimpleNamespace(node_of=lambda key: self.nodes[at[key]])
        calls: Any = SimpleNamespace(following=SimpleNamespace(held=lambda: buckets))
        self.shifts = Shifts(BucketNodes(store, calls), self._make)
        self.shifts.start()

    def _make(self, node: str, nodes: int) -> Any:
        self.made.append(FakeShift(node, nodes))
        return self.made[-1]

    def hold(self) -> None:
        self.shifts.assign({*range(len(self.nodes))}, may_take=True)

    @property
    def held(self) -> dict[str, set[int]]:
        return {s.node: {*s.leases.sessions} for s in self.made if "end" not in s.log}


@pytest.mark.parametrize("nodes", [1, 2, 3])
async def test_each_node_has_a_shift_that_holds_its_buckets(nodes: int) -> None:
    table = Table(*(f"n{number % nodes}" for number in range(BUCKETS)))
    table.hold()
    assert table.held == {f"n{n}": set(range(n, BUCKETS, nodes)) for n in range(nodes)}
    assert [shift.log for shift in table.made] == [["start"]] * nodes
    assert {shift.nodes for shift in table.made} == {nodes}


async def test_a_shift_whose_master_fails_over_goes_on_under_the_new_name() -> None:
    table = Table("a", "a", "b", "b")
    table.hold()
    table.nodes[:2] = "c", "c"
    table.shifts.moved()
    assert table.held == {"c": {0, 1}, "b": {2, 3}}
    assert [shift.log for shift in table.made] == [["start", "renamed"], ["start"]]


async def test_a_bucket_that_moves_is_taken_once_its_old_shift_has_released_it() -> None:
    table = Table("a", "a", "b", "b")
    table.hold()
    table.nodes[1] = "b"
    table.shifts.moved()
    table.hold()
    assert table.held == {"a": {0, 1}, "b": {2, 3}}
    assert not table.shifts.lacks({0, 1, 2, 3})
    table.made[0].drained()
    assert table.shifts.lacks({0, 1, 2, 3})
    table.hold()
    assert table.held == {"a": {0}, "b": {1, 2, 3}}


async def test_a_shift_ends_when_its_node_has_no_buckets_and_nothing_is_left_to_do() -> None:
    table = Table("a", "a", "b", "b")
    table.hold()
    table.nodes[:2] = "b", "b"
    table.shifts.moved()
    assert "end" not in table.made[0].log
    table.made[0].drained()
    table.hold()
    await table.shifts._background.tasks.copy().pop()
    assert table.made[0].log == ["start", "end"]
    table.nodes[:2] = "a", "a"  # it comes back
    table.shifts.moved()
    assert [shift.node for shift in table.made] == ["a", "b", "a"]


async def test_a_bucket_whose_node_is_unknown_for_now_stays_where_it_was() -> None:
    table = Table("a", "a", "b", "b")
    table.hold()
    table.nodes[:2] = "", ""
    table.shifts.moved()
    assert table.held == {"a": {0, 1}, "b": {2, 3}}
    assert len(table.made) == 2


class FakeScanner:
    """Notes the copies whose outcomes it is told."""

    def __init__(self) -> None:
        self.heard: list[int] = []

    def report(self, copies: Any, outcome: Any) -> None:
        self.heard += [copy.id for copy in copies]


async def test_outcomes_that_come_together_go_to_the_scanners_whose_copies_they_are() -> None:
    a, b = FakeScanner(), FakeScanner()
    copies: Any = [
        SimpleNamespace(id=number, session=SimpleNamespace(holder=scanner))
        for number, scanner in enumerate([a, b, a])
    ]
    Table("a", "b").shifts.report(copies, CONFIRMED)
    assert (a.heard, b.heard) == ([0, 2], [1])
