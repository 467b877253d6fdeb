"""The ledger's statements, one by one: which rows each of them finds, changes and deletes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from delaybridge.ledger.reconciling import forgetting
from delaybridge.ledger.sql.opening import open_ledger
from delaybridge.ledger.sql.rows import (
    CANCELLED,
    COLD,
    DEAD,
    DELAYED,
    EXPIRED,
    IN_FLIGHT,
    PUBLISHED,
    Step,
)
from delaybridge.store.protocol.layout import Epoch, Layout
from tests.rigs.ledgers import LedgerProbe, Rows, ended, row

START = (-1, -1)
pytestmark = pytest.mark.slow_with("mariadb*")


def step(id: str, at_ms: int, error: str = "") -> Step:
    return Step(id, IN_FLIGHT, PUBLISHED, at_ms, "w", 1, error=error)


@pytest.fixture
def rows(ledger_url: str) -> Iterator[Rows]:
    with closing(open_ledger(ledger_url)) as ledger:
        yield Rows(ledger)


async def test_retention_deletes_what_has_ended_in_time_and_nothing_else(
    rows: Rows, ledger: LedgerProbe, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though rows that stay fill pages, and ids are used again."""
    monkeypatch.setattr(forgetting, "_ROWS", 2)
    rows.add(row("live"), row("dead", state=DEAD), row("expired", state=EXPIRED))
    rows.add(row("cold", tier=COLD, state=DELAYED), ended("old", 99), ended("again", 99))
    rows.add(ended("young", 100), row("again", 2), ended("old2", 99))
    rows.add(ended("old", 99), of=rows.other)
    own = [step("old", 99), step("again", 99), step("again", 100), step("live", 99)]
    rows.run(lambda on: rows.own.note(on, own))
    rows.run(lambda on: rows.other.note(on, [step("old", 99)]))
    await forgetting._forget_older(rows.ledger, rows.own, 100)
    left = ledger.ask("SELECT namespace, id, stamp FROM message ORDER BY number")
    own_left = ["live", "dead", "expired", "cold", "young"]
    assert left == [*(("own", id, 1) for id in own_left), ("own", "again", 2), ("other", "old", 1)]
    steps = ledger.ask("SELECT namespace, id, at_ms FROM transition ORDER BY number")
    assert steps == [("own", "again", 100), ("own", "live", 99), ("other", "old", 99)]


def test_what_has_ended_is_neither_withdrawn_nor_changed(rows: Rows, ledger: LedgerProbe) -> None:
    rows.add(row("live"), ended("ended"))
    rows.add(row("live"), ended("ended"), of=rows.other)
    names = [(1, "live", 1), (1, "ended", 1)]
    assert rows.run(lambda on: rows.own.change(on, names, CANCELLED, 5)) == 1
    assert rows.run(lambda on: rows.own.change(on, names, DEAD, 6)) == 0
    states = "SELECT id, state, tier FROM message WHERE namespace = :n ORDER BY number"
    assert ledger.ask(states, n="own") == [("live", CANCELLED, 0), ("ended", PUBLISHED, 0)]
    assert ledger.ask(states, n="other") == [("live", DELAYED, 1), ("ended", PUBLISHED, 0)]
    rows.run(lambda on: rows.own.withdraw(on, names))
    rows.run(lambda on: rows.other.withdraw(on, names))
    assert [row[0] for row in ledger.ask(states, n="own")] == ["live", "ended"]
    assert [row[0] for row in ledger.ask(states, n="other")] == ["ended"]


@pytest.mark.slow_with("postgres*")
@pytest.mark.parametrize(
    ("state", "is_live"), [(PUBLISHED, False), (CANCELLED, False), (DEAD, True), (EXPIRED, True)]
)
def test_what_is_dead_is_live_in_the_ledger(rows: Rows, state: str, is_live: bool) -> None:
    rows.add(row("a"))
    rows.run(lambda on: rows.own.change(on, [(1, "a")], state, 5))
    assert rows.ids(lambda on: rows.own.page(on, 1, START, 9)) == ["a"] * is_live
    assert rows.ids(lambda on: rows.own.live(on, ["a"])) == ["a"] * is_live


