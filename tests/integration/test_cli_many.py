"""Many messages at once: verbs by filter, `schedule --lines`, readers that have enough."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from delaybridge import Client, Message
from delaybridge.message import new_id
from delaybridge.store import registry
from delaybridge.store.store import Store
from tests.rigs.bucket import Owner
from tests.rigs.burials import bury, hand_over
from tests.rigs.command_line import Result, Run, started
from tests.rigs.waiting import DEADLINE_S, until

HOUR = ("--in", "1h")
OwnerOf = Callable[[str], Owner]


@pytest.fixture
def client(redis_url: str, namespace: str) -> Iterator[Client]:
    """A client in the same namespace."""
    with Client(redis_url, namespace=namespace) as client:
        yield client


def summary(result: Result) -> dict[str, int]:
    """The counts that --json prints on stderr."""
    found: dict[str, int] = json.loads(result.err.splitlines()[-1])["summary"]
    return found


def test_matches_of_a_filter_are_counted_confirmed_and_changed(
    run: Run, client: Client, owner_of: OwnerOf
) -> None:
    # Given 9 mistaken messages, one of them handed to the broker, and one that is right
    client.schedule_many(Message("kafka:bad", b"", delay=60, id=f"m{n}") for n in range(9))
    client.schedule("kafka:good", b"", delay=60, id="good")
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
    assert client.get("good") is not None
    left = run(*bad, "--state", "delayed", "--yes")
    assert (left.code, left.out, left.err) == (0, "", "no message matches\n")


def test_messages_moved_by_filter_can_be_spread_over_time(
    run: Run, client: Client, store: Store
) -> None:
    client.schedule_many(
        Message("kafka:t", b"", delay=60 + n, id=f"m{n:03}", key="k") for n in range(100)
    )
    at, over = ("--at", "2035-01-01T00:00:00Z"), ("--over", "10s")
    moved = run("message", "reschedule", "--exchange", "kafka:t", *at, *over, "--yes")
    assert (moved.code, moved.err) == (0, "100 rescheduled\n")
    items = client.pending(limit=200).items
    assert [item.due_ms - 2_051_222_400_000 for item in items] == [*range(0, 10_000, 100)]
    assert [item.id for item in items] == [f"m{n:03}" for n in range(100)]
    now = run("message", "publish-now", "--id-prefix", "m00", "--over", "1h", "--yes")
    assert now.err == "10 rescheduled\n"
    (before_us,) = store.run([registry.store_time()])
    assert run("message", "publish-now", "m050", "m051", "--over", "20m").code == 0
    (after_us,) = store.run([registry.store_time()])
    stored = client.get("m051")
    assert stored is not None
    assert before_us // 1000 <= stored.due_ms - 600_000 <= after_us // 1000 + 1


def test_dead_messages_and_whole_destinations_are_changed_by_filter(
    run: Run, client: Client, owner_of: OwnerOf
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
    assert [item.id for item in client.pending().items] == ["d"]
    assert run("dead", "discard", "--all", "--yes").err == "no message matches\n"


def test_a_reader_that_closes_stdout_does_not_stop_a_bulk_verb(
    flags: list[str], client: Client
) -> None:
    client.schedule_many(Message("kafka:t", b"", delay=60) for _ in range(3000))
    line = " ".join([sys.executable, "-m", "delaybridge", *flags, "message", "cancel"])
    done = subprocess.run(
        ["bash", "-c", f"{line} --exchange t --yes | head -n 1; echo ${{PIPESTATUS[0]}} >&2"],
        capture_output=True,
        timeout=DEADLINE_S,
    )
    assert done.stderr.decode() == "3,000 cancelled\n0\n"
    assert client.stats().delayed == 0


def test_lines(run: Run, client: Client) -> None:
    data = b"\xef\xbb\xbf" + b"".join(b"body %d\r\n" % i for i in range(1203)) + b"\n\n"
    done = run("--json", "schedule", "kafka:t", *HOUR, "--lines", stdin=data)
    assert done.code == 0
    assert len({item["id"] for item in done.objects}) == 1203
    assert json.loads(done.err) == {"summary": {"scheduled": 1203, "refused": 0}}
    assert client.stats().delayed == 1203
    bodies = {item.body for item in client.pending(limit=1000).items}
    assert b"body 0" in bodies or len(bodies) == 1000


@pytest.mark.parametrize("data", [b"", b"\n\n", b"\r\n"])
def test_empty_lines_schedule_nothing(run: Run, data: bytes) -> None:
    done = run("schedule", "kafka:t", *HOUR, "--lines", stdin=data)
    assert (done.code, done.out, done.err) == (0, "", "0 scheduled\n")


def test_a_line_that_is_too_long_is_refused(run: Run, client: Client) -> None:
    data = b"a\n" + b"x" * 300_000 + b"\nb\n"
    stopped = run("--json", "schedule", "kafka:t", *HOUR, "--lines", stdin=data)
    assert stopped.code == 6
    error = json.loads(stopped.err.splitlines()[0])["error"]
    assert (error["code"], error["field"]) == ("body_too_large", "line 2")
    counts = {"scheduled": 1, "refused": 1, "unread": 1, "unread_is_all": True}
    assert summary(stopped) == counts
    assert client.stats().delayed == 1
    assert run("schedule", "kafka:t", *HOUR, "--lines", "--keep-going", stdin=data).code == 6
    assert client.stats().delayed == 3
    assert run("schedule", "nope:t", *HOUR, "--lines", stdin=b"a\n").code == 2


def test_a_reader_that_closes_stdout_does_not_stop_the_reading_of_lines(
    flags: list[str], client: Client
) -> None:
    line = " ".join([sys.executable, "-m", "delaybridge", *flags, "schedule kafka:t --in 1h"])
    done = subprocess.run(
        ["bash", "-c", f"seq 3000 | {line} --lines | head -n 1; echo ${{PIPESTATUS[1]}} >&2"],
        capture_output=True,
        timeout=DEADLINE_S,
    )
    assert len(done.stdout.splitlines()) == 1
    assert done.stderr.splitlines()[0] == b"3000 scheduled"
    assert done.stderr.splitlines()[-1] == b"0"
    assert client.stats().delayed == 3000


def test_lines_that_trickle_in_are_not_held_back(flags: list[str], client: Client) -> None:
    pipe = subprocess.PIPE
    with started(
        *flags, "schedule", "kafka:t", *HOUR, "--lines", stdin=pipe, stdout=pipe
    ) as process:
        assert process.stdin is not None
        process.stdin.write(b"first\nsec")
        process.stdin.flush()
        until(lambda: client.stats().delayed == 1)
        process.stdin.write(b"ond\n")
        process.stdin.close()
        until(lambda: client.stats().delayed == 2)
        assert process.wait(DEADLINE_S) == 0


def test_lines_interrupted(flags: list[str], client: Client) -> None:
    pipe = subprocess.PIPE
    streams = {"stdin": pipe, "stdout": pipe, "stderr": pipe}
    with started(*flags, "schedule", "kafka:t", *HOUR, "--lines", **streams) as process:
        assert process.stdin is not None
        assert process.stderr is not None
        process.stdin.write(b"first\n")
        process.stdin.flush()
        until(lambda: client.stats().delayed == 1)
        process.send_signal(signal.SIGINT)
        assert process.wait(DEADLINE_S) == 130
        assert process.stderr.read() == b"error: interrupted\n1 scheduled\n"


def test_head_closes_the_pipe(flags: list[str], client: Client) -> None:
    for _ in range(200):
        client.schedule("kafka:t", b"x" * 100, delay=3600, id=new_id())
    line = " ".join([sys.executable, "-m", "delaybridge", *flags, "--json", "message", "ls"])
    done = subprocess.run(
        ["bash", "-c", f"{line} --limit 500 | head -n 1; echo ${{PIPESTATUS[0]}} >&2"],
        capture_output=True,
        timeout=DEADLINE_S,
    )
    assert done.stderr.decode().splitlines()[-1] == "0"
    assert b"BrokenPipe" not in done.stderr
