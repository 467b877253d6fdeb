"""`delaybridge schedule`, `message` and `dead` on a real Redis: one message, several, lists."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable

import pytest
from msgspec.structs import replace

from delaybridge import Client, Message
from delaybridge.ingest.entries import Quarantine
from delaybridge.ingest.storing import store_entries
from delaybridge.message import Record, encode_record
from delaybridge.store.namespace import registry
from delaybridge.store.redis.store import Store
from tests.rigs.bucket import Owner
from tests.rigs.burials import hand_over
from tests.rigs.command_line import Run

HOUR = ("--in", "1h")
SCHEDULE = "import sys; from delaybridge.operate.cli import main; main(); print(*sys.modules)"
# What one message needs none of. Each would make the command slower, on any machine.
NOT_IMPORTED = {"pydantic", "difflib", "rich", "zoneinfo", "sqlalchemy", "pika", "confluent_kafka"}
NOT_IMPORTED |= {f"delaybridge.{each}" for each in ("recurring", "ingest", "ledger", "publish")}
NOT_IMPORTED |= {"delaybridge.operate.views.stats", "delaybridge.worker", "delaybridge.scan"}
START = "2035-01-01T00:00:00Z"
HOSTILE = "\x1b[31mred\u202e"
OwnerOf = Callable[[str], Owner]


def test_schedule_show_reschedule_cancel(run: Run, caller: Client) -> None:
    made = run(
        *("schedule", "kafka:orders", '{"order":42}', "--at", START, "--id", "order 42"),
        *("-k", "42", "-H", "a=1", "-H", "a=2", "--priority", "9", "--ttl", "1m"),
        *("-P", "partition=3", "--at-most-once"),
    )
    assert (made.code, made.out[:17]) == (0, "order 42  due 203")
    stored = caller.get("order 42")
    assert stored is not None
    assert stored.body == b'{"order":42}'
    assert stored.headers == [("a", b"1"), ("a", b"2")]
    assert (stored.key, stored.priority, stored.ttl_ms) == (b"42", 9, 60_000)
    assert stored.properties == {"partition": 3}
    assert stored.at_most_once

    shown = run("message", "show", "order 42")
    assert shown.code == 0
    for words in ("state        delayed", "kafka:orders", "header       a=2", '{"order":42}'):
        assert words in shown.out

    again = run("message", "reschedule", "order 42", "--at", "2030-01-31T09:00:00.5Z")
    assert again.out == "order 42  rescheduled\n"
    (listed,) = run("--json", "message", "ls").objects
    assert listed["due"] == "2030-01-31T09:00:00.500Z"

    assert run("message", "publish-now", "order 42").out == "order 42  rescheduled\n"
    assert run("message", "cancel", "order 42", "-k", "43").code == 3
    assert run("message", "cancel", "order 42", "-k", "42").out == "order 42  cancelled\n"
    gone = run("--json", "message", "cancel", "order 42")
    assert (gone.code, gone.error["code"], gone.error["field"]) == (3, "unknown", "order 42")


def test_to_schedule_one_message_imports_little(redis_url: str, namespace: str) -> None:
    where = ("--redis", redis_url, "--namespace", namespace, "--broker", "memory://")
    done = subprocess.run(
        [sys.executable, "-c", SCHEDULE, *where, "schedule", "memory:a", "x", *HOUR],
        stdout=subprocess.PIPE, text=True, check=True,
    )  # fmt: skip
    scheduled, modules = done.stdout.splitlines()
    assert "in 1h" in scheduled
    assert NOT_IMPORTED & {*modules.split()} == set()


def test_a_message_may_have_its_own_retry_plan(run: Run) -> None:
    plan = ("--max-attempts", "3", "--backoff", "10s", "--dead-letter", "kafka:failed")
    assert run("schedule", "kafka:orders", "x", *HOUR, "--id", "a", *plan).code == 0
    expected = {"max_attempts": 3, "base_ms": 10_000, "dead_letter": "kafka:failed"}
    assert run("--json", "message", "show", "a").objects[0]["retry"] == expected
    again = run("--json", "schedule", "kafka:orders", "x", *HOUR, "--id", "a", *plan)
    assert again.objects[0]["answer"] == "duplicate"
    assert run("schedule", "kafka:orders", "x", *HOUR, "--id", "a").code == 4
    for wrong in (("--max-attempts", "0"), ("--backoff", "25h"), ("--dead-letter", "kafka:orders")):
        refused = run("--json", "schedule", "kafka:orders", "x", *HOUR, *wrong)
        assert (refused.code, refused.error["field"]) == (2, wrong[0])


def test_schedule_in_json(run: Run, store: Store) -> None:
    (before_us,) = store.run([registry.store_time()])
    (made,) = run("--json", "schedule", "rabbitmq:/q", "x", *HOUR).objects
    (after_us,) = store.run([registry.store_time()])
    assert made["answer"] == "created"
    assert made["due"].endswith("Z")
    assert before_us // 1000 <= made["due_ms"] - 3_600_000 <= after_us // 1000 + 1
    (shown,) = run("--json", "message", "show", made["id"]).objects
    assert shown["body"] == "x"
    assert shown["state"] == "delayed"


def test_bodies_are_bytes(run: Run, caller: Client) -> None:
    body = bytes(range(256))
    (made,) = run("--json", "schedule", "rabbitmq:/q", "-", *HOUR, stdin=body).objects
    stored = caller.get(made["id"])
    assert stored is not None
    assert stored.body == body
    (shown,) = run("--json", "message", "show", made["id"]).objects
    assert "body" not in shown
    assert shown["body_base64"]
    assert run("schedule", "rabbitmq:/q", "", *HOUR).code == 0
    largest = b"x" * 262_144
    assert run("schedule", "rabbitmq:/q", "-", *HOUR, stdin=largest).code == 0
    assert run("schedule", "rabbitmq:/q", "-", *HOUR, stdin=largest + b"x").code == 2


def test_a_message_in_flight_is_too_late_to_change(run: Run, owner_of: OwnerOf) -> None:
    run("schedule", "rabbitmq:/q", "x", *HOUR, "--id", "a")
    hand_over(owner_of("a"), "a")
    for command in (("cancel", "a"), ("reschedule", "a", *HOUR), ("publish-now", "a")):
        late = run("--json", "message", *command)
        assert (late.code, late.out) == (4, "")
        assert (late.error["code"], late.error["field"]) == ("in_flight", "a")
    (shown,) = run("--json", "message", "ls", "--state", "in_flight").objects
    assert shown["fired"] is True


def test_a_quarantined_message_is_found_by_its_own_id(run: Run, caller: Client) -> None:
    payload = encode_record(Record("rabbitmq:/q", b"theirs"))
    one = Quarantine.with_own_id("a", b"1234", payload, f"ingress:foreign {HOSTILE}")
    two = replace(one.elsewhere(), stamp=b"5678", reason="ingress:bad_time x-delay: soon")
    caller.run(lambda calls: store_entries(calls, [one, two]))
    assert "ingress:foreign" in run("message", "show", "a").out
    run("schedule", "rabbitmq:/q", "mine", *HOUR, "--id", "a")
    shown = run("message", "show", "a")
    assert shown.out.startswith("id           a\n")
    assert "a~1: ingress:foreign" in shown.err and "a~2: ingress:bad_time" in shown.err
    assert "\x1b" not in shown.err
    assert {item["id"] for item in run("--json", "dead", "ls").objects} == {"a~1", "a~2"}
    assert run("--json", "dead", "show", "a").objects[0]["id"] == "a~1"
    assert run("dead", "discard", "a~1").out == "a~1  discarded\n"
    assert run("dead", "kick", "a").out == "a  kicked\n"
    assert run("--json", "message", "show", "a~2").objects[0]["state"] == "delayed"
    assert run("dead", "kick", "a").code == 3


@pytest.mark.parametrize("verb", ["kick", "discard"])
def test_what_is_dead_and_elsewhere_may_live(run: Run, owner_of: OwnerOf, verb: str) -> None:
    run("schedule", "rabbitmq:/q", "x", *HOUR, "--id", "a")
    world = owner_of("a").world
    world.redis.zadd(world.key("dead"), {"a": 1})
    refused = run("--json", "dead", verb, "a")
    assert (refused.code, refused.error["code"], refused.error["field"]) == (4, "in_flight", "a")
    assert "may live" in refused.err


def test_a_list_goes_on_after_its_cursor(run: Run, caller: Client) -> None:
    caller.schedule_many(Message("kafka:t", b"", delay=60 + n, id=f"é {n}") for n in range(3))
    first = run("--json", "message", "ls", "--limit", "2")
    rest = run("--json", "message", "ls", "--cursor", json.loads(first.err)["next"]["cursor"])
    assert [each["id"] for each in first.objects + rest.objects] == ["é 0", "é 1", "é 2"]
    assert "next: --cursor" in run("message", "ls", "--limit", "2").out
