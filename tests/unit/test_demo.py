"""What the demo concludes from its run, and how it shows it."""

from __future__ import annotations

import json

import pytest

from delaybridge.message import Answer
from delaybridge.operate.demo.processes import Process, begun_again
from delaybridge.operate.demo.result import (
    POISON,
    Received,
    RunResult,
    Scheduled,
    Story,
    Takeover,
    duration,
)
from delaybridge.operate.demo.screen import Screen

# the result


def _story(*deliveries: Received, **more: object) -> Story:
    """One message due at 1000 ms in bucket 0, and the poison, dead."""
    scheduled = {"a": Scheduled("a", 0, 1000), POISON: Scheduled(POISON, 1, 1000)}
    return Story(scheduled, list(deliveries), dead=[POISON], **more)  # type: ignore[arg-type]


def _result(*deliveries: Received, **more: object) -> RunResult:
    return RunResult(_story(*deliveries, **more))


ON_TIME = Received("a", 1000, 1, 1_002_000)
AGAIN = Received("a", 1000, 2, 2_100_000)
TAKEN = Takeover(2000, "w2", 0, 1, 1)
KILLED = {"killed_ms": 1001, "orphans": frozenset({0})}


def test_a_run_in_which_every_message_arrives_once_and_on_time_has_no_faults() -> None:
    result = _result(ON_TIME)
    assert result.faults() == []
    assert (result.published, result.received, result.steady_ms) == (1, 1, [2.0])


def test_a_second_copy_is_explained_if_the_dead_worker_may_have_published_it() -> None:
    result = _result(ON_TIME, AGAIN, takeovers=[TAKEN], **KILLED)
    assert (result.duplicates, result.after_kill, result.faults()) == (["a"], ["a"], [])


@pytest.mark.parametrize(
    "takeovers",
    [
        [],
        [Takeover(2000, "w2", 0, 1, 0)],  # nothing had been fired
        [Takeover(2000, "w2", 1, 1, 1)],  # another bucket
        [Takeover(2101, "w2", 0, 1, 1)],  # taken only afterwards
    ],
)
def test_a_second_copy_without_a_cause_is_a_fault(takeovers: list[Takeover]) -> None:
    assert _result(ON_TIME, AGAIN, takeovers=takeovers, **KILLED).unexplained == ["a"]


def test_more_second_copies_than_may_have_been_published_are_a_fault() -> None:
    result = _result(ON_TIME, AGAIN, AGAIN, takeovers=[TAKEN], **KILLED)
    assert (result.after_kill, result.unexplained) == (["a"], ["a"])


def test_a_message_that_arrives_after_the_answer_cancelled_is_a_fault() -> None:
    story = _story(ON_TIME)
    story.scheduled["a"].cancelled = Answer.CANCELLED
    assert RunResult(story).after_cancel == ["a"]


def test_a_message_that_arrives_before_its_new_due_time_is_early() -> None:
    story = _story(ON_TIME)
    story.scheduled["a"].due_ms = 5000
    assert RunResult(story).early == ["a"]


def test_a_worker_that_failed_is_a_fault_even_if_all_arrived() -> None:
    assert _result(ON_TIME, defects=["w2: scanner_failed"]).faults() == ["w2: scanner_failed"]


def test_only_the_poison_may_and_must_be_dead() -> None:
    story = _story(ON_TIME)
    story.dead = ["a"]
    assert RunResult(story).unexpected == ["a", POISON]


def test_a_message_that_waited_for_a_new_owner_does_not_count_as_steady() -> None:
    late = Received("a", 1000, 1, 2_010_000)
    result = _result(late, takeovers=[TAKEN], killed_ms=900, orphans=frozenset({0}))
    assert (result.steady_ms, result.takeover_ms) == ([], [1010.0])


# the screen


@pytest.mark.parametrize(("code", "again"), [("store_unavailable", ["w1"]), ("denied", [])])
def test_a_worker_that_got_no_answer_of_redis_begins_again(code: str, again: list[str]) -> None:
    """Its time-out is short. Whatever else ends it is a fault."""
    said, started = {"error": {"code": code, "message": "as it was"}}, []

    def start(name: str) -> Process:
        started.append(name)
        return worker

    with Process("w1", ["/bin/echo", json.dumps(said)], {}) as worker:
        worker.wait()
        begun_again([worker], start)
        assert worker.last_words() == "as it was"
    assert started == again


def test_durations_have_three_digits_at_most() -> None:
    shown = [duration(ms) for ms in (0.04, 9.94, 12.3, 998.0, 1234.0)]
    assert shown == ["0.0 ms", "9.9 ms", "12 ms", "998 ms", "1.2 s"]


def test_a_long_line_is_continued_below_its_label(capsys: pytest.CaptureFixture[str]) -> None:
    about = "store     redis-server 7.0.15 from PATH  redis://127.0.0.1:46273/0  nothing on disk"
    screen = Screen()
    screen.line(about + " at all")
    lines = capsys.readouterr().out.splitlines()
    assert lines == [about[:-5].rstrip(), " " * 10 + "disk at all"]
    screen.event("worker w1: " + "word " * 30)
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 80


def test_what_is_still_to_arrive_is_neither_cancelled_nor_dead() -> None:
    story = _story()
    assert [message.id for message in story.missing()] == ["a"]
    story.scheduled["a"].cancelled = Answer.CANCELLED
    assert story.missing() == []
