"""A bucket compared with the ledger, without either: what is asked for, dropped and mended."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from delaybridge.ledger.comparing import agreement
from delaybridge.ledger.comparing.agreement import Compared, Comparing, compare
from delaybridge.ledger.comparing.healing import StoredCall
from delaybridge.message import State
from delaybridge.store.protocol.bucket import Bucket
from delaybridge.store.protocol.keys import LISTED
from delaybridge.store.protocol.verbs import Work

BUCKET = Bucket("ns", 1, "birth")
NOW_MS = 5000
TRIED = b"1:0:1000"


def call(id: str, due_ms: int = 1000, tried: bytes = b"") -> StoredCall:
    return StoredCall(id, due_ms + 0.5, b"\0\0\0\1", tried)


class Both:
    """A bucket with these messages in one state, and their rows: id -> state and due time.

    lost: its lease. dropped: ids; changed: what was written into rows.
    """

    def __init__(
        self, held: Sequence[StoredCall], rows: Mapping[str, tuple[str, int]],
        state: State = State.DELAYED, *, lost: bool = False,
    ) -> None:  # fmt: skip
        self.dropped, self.changed = list[str](), list[tuple[Any, ...]]()
        self._held, self._rows, self._key, self._lost = held, rows, BUCKET.key(LISTED[state]), lost
        self._records: Any = SimpleNamespace(states=self._states, change=self._change)

    def _states(self, on: Any, names: Sequence[Any]) -> dict[Any, tuple[str, int]]:
        return {name: self._rows[name[1]] for name in names if name[1] in self._rows}

    def _change(
        self, on: Any, names: Sequence[Any], state: str, at_ms: int, due_ms: int | None = None
    ) -> None:
        self.changed += [(name[1], state, at_ms, due_ms) for name in names]

    def compare(
        self, differed: frozenset[Any] = frozenset(), *, with_lease: bool = True
    ) -> Compared | None:
        how = Comparing(NOW_MS, ("token", 1000) if with_lease else None, differed)
        steps, answer = compare(BUCKET, self._records, how), None
        while True:
            try:
                asked: Any = steps.send(answer)
            except StopIteration as done:
                found: Compared | None = done.value
                return found
            is_work = isinstance(asked, Work)
            answer = asked.run(None) if is_work else [self._answer(each) for each in asked]

    def _answer(self, command: Any) -> Any:
        if command.name != "drop":
            return _page(self._held if command.keys[0] == self._key else [], command.args)
        if self._lost:
            return None
        self.dropped += command.args[2::2]
        return len(command.args[2::2])


def _page(held: Sequence[StoredCall], args: Sequence[Any]) -> tuple[list[StoredCall], bool]:
    """As the script pages: after (score, id), at most `limit`."""
    after, limit = args[2:4], args[4]
    left = [
        one for one in held if not after[0] or (one.score, one.id) > (float(after[0]), after[1])
    ]
    return left[:limit], len(left) > limit


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages of two messages."""
    monkeypatch.setattr(agreement, "PAGE_MESSAGES", 2)


@pytest.mark.usefixtures("small")
def test_every_page_of_a_bucket_is_compared() -> None:
    held = [call(f"m{n}") for n in range(5)]
    strange = Both(held, {})
    found = strange.compare()
    assert found is not None
    assert (found.messages, found.without_row, found.example) == (5, 5, "m0")
    assert strange.dropped == []
    over = Both(held, {one.id: ("published", 1000) for one in held})
    found = over.compare()
    assert found is not None and found.dropped == 5
    assert over.dropped == ["m0", "m1", "m2", "m3", "m4"]


@pytest.mark.parametrize("state", [State.DELAYED, State.PARKED, State.DEAD])
def test_what_waits_and_what_is_dead_is_compared(state: State) -> None:
    both = Both([call("a"), call("b")], {"a": ("cancelled", 1000)}, state)
    found = both.compare()
    assert found is not None
    assert (found.messages, found.without_row, both.dropped) == (2, 1, ["a"])


@pytest.mark.parametrize(
    ("tried", "row", "is_dropped", "differs"),
    [
        (b"", ("delayed", 1000), False, False),
        (b"", ("delayed", 1001), True, True),  # it is due later by the ledger: it is restored so
        (b"", ("delayed", 999), False, True),
        (TRIED, ("delayed", 1001), False, False),  # Redis has the time of the next attempt
        (TRIED, ("delayed", 999), False, False),
        (b"", ("cancelled", 1000), True, False),
        (b"", ("dead", 1000), False, True),
        (b"", ("expired", 1000), False, True),
    ],
)
def test_what_has_ended_or_is_due_later_by_the_ledger_is_dropped(
    tried: bytes, row: tuple[str, int], is_dropped: bool, differs: bool
) -> None:
    both = Both([call("a", 1000, tried)], {"a": row})
    found = both.compare()
    assert found is not None
    assert (both.dropped, bool(found.differing)) == (["a"] * is_dropped, differs)
    both.dropped.clear()
    both.compare(with_lease=False)
    assert both.dropped == []


@pytest.mark.parametrize(
    ("row", "differs"),
    [(("dead", 1), False), (("expired", 2000), False), (("delayed", 2000), True)],
)
def test_the_dead_differ_only_from_what_lives(row: tuple[str, int], differs: bool) -> None:
    both = Both([call("a")], {"a": row}, State.DEAD)
    found = both.compare()
    assert found is not None and bool(found.differing) == differs
    assert both.dropped == []


@pytest.mark.usefixtures("small")
def test_without_the_lease_a_comparison_ends_at_once() -> None:
    held = [call(f"m{n}") for n in range(5)]
    both = Both(held, {"m0": ("published", 1000)}, lost=True)
    assert both.compare() is None


@pytest.mark.parametrize(
    ("state", "tried", "row", "mended"),
    [
        (State.DELAYED, b"", ("delayed", 999), ("a", "delayed", NOW_MS, 1000)),
        (State.DELAYED, TRIED, ("dead", 1000), ("a", "delayed", NOW_MS, None)),
        (State.PARKED, b"", ("expired", 1000), ("a", "delayed", NOW_MS, 1000)),
        (State.DEAD, b"", ("delayed", 1000), ("a", "dead", NOW_MS, None)),
    ],
)
def test_a_row_is_mended_once_it_has_differed_in_the_same_way_before(
    state: State, tried: bytes, row: tuple[str, int], mended: tuple[Any, ...]
) -> None:
    both = Both([call("a", 1000, tried)], {"a": row}, state)
    first = both.compare()
    assert first is not None and both.changed == []
    second = both.compare(first.differing)
    assert second is not None and both.changed == [mended]
    assert (first.mended, second.mended, second.differing) == (0, 1, frozenset())
    moved = Both([call("a", 998, tried)], {"a": row}, state)
    third = moved.compare(first.differing)
    assert third is not None and (third.mended, moved.changed) == (0, [])
