"""What the command line tells an operator while messages do not go out, with a real worker."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import redis

from delaybridge import Client, Message
from delaybridge.message import Answer, State
from delaybridge.store.protocol import keys
from delaybridge.times import format_time
from tests.rigs.command_line import Run
from tests.rigs.waiting import until


@pytest.fixture
def worker(
    redis_url: str, namespace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """A worker that serves only Redis Streams, in the Redis that holds the messages."""
    monkeypatch.setenv("DELAYBRIDGE_LEASE__RENEW_MS", "200")
    for wait in ("BASE_MS", "MAX_MS"):  # what failed stays as it is while a test looks at it
        monkeypatch.setenv(f"DELAYBRIDGE_RETRY__{wait}", "3600000")
    flags = ["--redis", redis_url, "--namespace", namespace, "--broker", redis_url]
    command = [sys.executable, "-m", "delaybridge", *flags, "scan", "--name", "w"]
    with (tmp_path / "log").open("wb") as log, subprocess.Popen(command, stderr=log) as process:
        yield
        process.kill()


@pytest.fixture
def no_stream(redis_url: str, namespace: str) -> str:
    """A destination that refuses every message."""
    with redis.Redis.from_url(redis_url) as connection:
        connection.set(f"{namespace}-text", "not a stream")
    return f"redis:{namespace}-text"


@pytest.mark.usefixtures("worker")
def test_a_failing_destination_is_named_with_its_reason_while_its_message_is_retried(
    caller: Client, run: Run, no_stream: str
) -> None:
    made = caller.schedule(no_stream, b"x", delay=0, id="a")

    def failed() -> bool:
        stored = caller.get("a")
        return stored is not None and stored.attempts >= 1

    until(failed, "a publish failed")
    stored = caller.get("a")
    assert stored is not None
    assert stored.first_due_ms == made.due_ms
    assert stored.failing_ms is not None
    assert stored.failing_ms >= made.due_ms
    shown = run("message", "show", "a").out
    assert "last error     wrong_type: " in shown
    assert "first due " in shown
    (data,) = run("--json", "message", "show", "a").objects
    assert data["first_due_ms"] == made.due_ms
    assert data["last_error"].startswith("wrong_type: ")
    (listed,) = caller.pending(state=State.DELAYED).items
    assert (listed.last_error or "").startswith("wrong_type: ")
    rows = run("message", "ls", "--state", "delayed").out
    assert format_time(made.due_ms) in rows and "wrong_type: " in rows

    (counted,) = caller.stats().retrying
    assert counted[:3] == (no_stream, "wrong_type", 1)
    (data,) = run("--json", "stats").objects
    assert data["retrying"][0]["destination"] == no_stream
    assert "RETRYING" in run("stats").out
    for code, limits in (
        (0, ("--max-overdue", "1h", "--max-retrying-age", "1d")),
        (1, ("--max-retrying-age", "0s")),
    ):
        health = run("health", *limits)
        assert (health.code, f"1 message to {no_stream} failing for " in health.out) == (code, True)
    found = run("--json", "doctor").objects
    (warned,) = [each["text"] for each in found if each["about"] == "retrying"]
    assert no_stream in warned
    assert "wrong_type" in warned


@pytest.mark.usefixtures("worker")
def test_a_parked_message_says_why_and_a_broker_that_no_worker_serves_is_named(
    caller: Client, run: Run
) -> None:
    caller.schedule("kafka:orders", b"x", delay=0, id="a")

    def is_told() -> bool:
        return any(each.destination == "kafka:" for each in caller.stats().troubles)

    until(is_told, "the worker has announced what it parks")
    stored = caller.get("a")
    assert stored is not None
    assert (stored.state, stored.attempts) == (State.PARKED, 0)
    assert stored.reason is not None and stored.reason.startswith("no_broker: ")
    assert caller.pending(state=State.PARKED).items == [stored]
    assert "no_broker" in run("message", "ls", "--state", "parked").out
    assert "broker_unknown" in run("stats").out
    warnings = [
        each["text"] for each in run("--json", "--broker", "eu=memory://", "doctor").objects
    ]
    assert any(text.startswith("no broker is named kafka at ") for text in warnings)
    assert any(text.startswith("no worker serves broker eu.") for text in warnings)


def test_a_message_parked_in_a_bucket_that_no_worker_holds_says_so(
    caller: Client, redis_url: str, namespace: str
) -> None:
    made = caller.schedule("kafka:orders", b"x", delay=0, id="a")
    with redis.Redis.from_url(redis_url) as connection:
        due, parked = (keys.bucket_key(namespace, made.bucket, key) for key in ("due", "parked"))
        connection.zadd(parked, dict(connection.zpopmin(due)))
    stored = caller.get("a")
    assert stored is not None
    assert (stored.reason or "").startswith("no_worker: ")


def test_an_error_that_an_older_worker_left_behind_is_not_counted(
    caller: Client, redis_url: str, namespace: str
) -> None:
    caller.stats()
    with redis.Redis.from_url(redis_url) as connection:
        attempts = keys.bucket_key(namespace, 0, "attempts")
        failing = b"1800000000000\nkafka:orders\nrefused: why"
        connection.hset(attempts, mapping={b"settled\0": failing, b"b\0": failing, b"b": b"1:0:"})
    assert [each.messages for each in caller.stats().retrying] == [1]


# the dead set


def test_dead_entries_that_cannot_be_read_have_date_and_reason_and_are_not_kicked(
    caller: Client, run: Run, redis_url: str, namespace: str
) -> None:
    made = [caller.schedule("kafka:orders", b"x", delay=3600, id=id) for id in ("gone", "odd")]
    with redis.Redis.from_url(redis_url) as connection:
        for receipt, why in zip(made, ("payload_missing", "undecodable: why"), strict=True):
            name = partial(keys.bucket_key, namespace, receipt.bucket)
            connection.zrem(name("due"), receipt.id)
            connection.zadd(name("dead"), {receipt.id: 1_800_000_000_000})
            connection.hset(name("dead_reason"), receipt.id, why)
        record = connection.hget(name("messages"), "odd")
        assert record is not None
        connection.hset(name("messages"), "odd", record[:13] + b"\xc1")
        connection.hdel(keys.bucket_key(namespace, made[0].bucket, "messages"), "gone")
    listed = run("dead", "ls").out.splitlines()
    for id, why in (("gone", "payload_missing"), ("odd", "undecodable: why")):
        (line,) = [line for line in listed if id in line]
        assert line.startswith("2027-01-15T")
        assert line.endswith(why)
        shown = run("dead", "show", id)
        assert (shown.code, why in shown.out) == (0, True)
        assert run("dead", "kick", id).code == 4
        assert caller.dead.kick(id) == Answer.UNREADABLE
        assert caller.dead.discard(id) == Answer.DISCARDED


def test_quarantined_messages_are_counted_by_their_code(
    caller: Client, run: Run, redis_url: str, namespace: str
) -> None:
    codes = ["bad_time", "bad_header", "bad_time"]
    for number, code in enumerate(codes):
        made = caller.schedule("kafka:orders", b"x", delay=3600, id=f"m{number}")
        with redis.Redis.from_url(redis_url) as connection:
            name = partial(keys.bucket_key, namespace, made.bucket)
            connection.zrem(name("due"), made.id)
            connection.zadd(name("dead"), {made.id: 1_800_000_000_000})
            connection.hset(name("dead_reason"), made.id, f"ingress:{code} x-delay: why")
    rows = run("--json", "dead", "ls", "--by-reason").objects
    assert [(row["reason"], row["count"]) for row in rows] == [
        ("ingress:bad_time", 2),
        ("ingress:bad_header", 1),
    ]


@pytest.mark.parametrize("is_there", [True, False], ids=["confirmed", "refused"])
def test_a_given_up_message_goes_to_the_dead_letter_destination_if_that_takes_it(
    is_there: bool,
    caller: Client,
    redis_url: str,
    namespace: str,
    no_stream: str,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    letters = f"{namespace}-letters"
    monkeypatch.setenv("DELAYBRIDGE_DEAD__DEAD_LETTER", f"redis:{letters}")
    monkeypatch.setenv("DELAYBRIDGE_RETRY__MAX_ATTEMPTS", "1")
    request.getfixturevalue("worker")
    with redis.Redis.from_url(redis_url) as connection:
        if not is_there:
            connection.set(letters, "not a stream")
        caller.schedule(no_stream, b"x", delay=0, id="a")

        def is_over() -> bool:
            found = caller.get("a")
            return found is None or found.state is State.DEAD

        until(is_over, "it left the bucket or was buried")
        stored = caller.get("a")
        if not is_there:
            assert stored is not None
            assert "; dead_letter: wrong_type: " in (stored.reason or "")
            return
        assert stored is None
        ((_, fields),) = connection.xrange(letters)
        assert fields[b"body"] == b"x"
        assert fields[b"header:x-dead-destination"] == no_stream.encode()
        assert fields[b"header:x-dead-reason"].startswith(b"wrong_type: ")


def test_a_worker_drops_dead_messages_that_are_too_old(
    caller: Client,
    no_stream: str,
    run: Run,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DELAYBRIDGE_DEAD__MAX_AGE_S", "0.1")
    monkeypatch.setenv("DELAYBRIDGE_RETRY__MAX_ATTEMPTS", "1")
    request.getfixturevalue("worker")
    caller.schedule(no_stream, b"x", delay=0, id="a")
    until(lambda: caller.stats().dead_dropped == 1, "it is dropped")
    assert caller.get("a") is None
    assert "1 dropped" in run("stats").out


def test_workers_keep_no_more_dead_messages_than_the_limit(
    caller: Client,
    no_stream: str,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DELAYBRIDGE_DEAD__MAX_MESSAGES", "20")  # and 16 buckets
    monkeypatch.setenv("DELAYBRIDGE_RETRY__MAX_ATTEMPTS", "1")
    request.getfixturevalue("worker")
    caller.schedule_many(Message(no_stream, b"", delay=0, key=str(n)) for n in range(100))

    def counts() -> tuple[int, int]:
        found = caller.stats()
        return found.dead, found.dead_dropped

    until(lambda: sum(counts()) == 100, "all are buried")
    until(lambda: counts() == (20, 80), "those above the bound are dropped")
    log = tmp_path / "log"
    until(lambda: "dead_dropped n=" in log.read_text(), "and that is logged")
