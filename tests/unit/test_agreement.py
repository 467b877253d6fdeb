"""A bucket compared with the ledger, without either: which pages are asked for, what is dropped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from delaybridge.ledger.work import Work
from delaybridge.store import agreement
from delaybridge.store.agreement import Compared, Comparing, compare
from delaybridge.store.healing import StoredCall
from delaybridge.store.verbs import Bucket

BUCKET = Bucket("ns", 1, "birth")
Rows = Mapping[str, tuple[str, int]]  # id -> state and due time in the ledger


def call(id: str, due_ms: int = 1000, tried: bytes = b"") -> StoredCall:
    return StoredCall(id, due_ms + 0.5, b"\0\0\0\1", tried)


def compared(
    delayed: Sequence[StoredCall], rows: Rows, *, with_lease: bool = True
) -> tuple[Compared, list[str]]:
    """The outcome for a bucket with these delayed messages, and the ids that were dropped."""
    dropped: list[str] = []

    def states(on: Any, names: Sequence[tuple[int, str, int]]) -> dict[Any, tuple[str, int]]:
        return {name: rows[name[1]] for name in names if name[1] in rows}

    records: Any = SimpleNamespace(states=states)
    how = Comparing(5000, ("token", 1000) if with_lease else None)
    steps, answer = compare(BUCKET, records, how), None
    while True:
        try:
            asked: Any = steps.send(answer)
        except StopIteration as done:
            return done.value, dropped
        if isinstance(asked, Work):
            answer = asked.run(None)
            continue
        (command,) = asked
        if command.name == "drop":
            dropped += command.args[2::2]
            answer = [len(command.args[2::2])]
        else:
            answer = [_page(delayed if BUCKET.key("due") in command.keys[:1] else [], command.args)]


def _page(held: Sequence[StoredCall], args: Sequence[Any]) -> tuple[list[StoredCall], bool]:
    """As the script pages: after (score, id), at most `limit`."""
    after, limit = args[2:4], args[4]
    left = [
        one for one in held if not after[0] or (one.score, one.id) > (float(after[0]), after[1])
    ]
    return left[:limit], len(left) > limit


def test_every_page_of_a_bucket_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agreement, "PAGE_MESSAGES", 2)
    held = [call(f"m{n}") for n in range(5)]
    found, dropped = compared(held, {})
    assert (found.messages, found.without_row, dropped) == (5, 5, [])
    rows = {one.id: ("published", 1000) for one in held}
    assert compared(held, rows)[1] == ["m0", "m1", "m2", "m3", "m4"]


@pytest.mark.parametrize(
    ("tried", "row", "is_dropped", "differs"),
    [
        (b"", ("delayed", 1000), False, False),
        (b"", ("delayed", 1001), True, True),  # it is due later by the ledger: it is restored so
        (b"", ("delayed", 999), False, True),
        (b"1:0:1000", ("delayed", 1001), False, False),  # Redis has the time of the next attempt
        (b"", ("cancelled", 1000), True, False),
        (b"", ("dead", 1000), False, True),
    ],
)
def test_what_has_ended_or_is_due_later_by_the_ledger_is_dropped(
    tried: bytes, row: tuple[str, int], is_dropped: bool, differs: bool
) -> None:
    found, dropped = compared([call("a", 1000, tried)], {"a": row})
    assert (dropped, bool(found.differing)) == (["a"] * is_dropped, differs)
    assert compared([call("a", 1000, tried)], {"a": row}, with_lease=False)[1] == []
