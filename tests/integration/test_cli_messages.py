"""`delaybridge schedule`, `message` and `dead` on a real Redis: one message, several, lists."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from delaybridge import Client
from delaybridge.ingest.entries import Quarantine
from delaybridge.ingest.storing import store_entries
from delaybridge.message import Record, encode_record
from delaybridge.store import registry
from delaybridge.store.store import Store
from tests.rigs.bucket import Owner
from tests.rigs.burials import bury, hand_over
from tests.rigs.command_line import Run

HOUR = ("--in", "1h")
START = "2035-01-01T00:00:00Z"
HOSTILE = "\x1b[31mred\u202e"
OwnerOf = Callable[[str], Owner]


@pytest.fixture
def client(redis_url: str, namespace: str) -> Iterator[Client]:
    """A client in the same namespace."""
    with Client(redis_url, namespace=namespace) as client:
        yield client


def test_schedule_show_reschedule_cancel(run: Run, client: Client) -> None:
    made = run(
        *("schedule", "kafka:orders", '{"order":42}', "--at", START, "--id", "order 42"),
        *("-k", "42", "-H", "a=1", "-H", "a=2", "--priority", "9", "--ttl", "1m"),
        *("-P", "partition=3", "--at-most-once"),
    )
    assert (made.code, made.out[:17]) == (0, "order 42  due 203")
    stored = client.get("order 42")
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


def test_bodies_are_bytes(run: Run, client: Client) -> None:
    body = bytes(range(256))
    (made,) = run("--json", "schedule", "rabbitmq:/q", "-", *HOUR, stdin=body).objects
    stored = client.get(made["id"])
    assert stored is not None
    assert stored.body == body
    (shown,) = run("--json", "message", "show", made["id"]).objects
    assert "body" not in shown
    assert shown["body_base64"]
    assert run("schedule", "rabbitmq:/q", "", *HOUR).code == 0
    largest = b"x" * 262_144
    assert run("schedule", "rabbitmq:/q", "-", *HOUR, stdin=largest).code == 0
    assert run("schedule", "rabbitmq:/q", "-", *HOUR, stdin=largest + b"x").code == 2


def test_an_id_that_is_already_pending_is_a_duplicate_or_a_conflict(
    run: Run, client: Client
) -> None:
    same = ("schedule", "rabbitmq:/q", "x", *HOUR, "--id", "a")
    other = ("schedule", "rabbitmq:/q", "y", *HOUR, "--id", "a")
    assert run(*same).code == 0
    duplicate = run(*same)
    assert (duplicate.code, duplicate.out.split()[-1]) == (0, "duplicate")
    conflict = run("--json", *other)
    assert (conflict.code, conflict.error["code"]) == (4, "conflict")
    assert run(*other, "--on-conflict", "keep").out.split()[-1] == "duplicate"
    assert run(*other, "--on-conflict", "replace").out.split()[-1] == "replaced"
    stored = client.get("a")
    assert stored is not None
    assert stored.body == b"y"


@pytest.mark.parametrize("bad", ["'); redis.call('FLUSHALL') --", "../../etc", "{x}", "S|x", "é€"])
def test_ids_are_text(run: Run, bad: str) -> None:
    run("schedule", "rabbitmq:/q", "x", *HOUR, "--id", bad)
    assert run("message", "cancel", "--", bad).out == f"{bad}  cancelled\n"


def test_a_message_in_flight_is_too_late_to_change(run: Run, owner_of: OwnerOf) -> None:
    run("schedule", "rabbitmq:/q", "x", *HOUR, "--id", "a")
    hand_over(owner_of("a"), "a")
    for command in (("cancel", "a"), ("reschedule", "a", *HOUR), ("publish-now", "a")):
        late = run("--json", "message", *command)
        assert (late.code, late.out) == (4, "")
        assert (late.error["code"], late.error["field"]) == ("in_flight", "a")
    (shown,) = run("--json", "message", "ls", "--state", "in_flight").objects
    assert shown["fired"] is True


def test_verbs_take_several_ids(run: Run) -> None:
    for id in ("a", "b", "c"):
        run("schedule", "rabbitmq:/q", "x", *HOUR, "--id", id)
    partly = run("message", "cancel", "--yes", "a", "zz", "a")
    assert partly.code == 6
    assert partly.out == "a  cancelled\nzz  unknown\n"
    assert run("message", "cancel", "--yes", "zz", "yy").code == 3
    assert run("message", "reschedule", "b", "c", *HOUR).code == 0
    assert run("--json", "message", "cancel", "--yes", "b", "c").objects == [
        {"id": "b", "answer": "cancelled"},
        {"id": "c", "answer": "cancelled"},
    ]


def test_pages_hold_every_message_once_and_in_order(run: Run, client: Client) -> None:
    ids = [f"{'x y' if i % 2 else 'é'}-{i}" for i in range(25)]
    for number, id in enumerate(ids):
        client.schedule("rabbitmq:/q", b"", delay=3600 + number // 3, id=id, priority=number % 3)
    found: list[dict[str, Any]] = []
    cursor: list[str] = []
    for _ in range(10):
        page = run("--json", "message", "ls", "--limit", "4", *cursor)
        found += page.objects
        if not page.err:
            break
        cursor = ["--cursor", json.loads(page.err)["next"]["cursor"]]
    assert sorted(item["id"] for item in found) == sorted(ids)
    assert [item["due_ms"] for item in found] == sorted(item["due_ms"] for item in found)
    assert "next: --cursor" in run("message", "ls", "--limit", "4").out


def test_filters(run: Run) -> None:
    run("schedule", "rabbitmq:/q", "x", "--at", "2030-01-01T00:00:00Z", "--id", "early")
    run("schedule", "kafka:t", "x", "--at", "2031-01-01T00:00:00Z", "--id", "late")

    def ids(*args: str) -> list[str]:
        return [item["id"] for item in run("--json", "message", "ls", *args).objects]

    assert ids() == ["early", "late"]
    assert ids("--destination", "kafka:t") == ["late"]
    assert ids("--due-from", "2030-06-01T00:00:00Z") == ["late"]
    assert ids("--due-to", "2030-06-01T00:00:00Z") == ["early"]
    assert ids("--state", "dead") == []


def test_the_dead_set(run: Run, owner_of: OwnerOf) -> None:
    for id, reason in (("a", "unroutable: 312 NO_ROUTE"), ("b", "unroutable: x"), ("c", HOSTILE)):
        run("schedule", "rabbitmq:/q", "x", *HOUR, "--id", id)
        bury(owner_of(id), id, reason)
    assert "\x1b" not in run("dead", "ls").out
    (first, *_) = run("--json", "dead", "ls", "--by-reason").objects
    assert (first["reason"], first["count"]) == ("unroutable", 2)
    assert run("--json", "message", "show", "a").objects[0]["state"] == "dead"
    blocked = run("--json", "message", "reschedule", "a", *HOUR)
    assert (blocked.code, blocked.error["code"]) == (4, "dead")
    assert run("dead", "kick", "a").out == "a  kicked\n"
    assert run("dead", "kick", "a").code == 3
    assert run("dead", "show", "a").code == 3
    assert run("dead", "discard", "b").out == "b  discarded\n"
    assert run("dead", "discard", "b").code == 3


def test_a_quarantined_message_is_found_by_its_own_id(run: Run, client: Client) -> None:
    payload = encode_record(Record("rabbitmq:/q", b"theirs"))
    one = Quarantine.of("a", b"1234", payload, f"ingress:foreign {HOSTILE}")
    two = replace(one.elsewhere(), stamp=b"5678", reason="ingress:bad_time x-delay: soon")
    client.run(lambda calls: store_entries(calls, [one, two]))
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


def test_hostile_content_is_escaped(run: Run) -> None:
    run("schedule", "kafka:t", HOSTILE, *HOUR, "-H", f"h={HOSTILE}", "-k", HOSTILE, "--id", "a")
    for command in (("message", "ls"), ("message", "show", "a")):
        for flag in ((), ("--json",)):
            shown = run(*flag, *command)
            assert shown.code == 0
            assert "\x1b" not in shown.out
            assert "\u202e" not in shown.out


def test_no_temporary_files_and_no_leftovers(run: Run, tmp_path: Path) -> None:
    run("schedule", "rabbitmq:/q", "x", *HOUR)
    assert os.listdir(tmp_path) == []


def test_an_id_is_not_cut_in_a_narrow_terminal(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    run("schedule", "rabbitmq:/q", "x", "--in", "1h", "--id", "a-rather-long-id-that-is-not-cut")
    assert "a-rather-long-id-that-is-not-cut" in run("message", "ls").out