@pytest.mark.slow_with("postgres*")
def test_only_a_row_that_ended_for_this_reason_is_live_again(rows: Rows) -> None:
    rows.add(row("a"), row("b"), row("c"))
    for id, state, error in (("a", CANCELLED, "x"), ("b", CANCELLED, "y"), ("c", PUBLISHED, "")):
        rows.run(lambda on, *_, w=(id, state, error): rows.own.change(
            on, [(1, w[0])], w[1], 5, error=w[2]))  # fmt: skip
    for id in "abc":
        rows.run(lambda on, id=id: rows.cold.revive(on, (1, id, 1), error="x"))  # type: ignore[misc]
    (found,) = rows.run(lambda on: rows.own.page(on, 1, START, 9))
    assert (found.id, found.state, found.error) == ("a", DELAYED, "")


def test_only_calls_that_were_not_there_are_new(rows: Rows, ledger: LedgerProbe) -> None:
    assert rows.add(row("a"), row("b")) == {(1, "a", 1), (1, "b", 1)}
    rows.run(lambda on: rows.own.change(on, [(1, "a")], PUBLISHED, 5))
    assert rows.add(row("a"), row("c"), row("c"), row("a", 2)) == {(1, "c", 1), (1, "a", 2)}
    states = ledger.ask("SELECT id, stamp, state FROM message ORDER BY number")
    assert states[:2] == [("a", 1, PUBLISHED), ("b", 1, DELAYED)]
    assert sorted(states[2:]) == [("a", 2, DELAYED), ("c", 1, DELAYED)]


@pytest.mark.slow_with("postgres*")
def test_of_several_calls_the_first_live_one_counts(rows: Rows) -> None:
    rows.add(ended("a"), row("a", 5), row("a", 3), row("b", 7), row("b", 8, tier=COLD))
    rows.add(row("a", 1), of=rows.other)
    names = [(1, "a"), (1, "b"), (2, "a")]
    assert rows.run(lambda on: rows.own.first_calls(on, names)) == {(1, "a"): 5, (1, "b"): 7}


@pytest.mark.slow_with("postgres*")
def test_live_rows_of_an_id_are_those_of_its_namespace(rows: Rows) -> None:
    rows.add(row("a", 2, bucket=4), row("a", 1), ended("a", stamp=9), row("b", tier=COLD))
    rows.add(row("a", 3), of=rows.other)
    found = rows.run(lambda on: rows.own.live(on, ["a", "b"]))
    assert [each.name for each in found] == [(4, "a", 2), (1, "a", 1), (1, "b", 1)]


@pytest.mark.slow_with("postgres*")
def test_a_bucket_is_read_page_by_page_also_of_one_due_time(rows: Rows) -> None:
    ids = [f"m{n}" for n in range(5)]
    rows.add(row("late", due_ms=2000), *map(row, ids), row("early", due_ms=1))
    rows.add(row("cold", tier=COLD), row("elsewhere", bucket=2), ended("ended"))
    rows.add(row("other"), of=rows.other)
    found, after = list[str](), START
    while page := rows.run(lambda on, a=after: rows.own.page(on, 1, a, 2)):  # type: ignore[misc]
        found += [each.id for each in page]
        after = page[-1].due_ms, page[-1].number
    assert found == ["early", *ids, "late"]
    brief = rows.run(lambda on: rows.own.page(on, 1, START, 9, is_brief=True))
    assert {each.payload for each in brief} == {b""}


def test_a_destination_is_no_pattern(rows: Rows) -> None:
    places = ["kafka:a_b", "kafka:axb", "kafka:a_b/x", "kafka:a%", "kafka:ab"]
    rows.add(*(row(place, destination=place) for place in places))
    for to, wanted in (("kafka:a_b", [places[0], places[2]]), ("kafka:a%", [places[3]])):
        assert rows.ids(lambda on, to=to: rows.own.page(on, 1, START, 9, to=to)) == wanted  # type: ignore[misc]


