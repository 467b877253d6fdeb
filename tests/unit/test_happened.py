"""What a worker remembers until the ledger has it: as much as there is memory for."""

from __future__ import annotations

import pytest

from delaybridge.worker.happened import Delivered, Happened
from tests.rigs.bucket_session import copy_of, new_session

NUMBER = 3
SESSION = new_session(NUMBER)


def delivered(id: str, at_ms: int, due_ms: int = 5, stamp: int = 1) -> Delivered:
    return Delivered((NUMBER, id, stamp), due_ms, at_ms)


def ids_of(happened: Happened) -> list[str]:
    return [each.name[1] for each in happened.of(NUMBER)]


def test_all_is_remembered_until_the_ledger_has_it() -> None:
    happened = Happened("w")
    both = [copy_of(SESSION, "é", due_ms=7, stamp=2**32 - 1), copy_of(SESSION, "b")]
    happened.left(NUMBER, both, 100)
    last = happened.last(NUMBER)
    happened.left(NUMBER, [copy_of(SESSION, "b", stamp=2)], 200)
    happened.left(NUMBER + 1, [copy_of(SESSION, "x")], 200)
    after = delivered("b", 200, stamp=2)
    before = [delivered("é", 100, 7, 2**32 - 1), delivered("b", 100)]
    assert happened.of(NUMBER) == [*before, after]
    happened.forget(NUMBER, last)
    assert happened.of(NUMBER) == [after]
    assert happened.messages == 2
    happened.forget(NUMBER, happened.last(NUMBER))
    assert (happened.of(NUMBER), happened.last(NUMBER)) == ([], 0)
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
        session.exits.take()
        session.exits.settle(11, [answered], "a:q")
        report = session.exits.take()
        session.told(report)
        happened.told(session, report, 100)
        session.exits.settle(11, [waiting], "a:q")
        if not is_lost:
            happened.is_owner(new_session(NUMBER))
        happened.has_lost(NUMBER, 200)
        happened.has_lost(NUMBER, 200)
        assert ids_of(happened) == ["answered", "lost", "waiting"][: 3 if is_lost else 1]
