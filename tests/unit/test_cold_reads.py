"""What the cold tier adds to the replies of Redis, without either."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from delaybridge.errors import LedgerUnavailable
from delaybridge.ledger.recording import cold_reads
from delaybridge.ledger.recording.cold_reads import ColdCounts, ColdReads
from delaybridge.ledger.sql.cold import ColdSpan
from delaybridge.ledger.sql.numbering import Numbering
from delaybridge.ledger.sql.rows import COLD, HOT, LedgerRow
from delaybridge.message import State
from delaybridge.store.protocol.bucket import Bucket
from delaybridge.store.protocol.record import split_record
from delaybridge.store.protocol.verbs import RedisCommand, Work, as_received, plain

BUCKET = Bucket("ns", 3, "birth")
DUE = BUCKET.key("due")
MANY = 1000


def row(id: str, due_ms: int, *, to: str = "kafka:b", **more: Any) -> LedgerRow:
    """Without a priority: its score is its due time."""
    found = LedgerRow(3, id, 7, due_ms, 255, to, b"payload", tier=COLD)
    return found._replace(**more)


class Cold:
    """A ledger with these cold messages in bucket 3.

    count: what it says to be there; the first of rows that are not given is due at 1. more: a page
    has more. asked: spans that were counted; each count takes `count_s`.
    """

    def __init__(
        self, *rows: LedgerRow, count: int | None = None, more: bool = False, count_s: float = 0.0
    ) -> None:
        self._rows, self._more, self._count_s = rows, more, count_s
        self._count = len(rows) if count is None else count
        self.now_s, self.asked, self.sliced = 0.0, list[ColdSpan](), list[Any]()
        self._first_ms = min((row.due_ms for row in rows), default=1 if self._count else None)
        self.counts = ColdCounts()
        self.totals: Any = SimpleNamespace(known=lambda on: {})
        self.cold: Any = SimpleNamespace(
            records=SimpleNamespace(
                namespace="ns", live=lambda on, ids: [*rows], numbers=Numbering()
            ),
            is_empty=lambda on: not self._count,
            counted=self._counted,
            slice=self._slice,
            numbers=lambda on: (1, 9),
            drawn=lambda on, bucket, numbers: [*rows],
        )

    def _counted(self, on: Any, spans: Sequence[ColdSpan]) -> list[int | None]:
        self.asked += spans
        self.now_s += self._count_s * len(spans)
        return [self._first_ms if span.is_first else self._count for span in spans]

    def _slice(self, on: Any, asked: Any, most_bytes: int) -> tuple[list[LedgerRow], bool]:
        self.sliced.append(asked)
        return [*self._rows][: asked.limit], self._more

    def read(self, command: RedisCommand[Any], reply: Any) -> Any:
        """The reply to one command, with the cold ones."""
        command = msgspec.structs.replace(command, parse=as_received)
        reads = ColdReads(self.cold, self.totals, self.counts, [command])
        _run(reads.read_ledger(), lambda work: work.run(None))
        return reads.commands[0].parse(reply)

    def find(self, ids: Sequence[str], found: list[Any]) -> tuple[list[Any], list[str]]:
        """Answers to `get` of ids of bucket 3, and which were asked again."""
        reads = ColdReads(self.cold, self.totals, self.counts, [BUCKET.get(id) for id in ids])
        again = list[str]()

        def answer(asked: Any) -> Any:
            if isinstance(asked, Work):
                return asked.run(None)
            again.extend(each.args[0] for each in asked)
            return ["hot"] * len(asked)

        _run(reads.find(found), answer)
        return found, again


def _run(steps: Any, answer: Callable[[Any], Any]) -> None:
    try:
        asked = next(steps)
        while True:
            try:
                found = answer(asked)
            except LedgerUnavailable as exc:
                asked = steps.throw(exc)
            else:
                asked = steps.send(found)
    except StopIteration:
        return


def silent(*_: Any) -> Any:
    raise LedgerUnavailable("ledger: silent")


# counts


@pytest.mark.parametrize(
    ("command", "span"),
    [
        (plain("ZCARD", DUE), ColdSpan(3)),
        (plain("ZCOUNT", DUE, "-inf", "(9"), ColdSpan(3, None, 9)),
        (plain("ZCOUNT", DUE, "5", "+inf"), ColdSpan(3, 5, None)),
        (plain("ZCOUNT", DUE, "5", "(9"), ColdSpan(3, 5, 9)),
    ],
)
def test_a_count_is_of_both(command: RedisCommand[Any], span: ColdSpan) -> None:
    cold = Cold(row("a", 7), row("b", 8))
    assert cold.read(command, 3) == 5
    assert cold.asked == [span]


@pytest.mark.parametrize("reply", [[], [b"x", b"9"], [b"x", b"7"], [b"x", b"5"]])
def test_the_first_of_both_is_the_earlier_one(reply: list[bytes]) -> None:
    cold, first = Cold(row("a", 8), row("b", 7)), plain("ZRANGE", DUE, 0, 0, "WITHSCORES")
    assert float(cold.read(first, reply)[1]) == (5 if reply[1:] == [b"5"] else 7)
    assert Cold().read(first, reply) == reply
    later = plain("ZRANGE", DUE, 6, "+inf", "BYSCORE", "LIMIT", 0, 1, "WITHSCORES")
    cold.read(later, reply)
    assert cold.asked == [ColdSpan(3, is_first=True), ColdSpan(3, 6, is_first=True)]


@pytest.mark.parametrize(
    ("count", "count_s", "kept"), [(MANY, 0.1, True), (MANY - 1, 0.1, False), (MANY, 0.01, False)]
)
def test_only_a_slow_count_of_many_is_kept_for_twenty_times_as_long_as_it_took(
    monkeypatch: pytest.MonkeyPatch, count: int, count_s: float, kept: bool
) -> None:
    cold = Cold(count=count, count_s=count_s)
    monkeypatch.setattr(cold_reads, "time", SimpleNamespace(monotonic=lambda: cold.now_s))
    counts = []
    for now_s in (0.0, 0.0, 2.0, 2.1):  # the first count ends at 0.1
        cold.now_s += now_s - cold.now_s if now_s else 0.0
        assert cold.read(plain("ZCARD", DUE), 1) == count + 1
        counts.append(len(cold.asked))
    assert counts == ([1, 1, 1, 2] if kept else [1, 2, 3, 4])


def test_while_the_ledger_is_silent_redis_is_all_there_is() -> None:
    cold = Cold(row("a", 7))
    cold.cold.is_empty = silent
    assert cold.read(plain("ZCARD", DUE), 3) == 3


# pages

Entry = tuple[str, int]


def page(cold: Cold, limit: int, hot: Sequence[Entry], *, more: bool) -> tuple[list[Entry], bool]:
    """A brief page of both; more: Redis has more than `hot`."""
    command = BUCKET.page(State.DELAYED, limit=limit, after=(1.5, b"x"), low=1.0)
    command = msgspec.structs.replace(command, args=(*command.args[:-1], 1))
    flat = [part for id, due in hot for part in (id.encode(), b"%d" % due, b"kafka:a")]
    is_part, *found = cold.read(command, [int(more), *flat])
    ids, scores, places = found[::3], found[1::3], found[2::3]
    assert {*places} <= {b"kafka:a", b"kafka:b"}
    return [(i.decode(), int(float(s))) for i, s in zip(ids, scores, strict=True)], is_part == 1


A, B, C, D = (("a", 1), ("b", 2), ("c", 3), ("d", 4))


@pytest.mark.parametrize(
    ("hot", "has_more", "cold", "cold_more", "found", "is_part"),
    [
        ([A], False, [B], False, [A, B], False),
        ([A, B], False, [C], False, [A, B], True),
        ([A, C], False, [B, D], False, [A, B], True),
        ([B], True, [A, C], False, [A, B], True),  # Redis may have one before c
        ([A], True, [C], False, [A], True),
        ([B], False, [A], True, [A], True),  # the ledger may have one before b
        ([A], True, [B], True, [A], True),
        ([B], True, [A], True, [A], True),
        ([A, B], False, [B], False, [A, B], False),  # it was promoted meanwhile
        ([], False, [A, B], True, [A, B], True),
        ([A], True, [], False, [A], True),
    ],
)
def test_a_page_of_both_leaves_out_none(
    hot: list[Entry], has_more: bool, cold: list[Entry], cold_more: bool,
    found: list[Entry], is_part: bool,
) -> None:  # fmt: skip
    both = Cold(*(row(id, due) for id, due in cold), count=len(cold) or 1, more=cold_more)
    assert page(both, 2, hot, more=has_more) == (found, is_part)
    (asked,) = both.sliced
    assert asked == (3, 2, 1.0, None, (1.5, "x"))


# samples


@pytest.mark.parametrize(
    ("size", "read", "cold", "listed", "counts"),
    [
        (3, 3, 2, 2, [5, 5, 3, 2]),  # all of both
        (100, 10, 4, 4, [104, 11, 10, 1]),  # a tenth of Redis: a tenth of the rest, one at least
        (20, 20, 5, 1000, [1020, 6, 1, 5]),  # some of the ledger
        (0, 0, 2, 2, [2, 2, 0, 2]),
    ],
)
def test_a_tally_is_of_as_much_as_was_read_of_the_smaller_part(
    size: int, read: int, cold: int, listed: int, counts: list[int]
) -> None:
    both = Cold(*(row(f"c{n}", 50 + n) for n in range(cold)), count=listed)
    hot = [b"kafka:a", read, b"90"] if read else []
    found = both.read(BUCKET.tally(State.DELAYED, 5, 7), [size, read, *hot])
    firsts = dict(zip(found[2::3], map(float, found[4::3]), strict=True))
    tallied = dict(zip(found[2::3], found[3::3], strict=True))
    assert [*found[:2], tallied.get(b"kafka:a", 0), tallied[b"kafka:b"]] == counts
    assert firsts[b"kafka:b"] == 50


@pytest.mark.parametrize(("hot_ms", "first_ms"), [(b"40", 40), (b"90", 50)])
def test_a_destination_of_both_is_counted_once_with_its_first(hot_ms: bytes, first_ms: int) -> None:
    both = Cold(row("a", 60), row("b", 50))
    found = both.read(BUCKET.tally(State.DELAYED, 5, 7), [1, 1, b"kafka:b", 1, hot_ms])
    assert [*found[:4], float(found[4])] == [3, 3, b"kafka:b", 3, first_ms]


@pytest.mark.parametrize(
    ("hot", "size", "cold", "listed", "drawn"),
    [(3, 3, 2, 2, (3, 2)), (4, 40, 5, 5, (4, 1)), (4, 4, 5, 10, (2, 5)), (0, 0, 2, 2, (0, 2))],
)
def test_a_sample_has_as_many_of_each_as_there_are(
    hot: int, size: int, cold: int, listed: int, drawn: tuple[int, int]
) -> None:
    both = Cold(*(row(f"c{n}", n) for n in range(cold)), count=listed)
    reply = [size, *[b"hot", 3, b"1", b"hot"] * hot]
    found = both.read(BUCKET.sample(5), reply)
    assert found[0] == size + listed
    assert (found[1::4].count(b"hot"), found[1::4].count(b"payload")) == drawn


# single messages


def test_a_message_that_no_bucket_knows_is_read_in_the_ledger() -> None:
    cold = Cold(row("a", 7), row("b", 8, tier=HOT), row("c", 9, bucket=4))
    (a, b, c, d), again = cold.find("abcd", [None, None, None, "here"])
    assert (a.id, a.score, split_record(a.record)) == ("a", 7.0, (7.0, b"payload"))
    assert (b, c, d, again) == ("hot", None, "here", ["b"])


def test_while_the_ledger_is_silent_such_a_message_is_neither_there_nor_not() -> None:
    cold = Cold(row("a", 7))
    cold.cold.records.live = silent
    (a, b), _ = cold.find("ab", [None, "here"])
    assert isinstance(a, LedgerUnavailable) and b == "here"