def test_each_row_keeps_what_it_has(rows: Rows) -> None:
    """Whichever columns are the same in all of a call."""
    many = [
        row("a", due_ms=1), row("b", due_ms=1, priority=3), row("c", due_ms=2, priority=3),
        row("d", due_ms=2, destination="kafka:d", tier=COLD, created_ms=7, updated_ms=8),
    ]  # fmt: skip
    rows.add(*many)
    found = rows.run(lambda on: rows.own.live(on, "abcd"))
    assert [each._replace(number=0) for each in found] == many
    numbers = [each.number for each in found]
    assert rows.run(lambda on: rows.own.of_numbers(on, numbers[1:3])) == found[1:3]


def test_a_life_is_told_in_order_and_whatever_a_broker_says(rows: Rows) -> None:
    rows.add(row("a", 9), row("a", 2))
    steps = [step("a", 2, "no\0zero"), step("a", 1, "x" * 5000), step("b", 3)]
    rows.run(lambda on: rows.own.note(on, steps))
    rows.run(lambda on: rows.other.note(on, steps))
    rows.run(lambda on: rows.own.change(on, [(1, "a", 2)], DEAD, 5, error="no\0zero" * 500))
    found = rows.run(lambda on: rows.own.life(on, "a"))
    assert [each.stamp for each in found.rows] == [9, 2]
    assert "\0" not in found.rows[1].error
    assert [each.at_ms for each in found.steps] == [2, 1]
    assert "zero" in found.steps[0].error
    latest = rows.run(lambda on: rows.own.life(on, "a", limit=1))
    assert ([each.stamp for each in latest.rows], [each.at_ms for each in latest.steps]) == (
        [2],
        [1],
    )


def test_a_question_is_written_and_leaves_nothing(rows: Rows, ledger: LedgerProbe) -> None:
    """A row that stays as it is would not be: MySQL answers then, though its disk is full."""
    for id in ("a", "b"):
        rows.run(lambda on, id=id: rows.own.note(on, [step(id, 1)]))
        rows.run(rows.own.touch)
    numbers = [number for (number,) in ledger.ask("SELECT number FROM transition ORDER BY number")]
    assert len(numbers) == 2
    if not ledger.url.startswith("sqlite"):  # there numbers are used again
        assert numbers[1] - numbers[0] == 2


def test_a_namespace_has_the_layout_that_it_had_first(rows: Rows) -> None:
    resized = Layout((Epoch(0, 4), Epoch(4, 16))).moved()
    other = Layout((Epoch(0, 8),))
    assert rows.run(rows.own.known) is None
    for records, layout in ((rows.own, resized), (rows.other, other)):
        assert rows.run(lambda on, r=records, x=layout: r.settle(on, x, "1" * 16)) == (
            layout,
            "1" * 16,
        )
        assert rows.run(lambda on, r=records: r.settle(on, other, "2" * 16)) == (layout, "1" * 16)
    spread = "2" * 16 + ":32s"  # another kind of Redis
    assert rows.run(lambda on: rows.own.settle(on, other, spread)) == (resized, spread)
    assert rows.run(rows.own.known) == (resized, spread)


def test_of_many_layouts_the_last_ones_are_kept(rows: Rows) -> None:
    layout = Layout((Epoch(0, 16),))
    for count in (32, 64, 128, 256, 512, 1024) * 3:
        layout = layout.resized(count).moved()
    rows.run(lambda on: rows.own.settle(on, layout, "1" * 16 + ":999s"))
    kept, _ = rows.run(rows.own.known) or (None, "")
    assert kept is not None
    assert kept.here == layout.here
    assert layout.epochs[-len(kept.epochs) :] == kept.epochs
