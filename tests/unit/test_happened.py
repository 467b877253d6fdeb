"""What a worker remembers until the ledger has it: as much as there is memory for."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from functools import partial
from math import inf
from typing import Any

import pytest

from delaybridge.errors import ConfigError, LedgerUnavailable, StoreUnavailable
from delaybridge.ledger.reconciling import happened as happened_module
from delaybridge.ledger.reconciling.happened import Burial, Delivered, Happened
from delaybridge.ledger.reconciling.silence import Silence
from delaybridge.ledger.sql.rows import DEAD, DELAYED, EXPIRED, IN_FLIGHT, PUBLISHED, RowName, Step
from delaybridge.store.protocol.bucket import Item
from tests.rigs.bucket_session import copy_of, new_session
from tests.rigs.waiting import until_async

NUMBER = 3
SESSION = new_session(NUMBER)


def delivered(id: str, at_ms: int, due_ms: int = 5, stamp: int = 1) -> Delivered:
    return Delivered((NUMBER, id, stamp), due_ms, at_ms)


def ids_of(happened: Happened) -> list[str]:
    return [each.name[1] for each in happened.of_bucket(NUMBER)]


def test_all_is_remembered_until_the_ledger_has_it() -> None:
    happened = Happened("w")
    both = [copy_of(SESSION, "é", due_ms=7, stamp=2**32 - 1), copy_of(SESSION, "b")]
    happened.left(NUMBER, both, 100)
    last = happened.last(NUMBER)
    happened.left(NUMBER, [copy_of(SESSION, "b", stamp=2)], 200)
    happened.left(NUMBER + 1, [copy_of(SESSION, "x")], 200)
    after = delivered("b", 200, stamp=2)
    before = [delivered("é", 100, 7, 2**32 - 1), delivered("b", 100)]
    assert happened.of_bucket(NUMBER) == [*before, after]
    happened.forget(NUMBER, last)
    assert happened.of_bucket(NUMBER) == [after]
    assert happened.messages == 2
    happened.forget(NUMBER, happened.last(NUMBER))
    assert (happened.of_bucket(NUMBER), happened.last(NUMBER)) == ([], 0)
    assert happened.buckets == [NUMBER + 1]


def test_memory_is_bounded_and_the_latest_are_kept(caplog: pytest.LogCaptureFixture) -> None:
    happened = Happened("w", most_bytes=100_000)
    for n in range(1000):
        happened.left(NUMBER, [copy_of(SESSION, f"m{n:09}")], 100)
    kept = ids_of(happened)
    assert 200 < len(kept) < 300
    assert kept == [f"m{n:09}" for n in range(1000 - len(kept), 1000)]
    assert happened.messages == len(kept)
    assert caplog.text.count("ledger_memory_full") == 1
    happened.forget(NUMBER, happened.last(NUMBER))
    assert happened.messages == 0
    for n in range(1000):  # for another bucket there is room again
        happened.left(NUMBER + 1, [copy_of(SESSION, f"m{n:09}")], 100)
    assert caplog.text.count("ledger_memory_full") == 2


def test_more_is_remembered_of_messages_that_left_together() -> None:
    happened, together = Happened("w", most_bytes=100_000), 100
    for n in range(100):
        copies = [copy_of(SESSION, f"{n:05}{i:05}") for i in range(together)]
        happened.left(NUMBER, copies, 100)
    assert happened.messages > 3000


def test_what_redis_had_no_answer_for_counts_only_if_it_lost_the_bucket() -> None:
    for is_lost in (True, False):
        happened, session = Happened("w"), new_session(NUMBER)
        happened.is_owner(session)
        answered, lost, waiting = (copy_of(session, id) for id in ("answered", "lost", "waiting"))
        session.exits.settle(11, [lost], "a:q")
        session.exits.take_report()
        session.exits.settle(11, [answered], "a:q")
        report = session.exits.take_report()
        session.answered(report)
        happened.exits_stored(session, report, 100)
        session.exits.settle(11, [waiting], "a:q")
        if not is_lost:
            happened.is_owner(new_session(NUMBER))
        happened.has_lost(NUMBER, 200)
        happened.has_lost(NUMBER, 200)
        assert ids_of(happened) == ["answered", "lost", "waiting"][: 3 if is_lost else 1]


class Ledger:
    """A ledger in which every message is delayed. told: by transactions, what has ended."""

    def __init__(self) -> None:
        self.told: list[list[Step]] = []
        self.changed: dict[str, str] = {}
        self.named: list[Sequence[Any]] = []
        self.error: Exception | None = None
        self.asked, self.fails_after = 0, inf
        self.answers: asyncio.Event | None = None
        self.records: Any = self

    async def run_async(self, work: Any) -> None:
        self.asked += 1
        if self.answers is not None:
            await self.answers.wait()
        if self.asked > self.fails_after:
            raise LedgerUnavailable("ledger: gone")
        if self.error is not None:
            raise self.error
        work.run(None)

    def states(self, on: Any, names: Sequence[RowName]) -> dict[RowName, tuple[str, int]]:
        return dict.fromkeys(names, (DELAYED, 5))

    def note(self, on: Any, steps: Sequence[Step]) -> None:
        self.told.append([*steps])

    def change(self, on: Any, names: Sequence[Any], state: str, *_: Any, **__: Any) -> None:
        self.named.append(names)
        self.changed |= {name[1]: state for name in names}


@pytest.mark.parametrize("count", [1, 2, 5])
async def test_all_that_was_delivered_is_told_page_by_page(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(happened_module, "_PAGE", 2)
    happened, ledger = Happened("w"), Ledger()
    for n in range(count):
        happened.left(NUMBER, [copy_of(SESSION, f"m{n}")], n)
    await happened.tell(ledger, ledger.records, NUMBER)  # type: ignore[arg-type]
    assert [step.at_ms for page in ledger.told for step in page] == [*range(count)]
    assert max(map(len, ledger.told)) <= 2
    assert ledger.changed == {f"m{n}": PUBLISHED for n in range(count)}
    assert not happened.messages


def bury(happened: Happened, id: str, reason: str, now_ms: int = 1, stamp: int = 1) -> None:
    session = new_session(NUMBER)
    session.exits.bury(copy_of(session, id, stamp=stamp).item, reason, counted=True)
    happened.exits_stored(session, session.exits.take_report(), now_ms)


async def test_what_is_dead_is_told_of_the_call_that_scheduled_it() -> None:
    """A later one of the same id may have a row by now."""
    happened, ledger = Happened("w"), Ledger()
    bury(happened, "a", "unroutable: q", stamp=2**32 - 1)
    bury(happened, "b", "expired", stamp=7)
    undecodable = Item("c", 1, 0.0)
    SESSION.exits.bury(undecodable, "undecodable: id", counted=False)
    happened.exits_stored(SESSION, SESSION.exits.take_report(), 1)
    await happened.tell_history(ledger, ledger.records)  # type: ignore[arg-type]
    assert ledger.named == [[(NUMBER, "a", 2**32 - 1)], [(NUMBER, "b", 7)]]
    assert ledger.changed == {"a": DEAD, "b": EXPIRED}


async def test_history_is_told_page_by_page_and_what_is_alike_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An outage's at once would take longer than the database has time, again and again."""
    monkeypatch.setattr(happened_module, "_PAGE_STEPS", 3)
    happened, ledger = Happened("w"), Ledger()
    for n in range(7):
        bury(happened, f"m{n}", "expired" if n % 2 else "unroutable", now_ms=n)
    happened.steps += [Step(f"m{n}", IN_FLIGHT, DELAYED, n, "w", NUMBER) for n in range(4)]
    ledger.fails_after = 2
    with pytest.raises(LedgerUnavailable):
        await happened.tell_history(ledger, ledger.records)  # type: ignore[arg-type]
    assert [each.step.id for each in happened.dead] == ["m6"], "the others are told"
    ledger.fails_after = 9
    await happened.tell_history(ledger, ledger.records)  # type: ignore[arg-type]
    assert [len(page) for page in ledger.told] == [6, 4, 1]
    assert [[id for _, id, _ in names] for names in ledger.named] == [
        ["m0", "m2"], ["m1"], ["m3", "m5"], ["m4"], ["m6"],
    ]  # fmt: skip
    assert not (happened.steps or happened.dead)


