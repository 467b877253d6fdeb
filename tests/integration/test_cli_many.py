"""Many messages at once: verbs by filter, `schedule --lines`, readers that have enough."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable

from delaybridge import Client, Message
from delaybridge.store.namespace import registry
from delaybridge.store.redis.store import Store
from tests.rigs.bucket import Owner
from tests.rigs.burials import bury, hand_over
from tests.rigs.command_line import Result, Run, started
from tests.rigs.crew import PATIENT_PROCESS
from tests.rigs.waiting import DEADLINE_S

HOUR = ("--in", "1h")
OwnerOf = Callable[[str], Owner]


def summary(result: Result) -> dict[str, int]:
    """The counts that --json prints on stderr."""
    found: dict[str, int] = json.loads(result.err.splitlines()[-1])["summary"]
    return found


def test_matches_of_a_filter_are_counted_confirmed_and_changed(
    run: Run, caller: Client, owner_of: OwnerOf
) -> None:
    # Given 9 mistaken messages, one of them handed to the broker, and one that is right
    caller.schedule_many(Message("kafka:bad", b"", delay=60, id=f"m{n}") for n in range(9))
    caller.schedule("kafka:good", b"", delay=60, id="good")
    hand_over(owner_of("m4"), "m4")
    bad = ("message", "cancel", "--destination", "kafka:bad")
    # When it is only counted or not confirmed, then nothing is done
    counted = run("--json", *bad, "--dry-run")
    assert counted.objects[0]["matched"] == 9
    assert counted.objects[0]["in_flight"] >= 1
    refused = run("--json", *bad)
    assert (refused.code, refused.out) == (2, "")
    assert (refused.error["code"], refused.error["field"]) == ("confirm", "--yes")
    assert "9 messages" in refused.error["message"]
    # When it is done, then each message has its own answer, and the counts are right
    done = run("--json", *bad, "--yes")
    assert done.code == 6
    answers = {each["id"]: each["answer"] for each in done.objects}
    assert answers == {f"m{n}": "cancelled" for n in range(9)} | {"m4": "in_flight"}
    assert summary(done) == {"matched": 9, "cancelled": 8, "in_flight": 1}
    assert caller.get("good") is not None
    left = run(*bad, "--state", "delayed", "--yes")
    assert (left.code, left.out, left.err) == (0, "", "no message matches\n")


def test_a_command_that_is_made_of_its_row_changes_messages(run: Run, caller: Client) -> None:
    caller.schedule_many(Message("kafka:t", b"", delay=60, id=f"m{n}", ttl="1h") for n in range(3))
    one = run("message", "touch", "m0", "--ttl", "5m")
    assert (one.code, one.out) == (0, "m0  replaced\n")
    rest = run("--json", "message", "touch", "--id-prefix", "m", "--ttl", "5m", "--yes")
    assert summary(rest) == {"matched": 3, "replaced": 3}
    found = [caller.get(f"m{n}") for n in range(3)]
    assert [each and each.ttl_ms for each in found] == [300_000] * 3
    assert run("message", "touch", "gone", "--ttl", "5m").code == 3


def test_a_dry_run_says_what_would_happen_to_each_id(
    run: Run, caller: Client, owner_of: OwnerOf
) -> None:
    caller.schedule_many(Message("kafka:t", b"", delay=60, id=id) for id in ("a", "b"))
    hand_over(owner_of("b"), "b")
    dry = run("--json", "message", "cancel", "a", "b", "c", "--dry-run")
    answers = {each["id"]: each["answer"] for each in dry.objects}
    assert answers == {"a": "cancelled", "b": "in_flight", "c": "unknown"}
    assert dry.code == 6, "as that of the verb"
    alone = run("message", "reschedule", "a", "--by", "+1h", "--dry-run")
    assert (alone.out, alone.err) == ("a  rescheduled\n", "dry run: nothing is changed\n")
    assert run("--json", "message", "cancel", "b", "--dry-run").error["code"] == "in_flight"
    assert run("message", "publish-now", "a", "--over", "1h", "--dry-run").out == "a  rescheduled\n"
    kept = caller.get("a")
    assert kept is not None and kept.due_ms < (caller.stats().now_ms + 60_000)


def test_messages_moved_by_filter_can_be_spread_over_time(
    run: Run, caller: Client, store: Store
) -> None:
    caller.schedule_many(
        Message("kafka:t", b"", delay=60 + n, id=f"m{n:03}", key="k") for n in range(100)
    )
    at, over = ("--at", "2035-01-01T00:00:00Z"), ("--over", "10s")
    moved = run("message", "reschedule", "--exchange", "kafka:t", *at, *over, "--yes")
    assert (moved.code, moved.err) == (0, "100 rescheduled\n")
    items = caller.pending(limit=200).items
    assert [item.due_ms - 2_051_222_400_000 for item in items] == [*range(0, 10_000, 100)]
    assert [item.id for item in items] == [f"m{n:03}" for n in range(100)]
    now = run("message", "publish-now", "--id-prefix", "m00", "--over", "1h", "--yes")
    assert now.err == "10 rescheduled\n"
    (before_us,) = store.run([registry.store_time()])
    assert run("message", "publish-now", "m050", "m051", "--over", "20m").code == 0
    (after_us,) = store.run([registry.store_time()])
    stored = caller.get("m051")
    assert stored is not None
    assert before_us // 1000 <= stored.due_ms - 600_000 <= after_us // 1000 + 1


def test_dead_messages_and_whole_destinations_are_changed_by_filter(
    run: Run, caller: Client, owner_of: OwnerOf
) -> None:
    for id in ("a", "b", "c"):
        run("schedule", "rabbitmq:/q", "x", *HOUR, "--id", id)
        bury(owner_of(id), id, f"{'unroutable' if id != 'c' else 'refused'}: by a test")
    assert run("dead", "kick", "--id-prefix", "zz", "--yes").err == "no message matches\n"
    kicked = run("dead", "kick", "--reason", "unroutable", "--over", "10m", "--yes")
    assert (kicked.code, kicked.err) == (0, "2 kicked\n")
    run("schedule", "rabbitmq:/other", "x", *HOUR, "--id", "d")
    missing = run("--json", "destination", "purge", "rabbitmq:/q")
    assert (missing.code, missing.out) == (2, "")
    assert missing.error["field"] == "--confirm rabbitmq:/q"
    assert "purge 3 messages" in missing.error["message"]
    assert run("destination", "purge", "rabbitmq:/q", "--confirm", "rabbitmq:/other").code == 2
    purged = run("--json", "destination", "purge", "rabbitmq:/q", "--confirm", "rabbitmq:/q")
    assert summary(purged) == {"matched": 3, "cancelled": 3}
    assert [item.id for item in caller.pending().items] == ["d"]
    assert run("dead", "discard", "--all", "--yes").err == "no message matches\n"


def cut_short(source: str, flags: list[str], words: str) -> tuple[list[str], list[str]]:
    """What a command prints whose reader takes one line; its exit code comes last."""
    line = " ".join([sys.executable, "-m", "delaybridge", *flags, words])
    piped = f"{source} | {line} | head -n 1; echo ${{PIPESTATUS[1]}} >&2"
    environment = PATIENT_PROCESS | os.environ
    done = subprocess.run(
        ["bash", "-c", piped], capture_output=True, text=True, timeout=DEADLINE_S, env=environment
    )
    return done.stdout.splitlines(), done.stderr.splitlines()


def test_a_reader_that_closes_stdout_does_not_stop_a_bulk_verb(
    flags: list[str], caller: Client
) -> None:
    caller.schedule_many(Message("kafka:t", b"", delay=60) for _ in range(3000))
    _, err = cut_short("true", flags, "message cancel --exchange t --yes")
    assert err == ["3,000 cancelled", "0"]
    assert caller.stats().delayed == 0


def test_a_line_that_is_too_long_is_refused(run: Run, caller: Client) -> None:
    data = b"a\n" + b"x" * 300_000 + b"\nb\n"
    stopped = run("--json", "schedule", "kafka:t", *HOUR, "--lines", stdin=data)
    assert stopped.code == 6
    error = json.loads(stopped.err.splitlines()[0])["error"]
    assert (error["code"], error["field"]) == ("body_too_large", "line 2")
    counts = {"scheduled": 1, "refused": 1, "unread": 1, "unread_is_all": True}
    assert summary(stopped) == counts
    assert caller.stats().delayed == 1
    assert run("schedule", "kafka:t", *HOUR, "--lines", "--keep-going", stdin=data).code == 6
    assert caller.stats().delayed == 3
    assert run("schedule", "nope:t", *HOUR, "--lines", stdin=b"a\n").code == 2


def test_a_reader_that_closes_stdout_does_not_stop_the_reading_of_lines(
    flags: list[str], caller: Client
) -> None:
    out, err = cut_short("seq 3000", flags, "schedule kafka:t --in 1h --lines")
    assert len(out) == 1
    assert (err[0], err[-1]) == ("3000 scheduled", "0")
    assert caller.stats().delayed == 3000


def test_lines_interrupted(flags: list[str], caller: Client) -> None:
    pipe = subprocess.PIPE
    streams = {"stdin": pipe, "stdout": pipe, "stderr": pipe}
    with started(*flags, "schedule", "kafka:t", *HOUR, "--lines", **streams) as process:
        assert process.stdin and process.stdout and process.stderr
        process.stdin.write(b"first\n")
        process.stdin.flush()
        assert process.stdout.readline()  # only then does it know that it is stored
        assert caller.stats().delayed == 1
        process.send_signal(signal.SIGINT)
        assert process.wait(DEADLINE_S) == 130
        assert process.stderr.read() == b"error: interrupted\n1 scheduled\n"
