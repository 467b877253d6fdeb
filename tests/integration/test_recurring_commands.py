"""`delaybridge recurring` and `client.recurring`: what each says, and how it fails."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import redis

from delaybridge import Client, MessageConflict, MessageError, StoreFull
from delaybridge.errors import StoreUnavailable
from delaybridge.store.calls import Calls
from delaybridge.store.protocol import keys
from tests.rigs.command_line import Run, runner
from tests.rigs.flavours import Maker
from tests.rigs.timetable import make_runs
from tests.servers.clock import ClockedRedis
from tests.servers.redis import RedisServer

CRON = ("--cron", "0 9 * * MON-FRI")


@pytest.fixture
def flags(redis_url: str, namespace: str) -> list[str]:
    return ["--redis", redis_url, "--namespace", namespace, "--broker", "kafka://localhost"]


def test_a_definition_is_added_listed_shown_and_removed(run: Run) -> None:
    added = run("recurring", "add", "report", "kafka:t", '{"d": "${due}"}', *CRON)
    assert (added.code, added.out[:22]) == (0, "report  created  next ")
    assert run("recurring", "add", "report", "kafka:t", '{"d": "${due}"}', *CRON).code == 0
    other = run("--json", "recurring", "add", "report", "kafka:t", "other", *CRON)
    assert (other.code, other.error["code"], other.error["field"]) == (4, "conflict", "name")
    assert "replaced" in run("recurring", "add", "report", "kafka:t", "o", *CRON, "--replace").out
    (listed,) = run("recurring", "ls", "--json").objects
    assert listed["definition"]["cron"] == CRON[1]
    assert listed["state"] == "active"
    assert CRON[1] in run("recurring", "ls").out
    assert "kafka:t" in run("recurring", "show", "report").out
    assert run("recurring", "rm", "report").code == 0
    assert run("recurring", "rm", "report").code == 3
    assert run("recurring", "rm", "report", "--idempotently").code == 0


def test_a_preview_needs_no_redis(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = runner(["--redis", "redis://127.0.0.1:1"], capsys, monkeypatch)
    shown = run("recurring", "preview", "*/15 9-17 * * MON-FRI")
    assert shown.out.count(":") >= 5 and shown.out.rstrip().endswith("UTC")
    many = run("recurring", "preview", "--every", "1s", "-n", "3", "--json").objects[0]
    assert len(many["runs"]) == 3
    refused = run("--json", "recurring", "preview", "--every", "1h", "--tz", "Z" * 3000)
    assert (refused.code, refused.error["code"], refused.error["field"]) == (2, "bad_tz", "tz")
    assert len(refused.error["message"]) < 200


def test_times_to_wait_are_told_by_the_clock_of_redis(
    clocked_redis: ClockedRedis,
    namespace: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clocked_redis.set_clock(-1_800_000)
    flags = ["--redis", clocked_redis.url, "--namespace", namespace, "--broker", "kafka://h"]
    run = runner(flags, capsys, monkeypatch)
    start = ("--start", "2035-01-01T00:00:00Z")
    added = run("--json", "recurring", "add", "n", "kafka:t", "x", "--every", "1h", *start)
    assert added.objects[0]["next"] == ["2035-01-01T00:00:00+00:00"]
    scheduled = run("schedule", "kafka:t", "x", "--in", "1h", "--id", "m").out
    assert re.search(r"  in (1h|59m\d+s)\b", scheduled)
    for words in (("message", "ls"), ("message", "show", "m")):
        assert re.search(r"  in (1h|59m\d+s)\b", run(*words).out)
    run("recurring", "add", "often", "kafka:t", "x", "--every", "1s")
    for words in (("recurring", "ls"), ("recurring", "show", "often")):
        # Beside a burning neighbour it may be late already; by another clock it would be minutes.
        assert re.search(r"  (in )?\d+(\.\d)?m?s( ago)?\b", run(*words).out)


def test_a_definition_with_a_plan_is_kept_shown_and_exported(run: Run, caller: Client) -> None:
    plan = ("--max-attempts", "3", "--backoff", "10s", "--dead-letter", "kafka:dead")
    once = ("recurring", "add", "n", "kafka:t", "x", "--every", "1h", *plan)
    assert "created" in run(*once).out
    assert "duplicate" in run(*once).out
    receipt = caller.recurring.run("n")
    assert receipt is not None
    stored = caller.get(receipt.id)
    assert stored is not None and stored.retry is not None
    assert (stored.retry.max_attempts, stored.retry.base_ms) == (3, 10_000)
    document = run("definitions", "export").out
    assert run("recurring", "rm", "n").code == 0
    run("definitions", "import", "-", stdin=document.encode())
    assert "duplicate" in run(*once).out


def test_pausing_running_and_backfilling_say_what_they_did(run: Run) -> None:
    run("recurring", "add", "n", "kafka:t", "x", "--every", "1h")
    assert run("recurring", "preview", "n").out.startswith("Every 1h\n")
    assert run("recurring", "pause", "n").out.startswith("n  paused")
    assert run("recurring", "show", "n", "--json").objects[0]["state"] == "paused"
    assert re.match(r"n@[-0-9T:.Z]+/run-[0-9a-f]{8}  due ", run("recurring", "run", "n").out)
    now = datetime.now(UTC)  # it ends here: until the next call another run may fall due
    begin, end = (f"{at:%Y-%m-%dT%H:%M:%SZ}" for at in (now - timedelta(hours=3), now))
    for made, known in ((3, 0), (0, 3)):
        filled = run("--json", "recurring", "backfill", "n", "--from", begin, "--to", end)
        (done,) = filled.objects
        assert (done["made"], done["known"]) == (made, known)
    long_ago = f"{datetime.now(UTC) - timedelta(days=600):%Y-%m-%dT00:00:00Z}"
    many = run("recurring", "backfill", "n", "--from", long_ago)
    until = f"{datetime.fromisoformat(long_ago) + timedelta(hours=10_000):%Y-%m-%dT%H:%M:%SZ}"
    assert (many.code, until in many.err) == (2, True)
    assert run("recurring", "resume", "n").out.startswith("n  resumed")
    for verb in ("pause", "resume", "run", "show", "preview"):
        assert run("recurring", verb, "nobody").code == 3


def test_what_fails_is_listed_and_doctor_names_it(
    run: Run, caller: Client, raw: redis.Redis, namespace: str
) -> None:
    caller.recurring.add("sound", "kafka:t", "x", every="1h")
    raw.hset(keys.recurring(namespace), "broken", b"{")
    listed = run("recurring", "ls")
    assert listed.code == 0
    assert "broken: not JSON" in listed.err
    assert "definition broken fails: not JSON" in run("doctor").out
    assert "definition broken fails: not JSON" in run("--json", "health").objects[0]["notes"][-1]
    assert run("recurring", "rm", "broken").code == 0


def test_stats_names_a_definition_that_fails_and_missed_runs(
    run: Run, caller: Client, namespace: str, redis_url: str
) -> None:
    run("recurring", "add", "report", "kafka:t", "x", *CRON)
    assert "recurring" not in run("stats").out
    (data,) = run("stats", "--json").objects
    assert data["recurring"] == {"definitions": 1, "failing": {}, "missed": 0}
    with redis.Redis.from_url(redis_url) as server:
        state = json.dumps({"missed": 1200})
        server.hset(keys.recurring_state(namespace), "report", state)
        server.hset(keys.recurring(namespace), "broken", "{}")
        (data,) = run("stats", "--json").objects
        assert [*data["recurring"]["failing"]] == ["broken"]
        assert (data["recurring"]["definitions"], data["recurring"]["missed"]) == (2, 1200)
        server.delete(keys.recurring(namespace))
        server.set(keys.recurring(namespace), "no hash")
        (data,) = run("stats", "--json").objects
        assert data["recurring"] is None and "recurring" in str(data["damaged"])


@pytest.mark.parametrize("key", [keys.recurring, keys.recurring_due, keys.recurring_state])
@pytest.mark.slow_with("*0", "*2")
def test_doctor_and_stats_name_a_damaged_key_and_go_on(
    run: Run, caller: Client, raw: redis.Redis, namespace: str, key: Callable[[str], str]
) -> None:
    caller.recurring.add("sound", "kafka:t", "x", every="1h")
    raw.set(key(namespace), "by hand")
    for command in ("stats", "health"):
        assert f"{key(namespace)} is not a " in run(command).out
    checked = run("doctor").out
    assert f"{key(namespace)} is not a " in checked
    assert "broker kafka: unreachable" in checked
    assert "Check the version" not in checked
    for command in ("ls", "rm sound", "add other kafka:t x --every 1h"):
        failed = run("recurring", *command.split())
        assert failed.code in (0, 5) and failed.err.count("\n") <= 1
        if failed.code:
            assert key(namespace) in failed.err
            assert "redis-cli RENAME" in failed.err or "delaybridge doctor" in failed.err


def test_health_and_stats_say_that_no_worker_makes_recurring_messages(
    run: Run, caller: Client, raw: redis.Redis, namespace: str
) -> None:
    caller.recurring.add("sound", "kafka:t", "x", every="1h")
    assert caller.stats().recurring_late_ms == 0
    due = keys.recurring_due(namespace)
    raw.zadd(due, {"sound": raw.zscore(due, "sound") - 60_000})
    assert caller.stats().recurring_late_ms >= 60_000
    assert any("recurring" in each for each in run("--json", "health").objects[0]["faults"])
    for score in (float("-inf"), float("inf")):  # by hand: looked at soon, or mended
        raw.zadd(due, {"sound": score})
        assert caller.stats().recurring_late_ms == 0


def test_a_run_is_reported_though_the_answer_that_it_is_written_was_lost(caller: Client) -> None:
    caller.recurring.add("beat", "memory:q", "x", every="1h")
    lost: list[bool] = []

    def losing(calls: Calls) -> Any:
        steps, replies = make_runs(calls), None
        while True:
            try:
                asked = steps.send(replies)
            except StopIteration as ended:
                return ended.value
            replies = yield asked  # it is executed
            if any(command.name == "define" for command in asked) and not lost:
                lost.append(True)
                replies = [StoreUnavailable("redis: no answer")] * len(replies)

    (made,) = caller.run(losing)
    assert lost and made.name == "beat" and len(made.due_ms) == 1 and not made.error
    assert caller.run(lambda calls: make_runs(calls)) == []


def test_definitions_are_paused_and_removed_while_redis_is_full() -> None:
    with (
        RedisServer() as server,
        Client(server.url, buckets=1) as caller,
        redis.Redis.from_url(server.url) as raw,
    ):
        recurring = caller.recurring
        for name in ("paused", "resumed", "removed"):
            recurring.add(name, "memory:q", "x", every="1h", paused=name == "resumed")
        assert caller.run(lambda calls: make_runs(calls))
        raw.config_set("maxmemory", 1)
        assert recurring.pause("paused") and recurring.remove("removed")
        assert {each.name: each.state for each in recurring.list()} == {
            "paused": "paused",
            "resumed": "paused",
        }
        assert caller.stats().delayed == 0
        with pytest.raises(StoreFull, match="resumed has begun"):
            recurring.resume("resumed")
        raw.config_set("maxmemory", 0)
        assert recurring.resume("resumed")
        assert recurring.get("resumed").state == "active"  # type: ignore[union-attr]


def test_bytes_are_kept(run: Run, caller: Client) -> None:
    body = b"\xff\x00${name}"
    caller.recurring.add("n", "kafka:t", body, every="1h")
    receipt = caller.recurring.run("n")
    assert receipt is not None
    stored = caller.get(receipt.id)
    assert stored is not None and stored.body == b"\xff\x00n"
    assert os.fsencode(json.dumps(run("recurring", "ls", "--json").objects[0])) is not None


async def test_both_clients_have_the_same_calls(
    make: Maker, redis_url: str, namespace: str
) -> None:
    recurring = make(redis_url, namespace=namespace).client.recurring

    async def answer(given: object) -> object:
        return await given if hasattr(given, "__await__") else given  # type: ignore[misc]

    add = {"cron": "0 * * * *", "tz": "Asia/Tokyo", "headers": {"a": "${due}"}, "priority": 3}
    assert await answer(recurring.add("n", "kafka:t", b"x", **add)) == "created"
    assert await answer(recurring.add("n", "kafka:t", b"x", **add)) == "duplicate"
    with pytest.raises(MessageConflict):
        await answer(recurring.add("n", "kafka:t", b"y", **add))
    assert [one.name for one in await answer(recurring.list())] == ["n"]  # type: ignore[attr-defined]
    assert (await answer(recurring.get("n"))).definition.priority == 3  # type: ignore[attr-defined]
    assert await answer(recurring.pause("n")) is True
    assert await answer(recurring.resume("n")) is True
    assert (await answer(recurring.run("n"))).startswith("created")  # type: ignore[attr-defined]
    start = datetime.now(UTC) - timedelta(hours=3)
    assert (await answer(recurring.backfill("n", start))).made == 3  # type: ignore[attr-defined]
    with pytest.raises(MessageError, match="start"):
        await answer(recurring.backfill("n", None))
    assert len(recurring.preview("0 0 * * *").times) == 5
    assert await answer(recurring.remove("n")) is True
    for call in (recurring.pause, recurring.resume, recurring.remove):
        assert await answer(call("n")) is False
    assert await answer(recurring.run("n")) is None
    with pytest.raises(TypeError):
        await answer(recurring.add("n", "kafka:t", b"x", cronn="* * * * *"))