async def test_who_tells_no_history_waits_until_another_has_told_it() -> None:
    """Else its bucket would be restored before the ledger knows what is dead."""
    happened, ledger = Happened("w"), Ledger()
    bury(happened, "a", "unroutable")
    ledger.answers = asyncio.Event()
    both = [
        asyncio.create_task(happened.tell_history(ledger, ledger.records))  # type: ignore[arg-type]
        for _ in range(2)
    ]
    await until_async(lambda: ledger.asked, "the first has asked")
    assert not any(each.done() for each in both)
    ledger.answers.set()
    await asyncio.gather(*both)
    assert ledger.changed == {"a": DEAD}


async def test_history_waits_until_the_ledger_has_it() -> None:
    happened, ledger = Happened("w"), Ledger()
    first, second = (Step(id, IN_FLIGHT, DEAD, 1, "w", NUMBER) for id in "ab")
    happened.dead.append(Burial(first, 1))
    happened.steps.append(first._replace(after=DELAYED))
    happened.left(NUMBER, [copy_of(SESSION, "x")], 1)
    ledger.error = LedgerUnavailable("ledger: gone")
    for tell in (happened.tell_history, partial(happened.tell, bucket=NUMBER)):
        with pytest.raises(LedgerUnavailable):
            await tell(ledger, ledger.records)  # type: ignore[arg-type]
    assert happened.messages == 1
    ledger.error = None
    happened.dead.append(Burial(second, 1))
    await happened.tell_history(ledger, ledger.records)  # type: ignore[arg-type]
    assert ledger.changed == {"a": DEAD, "b": DEAD}
    (steps,) = ledger.told
    assert steps == [first._replace(after=DELAYED), first, second]
    assert (happened.steps, happened.dead) == ([], [])


def test_only_the_ledger_itself_is_silent_and_that_is_said_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    silence = Silence()
    silence.ends(inf)
    silence.begins(StoreUnavailable("redis: gone"))
    assert (silence.reason, silence.last_s, caplog.text) == ("", -inf, "")
    for reason in ("first", "second"):
        silence.begins(LedgerUnavailable(reason))
        assert silence.reason == reason
    silence.ends(silence.last_s + 0.5)
    assert silence.reason, "it may take some, and refuse the rest"
    silence.ends(inf)
    silence.ends(inf)
    assert (silence.reason, caplog.text.count("ledger_silent")) == ("", 1)
    assert caplog.text.count("ledger_answers") == 1
    silence.begins(ConfigError("no tables"))
    assert caplog.text.count("ledger_silent") == 2
