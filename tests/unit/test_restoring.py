"""Rows of the ledger that Redis lacks, without either: which are asked for, which are brought."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from delaybridge.ledger.comparing import agreement, along
from delaybridge.ledger.comparing.agreement import Looked, WantedRows, restore_missing
from delaybridge.ledger.comparing.healing import Presence, Standing
from delaybridge.ledger.comparing.restoring import restore_all
from delaybridge.ledger.sql.numbering import Numbering
from delaybridge.ledger.sql.rows import COLD, DEAD, EXPIRED, LedgerRow
from delaybridge.store.protocol.bucket import Bucket
from delaybridge.store.protocol.verbs import Work

BUCKETS = [Bucket("ns", number, "birth") for number in range(3)]
BUCKET = BUCKETS[1]
FIRST_MESSAGE = 6  # among the arguments of `restore`; five each


def row(
    number: int, id: str = "", due_ms: int = 0, payload: bytes = b"p", **more: Any
) -> LedgerRow:
    id = id or f"m{number}"
    found = LedgerRow(1, id, number, due_ms or number, 0, "kafka:t", payload, number=number)
    return found._replace(**more)


class Both:
    """A ledger with these rows, and a Redis that lacks all of them but `has`.

    late: how often a look comes too late. brought: messages by call; read: names of buckets.
    """

    def __init__(self, *rows: LedgerRow, has: Sequence[str] = (), late: int = 0) -> None:
        self.rows, self.has, self.late = rows, has, late
        self.log = list[str]()
        self.brought = list[list[tuple[Any, ...]]]()
        self.read = list[int]()
        self._generation = 0
        self.records: Any = SimpleNamespace(
            page=self._page,
            first_calls=self._first_calls,
            live=self._live,
            numbers=Numbering(),
        )

    def _page(self, on: Any, bucket: int, after: tuple[int, int], limit: int) -> list[LedgerRow]:
        self.log.append("page")
        self.read.append(bucket)
        own = (each for each in self.rows if each.bucket == bucket and each.tier != COLD)
        return sorted(
            (each for each in own if (each.due_ms, each.number) > after),
            key=lambda each: (each.due_ms, each.number),
        )[:limit]

    def _first_calls(self, on: Any, names: Sequence[Any]) -> dict[Any, int]:
        return {name: min(r.stamp for r in self.rows if r.name[:2] == name) for name in names}

    def _live(self, on: Any, ids: Sequence[str]) -> list[LedgerRow]:
        return [each for each in self.rows if each.id in ids]

    def _answer(self, command: Any) -> Any:
        if command.name != "restore":
            self.log.append("standing")
            self._generation += 1
            return Standing(str(self._generation))
        assert command.args[1] == str(self._generation), "not as of this reading"
        messages = [command.args[i : i + 5] for i in range(FIRST_MESSAGE, len(command.args), 5)]
        if self.late:
            self.late -= 1
            return None
        if messages[0][3]:
            self.brought.append([tuple(each) for each in messages])
        return [Presence.HERE if each[0] in self.has else Presence.ABSENT for each in messages]

    def run(self, steps: Any) -> Looked:
        answer: Any = None
        while True:
            try:
                asked: Any = steps.send(answer)
            except StopIteration as done:
                found: Looked = done.value
                return found
            is_work = isinstance(asked, Work)
            answer = asked.run(None) if is_work else [self._answer(each) for each in asked]

    def restore(self, wanted: WantedRows = WantedRows()) -> Looked:  # noqa: B008
        return self.run(restore_missing(BUCKET, self.records, wanted))

    def restore_all(self, wanted: WantedRows) -> Looked:
        def opened() -> Any:
            return BUCKETS
            yield

        calls: Any = SimpleNamespace(every_bucket=opened)
        return self.run(restore_all(calls, self.records, wanted, lambda looked: None))

    @property
    def ids(self) -> list[str]:
        return [each[0] for call in self.brought for each in call]


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages of two rows."""
    monkeypatch.setattr(agreement, "PAGE_MESSAGES", 2)


