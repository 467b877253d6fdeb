"""The ledger's statements about the cold tier, and about rules: which rows each of them has."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing
from functools import partial
from typing import Any

import pytest

from delaybridge.ledger.sql import cold
from delaybridge.ledger.sql.cold import ColdSlice, ColdSpan
from delaybridge.ledger.sql.controls import ControlRecords
from delaybridge.ledger.sql.opening import open_ledger
from delaybridge.ledger.sql.rows import COLD, DEFINITION, HOT, RULE, Control, ControlName
from tests.rigs.ledgers import LedgerProbe, Rows, ended, row

START = (-1, -1)
pytestmark = pytest.mark.slow_with("mariadb*")
chill = partial(row, tier=COLD)


@pytest.fixture
def rows(ledger_url: str) -> Iterator[Rows]:
    with closing(open_ledger(ledger_url)) as ledger:
        yield Rows(ledger)


def test_what_has_ended_gets_no_tier_again(rows: Rows, ledger: LedgerProbe) -> None:
    """A message may be cancelled while somebody brings it."""
    rows.add(chill("a"), chill("b"), row("hot"), ended("ended"))
    rows.add(chill("a"), chill("b"), of=rows.other)
    names = [(1, id, 1) for id in ("a", "hot", "ended")]
    rows.run(lambda on: rows.cold.warm(on, names))
    read = rows.run(lambda on: rows.own.live(on, ["b"]))
    cancelled = [each._replace(tier=COLD) for each in rows.run(
        lambda on: rows.own.life(on, "ended")).rows]  # fmt: skip
    rows.run(lambda on: rows.cold.arrived(on, [*read, *cancelled]))
    tiers = "SELECT id, tier FROM message WHERE namespace = :n ORDER BY number"
    assert ledger.ask(tiers, n="own") == [("a", 1), ("b", 1), ("hot", 1), ("ended", 0)]
    assert ledger.ask(tiers, n="other") == [("a", 2), ("b", 2)]
    assert rows.run(rows.cold.is_empty)


@pytest.mark.slow_with("postgres*")
def test_of_several_calls_a_cold_one_is_the_first(rows: Rows) -> None:
    rows.add(ended("a"), row("a", 5), chill("a", 6), chill("a", 7), row("b", 1), row("b", 2))
    rows.add(ended("c"))
    names = [(1, id) for id in "abc"]
    found = rows.run(lambda on: rows.cold.first(on, names))
    assert {each.name for each in found.values()} == {(1, "a", 6), (1, "b", 1)}
    calls = rows.run(lambda on: rows.cold.calls(on, names, tier=HOT))
    assert {name: sorted(each) for name, each in calls.items()} == {
        (1, "a"): [(5, HOT), (6, COLD), (7, COLD)], (1, "b"): [(1, HOT), (2, HOT)],
    }  # fmt: skip
    cold_calls = rows.run(lambda on: rows.cold.calls(on, names))
    assert {name: sorted(each) for name, each in cold_calls.items()} == {
        (1, "a"): [(6, COLD), (7, COLD)]
    }


def test_due_are_the_first_calls_of_a_bucket_page_by_page(rows: Rows) -> None:
    rows.add(chill("other"), of=rows.other)
    rows.add(chill("end", due_ms=2000), chill("later", due_ms=2001), row("hot"))
    rows.add(ended("again"), *(chill(f"m{n}") for n in range(3)), chill("again", 2))
    rows.add(chill("elsewhere", bucket=2), chill("m0", 2), row("taken"), chill("taken", 2))
    rows.add(chill("other"), chill("m1", bucket=2))
    found, after = list[tuple[str, int]](), START
    while page := rows.run(lambda on, a=after: rows.cold.due(on, 1, 2000, a, 2)):  # type: ignore[misc]
        found += [(each.id, each.stamp) for each in page]
        after = page[-1].due_ms, page[-1].number
    firsts = [("m0", 1), ("m1", 1), ("m2", 1), ("again", 2), ("other", 1), ("end", 1)]
    assert found == firsts


def test_spans_are_counted_from_their_beginning_to_before_their_end(
    rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cold, "_AT_ONCE", 2)
    rows.add(*(chill(f"m{due_ms}", due_ms=due_ms) for due_ms in (10, 20, 30)))
    rows.add(chill("b", bucket=2, due_ms=5), row("hot", due_ms=15))
    rows.add(chill("other", due_ms=12), of=rows.other)
    spans = [ColdSpan(1, 10, 30), ColdSpan(1), ColdSpan(2, None, 5), ColdSpan(2, 5), ColdSpan(3)]
    firsts = [span._replace(is_first=True) for span in spans]
    counted = rows.run(lambda on: rows.cold.counted(on, [*spans, *firsts]))
    assert counted == [2, 3, 0, 1, 0, 10, 10, None, 5, None]


def test_a_list_is_read_in_the_order_of_redis(rows: Rows) -> None:
    """By time, priority and the bytes of the id; page after page, each of so many bytes."""
    rows.add(chill("é", due_ms=5), chill("z", due_ms=5), chill("Z", due_ms=5))
    rows.add(chill("low", due_ms=4), chill("high", due_ms=4, priority=9))
    rows.add(chill("mid", due_ms=4, priority=5), chill("late", due_ms=9), row("hot", due_ms=4))
    rows.add(chill("elsewhere", bucket=2, due_ms=5))
    rows.add(chill("other", due_ms=5), of=rows.other)
    order = ["high", "mid", "low", "Z", "z", "é"]
    for limit, max_bytes in ((1, 100), (2, 100), (4, 5), (6, 100)):
        found, after, more = list[str](), None, True
        while more:
            asked = ColdSlice(1, limit, 3.5, 5.9, after)
            page, more = rows.run(lambda on, a=asked, b=max_bytes: rows.cold.slice(on, a, b))  # type: ignore[misc]
            assert len(page) == 1 or sum(len(each.payload) for each in page) <= max_bytes
            found += [each.id for each in page]
            after = page[-1].score, page[-1].id
        assert found == order


@pytest.mark.slow_with("postgres*")
def test_a_sample_is_of_one_bucket_and_what_is_cold(rows: Rows) -> None:
    rows.add(chill("a"), row("hot"), chill("elsewhere", bucket=2))
    rows.add(chill("other"), of=rows.other)
    first, last = rows.run(rows.cold.numbers)
    numbers = [*range(first, last + 1)]
    assert rows.ids(partial(rows.cold.drawn, bucket=1, numbers=numbers)) == ["a"]


@pytest.mark.slow_with("postgres*")
def test_rules_that_were_removed_are_forgotten_by_their_namespace(rows: Rows) -> None:
    own, other = ControlRecords("own"), ControlRecords("other")
    found = [Control(RULE, b"set", b"{}", 9), Control(RULE, b"gone", b"", 9)]
    for records in (own, other):
        rows.run(partial(records.record, found=[*found, Control(RULE, b"young", b"", 10)]))
    rows.run(partial(own.forget, before_ms=10))
    assert {each.name for each in rows.run(own.all)} == {b"set", b"young"}
    assert {each.name for each in rows.run(other.all)} == {b"set", b"gone", b"young"}


@pytest.mark.slow_with("postgres*")
def test_of_two_who_add_a_rule_at_once_the_later_change_is_kept(
    rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    records, known = ControlRecords("own"), ControlRecords._known
    rows.run(partial(records.record, found=[Control(RULE, b"a", b"{}", 1)]))
    sees = iter((False, True))  # first as before the other one has added it

    def see(self: ControlRecords, on: Any, found: Iterable[Control]) -> dict[ControlName, Control]:
        return known(self, on, found) if next(sees) else {}

    monkeypatch.setattr(ControlRecords, "_known", see)
    rows.run(partial(records.record, found=[Control(RULE, b"a", b"[]", 2)]))
    assert [(each.value, each.changed_ms) for each in rows.run(records.all)] == [(b"[]", 2)]


@pytest.mark.slow_with("postgres*")
def test_runs_are_noted_of_one_plan_and_only_forward(rows: Rows) -> None:
    records = ControlRecords("own")
    for birth, made_ms, noted in (("p", 5, 5), ("p", 4, 5), ("q", 3, 3)):
        value = b'{"birth":"%b"}' % birth.encode()
        rows.run(partial(records.record, found=[Control(DEFINITION, b"d", value, 10 - made_ms)]))
        rows.run(partial(records.made, name=b"d", birth=birth, made_ms=made_ms))
        (found,) = rows.run(records.all)
        assert (found.birth, found.made_ms) == (birth, noted)