@pytest.mark.usefixtures("small")
def test_every_page_is_restored_and_redis_is_asked_how_it_stands_before_each() -> None:
    both = Both(*(row(n) for n in range(1, 6)), has=["m2"])
    assert both.restore() == (5, 4)
    assert both.ids == ["m1", "m3", "m4", "m5"]
    assert both.log == ["standing", "page"] * 3


@pytest.mark.usefixtures("small")
def test_a_page_that_is_too_old_is_read_again() -> None:
    both = Both(*(row(n) for n in range(1, 4)), late=2)
    assert both.restore() == (3, 3)
    assert (both.ids, both.log) == (["m1", "m2", "m3"], ["standing", "page"] * 4)


@pytest.mark.usefixtures("small")
def test_what_is_due_after_the_last_time_is_not_read() -> None:
    both = Both(*(row(n) for n in range(1, 9)))
    assert both.restore(WantedRows(from_ms=2, to_ms=4)) == (4, 3)
    assert (both.ids, both.read) == (["m2", "m3", "m4"], [1, 1])


def test_calls_from_that_time_on_may_be_under_way() -> None:
    both = Both(row(1, created_ms=4), row(2, created_ms=5), row(3, created_ms=6))
    both.restore(WantedRows(before_call_ms=5))
    assert both.ids == ["m1"]


def test_of_an_id_the_first_call_is_brought() -> None:
    both = Both(row(1, "x"), row(2, "x"), row(3, "y"))
    assert both.restore() == (3, 2)
    assert [(each[0], each[1]) for each in both.brought[0]] == [
        ("x", b"\0\0\0\1"), ("y", b"\0\0\0\3"),
    ]  # fmt: skip


def test_a_dry_run_brings_nothing() -> None:
    both = Both(row(1), row(2), has=["m2"])
    assert both.restore(WantedRows(dry=True)) == (2, 1)
    assert not both.brought


def test_the_dead_and_the_expired_come_back_dead() -> None:
    dead = row(2, state=DEAD, error="refused: why"), row(3, state=EXPIRED), row(4, error="why")
    both = Both(row(1), *dead)
    both.restore()
    assert [each[4] for each in both.brought[0]] == ["", "refused: why", "dead", ""]


@pytest.mark.parametrize(
    ("sizes", "parts"),
    [
        ([1] * 7, [3, 3, 1]),
        ([6, 6, 6], [1, 1, 1]),
        ([4, 6, 1, 9, 1], [2, 2, 1]),
        ([99, 1, 1], [1, 2]),
        ([5, 5, 5, 5], [2, 2]),
    ],
)
def test_one_call_brings_neither_too_many_nor_too_large_messages(
    monkeypatch: pytest.MonkeyPatch, sizes: list[int], parts: list[int]
) -> None:
    monkeypatch.setattr(along, "_CALL_MESSAGES", 3)
    monkeypatch.setattr(along, "_CALL_BYTES", 10)
    both = Both(*(row(n + 1, payload=b"p" * size) for n, size in enumerate(sizes)))
    assert both.restore() == (len(sizes), len(sizes))
    assert [len(each) for each in both.brought] == parts
    assert both.ids == [f"m{n + 1}" for n in range(len(sizes))]


def test_of_named_messages_their_buckets_are_read_from_the_first_to_the_last() -> None:
    rows = [row(1, "a"), row(5, "b"), row(7, "c", bucket=2), row(3, "d", bucket=0), row(9, "e")]
    both = Both(*rows)
    assert both.restore_all(WantedRows(ids=frozenset("abc"))) == (4, 3)
    assert (both.ids, both.read) == (["a", "b", "c"], [1, 2])


def test_named_messages_that_are_cold_or_due_at_other_times_are_left() -> None:
    both = Both(row(1, "a"), row(3, "b"), row(8, "c"), row(4, "d", tier=COLD, bucket=2))
    assert both.restore_all(WantedRows(3, 5, frozenset("abcd"))) == (2, 1)
    assert (both.ids, both.read) == (["b"], [1])


def test_all_buckets_are_restored_if_no_message_is_named() -> None:
    both = Both(row(1), row(2, bucket=0), row(3, bucket=2))
    assert both.restore_all(WantedRows()) == (3, 3)
    assert both.read == [0, 1, 2]
