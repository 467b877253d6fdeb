"""The command line on a real Redis: what each command does, and how it fails."""

from __future__ import annotations

import http.server
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import redis
from msgspec.structs import replace
from rich.cells import cell_len

from delaybridge import Client, Message, cli
from delaybridge.ingest.entries import Quarantine
from delaybridge.ingest.storing import store_entries
from delaybridge.message import Record, encode_record, new_id
from delaybridge.store import keys, record, registry
from delaybridge.store.calls import Calls
from delaybridge.store.command import Steps
from delaybridge.store.store import Store
from delaybridge.store.verbs import Bucket, Item
from tests.rigs.command_line import Result, Run
from tests.rigs.waiting import DEADLINE_S, until
from tests.servers.redis import RedisServer

CANARY = "S3CR3T-CANARY-99"
HOUR = ("--in", "1h")
HOSTILE = "\x1b[31mred\u202e"


@pytest.fixture
def client(redis_url: str, namespace: str) -> Iterator[Client]:
    """A client in the same namespace."""
    with Client(redis_url, namespace=namespace) as client:
        yield client


class Owner:
    """A worker's session on the bucket of one id, without the worker."""

    def __init__(self, client: Client, namespace: str, id: str) -> None:
        self.client = client
        birth = self.ask(registry.read_birth(namespace))
        self.bucket = Bucket(namespace, keys.bucket_of(id.encode(), birth[0]), birth[1])
        held = self.ask(self.bucket.acquire("test:1", 60_000))
        self.token, self.last_claim, self.id = held.token, held.turn, id

    def ask(self, command: Any) -> Any:
        """One reply."""

        def call(_: Calls) -> Steps[Any]:
            (reply,) = yield [command]
            return reply

        return self.client.run(call)

    def fire(self) -> Item:
        """Claim the message and hand it over."""
        claimed = self.ask(
            self.bucket.claim(
                self.token, 60_000, self.last_claim, ahead_ms=86_400_000, limit=10, max_bytes=2**20
            )
        )
        self.last_claim = claimed.number
        at = claimed.ids.index(self.id.encode())
        item = Item(self.id, self.last_claim, record.split_record(claimed.records[at])[0])
        self.ask(self.bucket.fire(self.token, 60_000, item.score, self.last_claim, 0))
        return item

    def bury(self, reason: str) -> None:
        """Claim, fire, and give up."""
        item = self.fire()
        self.ask(self.bucket.bury(self.token, 60_000, [(item, True, False, reason)]))


# a message's life


def test_schedule_show_reschedule_cancel(run: Run, client: Client) -> None:
    made = run(
        *("schedule", "kafka:orders", '{"order":42}', "--in", "15m", "--id", "order 42"),
        *("-k", "42", "-H", "a=1", "-H", "a=2", "--priority", "9", "--ttl", "1m"),
        *("-P", "partition=3", "--at-most-once"),
    )
    assert (made.code, made.err) == (0, "warning: no worker runs; start one: delaybridge scan\n")
    assert made.out.startswith("order 42  due 20")
    assert "  in 15m  bucket " in made.out or "  in 14m59s  bucket " in made.out

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
    gone = run("message", "cancel", "order 42")
    assert (gone.code, gone.err) == (3, "error: order 42: no such message is pending\n")


def test_a_message_may_have_its_own_retry_plan(run: Run) -> None:
    plan = ("--max-attempts", "3", "--backoff", "10s", "--dead-letter", "kafka:failed")
    assert run("schedule", "kafka:orders", "x", *HOUR, "--id", "a", *plan).code == 0
    expected = {"max_attempts": 3, "base_ms": 10_000, "dead_letter": "kafka:failed"}
    assert run("--json", "message", "show", "a").objects[0]["retry"] == expected
    text = "retry        max_attempts=3 base_ms=10000 dead_letter=kafka:failed\n"
    assert text in run("message", "show", "a").out
    again = run("--json", "schedule", "kafka:orders", "x", *HOUR, "--id", "a", *plan)
    assert again.objects[0]["answer"] == "duplicate"
    assert run("schedule", "kafka:orders", "x", *HOUR, "--id", "a").code == 4
    for wrong in (("--max-attempts", "0"), ("--backoff", "25h"), ("--dead-letter", "kafka:orders")):
        refused = run("schedule", "kafka:orders", "x", *HOUR, *wrong)
        assert refused.code == 2
        assert refused.err.startswith(f"error: {wrong[0]}: ")


def test_schedule_in_json(run: Run) -> None:
    (made,) = run("--json", "schedule", "rabbitmq:/q", "x", *HOUR).objects
    assert made["answer"] == "created"
    assert made["due"].endswith("Z")
    assert abs(made["due_ms"] - wall_ms() - 3_600_000) < 30_000
    (shown,) = run("--json", "message", "show", made["id"]).objects
    assert shown["body"] == "x"
    assert shown["state"] == "delayed"


def wall_ms() -> float:
    """This host's clock."""
    import time

    return time.time() * 1000


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
    conflict = run(*other)
    assert conflict.code == 4
    assert "--on-conflict replace" in conflict.err
    assert json.loads(run("--json", *other).err)["error"]["code"] == "conflict"
    assert run(*other, "--on-conflict", "keep").out.split()[-1] == "duplicate"
    assert run(*other, "--on-conflict", "replace").out.split()[-1] == "replaced"
    stored = client.get("a")
    assert stored is not None
    assert stored.body == b"y"


@pytest.mark.parametrize("bad", ["'); redis.call('FLUSHALL') --", "../../etc", "{x}", "S|x", "é€"])
def test_ids_are_text(run: Run, bad: str) -> None:
    run("schedule", "rabbitmq:/q", "x", *HOUR, "--id", bad)
    assert run("message", "cancel", "--", bad).out == f"{bad}  cancelled\n"


def test_a_message_in_flight_is_too_late_to_change(
    run: Run, client: Client, namespace: str
) -> None:
    run("schedule", "rabbitmq:/q", "x", *HOUR, "--id", "a")
    Owner(client, namespace, "a").fire()
    for command in (("cancel", "a"), ("reschedule", "a", *HOUR), ("publish-now", "a")):
        late = run("message", *command)
        assert (late.code, late.out) == (4, "")
        assert late.err == "error: a: too late: it is handed to the broker\n"
    assert json.loads(run("--json", "message", "cancel", "a").err)["error"]["code"] == "in_flight"
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


# by filter


def summary(result: Result) -> dict[str, int]:
    """The counts that --json prints on stderr."""
    found: dict[str, int] = json.loads(result.err.splitlines()[-1])["summary"]
    return found


def test_matches_of_a_filter_are_counted_confirmed_and_changed(
    run: Run, client: Client, namespace: str
) -> None:
    # Given 9 mistaken messages, one of them handed to the broker, and one that is right
    client.schedule_many(Message("kafka:bad", b"", delay=60, id=f"m{n}") for n in range(9))
    client.schedule("kafka:good", b"", delay=60, id="good")
    Owner(client, namespace, "m4").fire()
    bad = ("message", "cancel", "--destination", "kafka:bad")
    # When it is only counted or not confirmed, then nothing is done
    counted = run("--json", *bad, "--dry-run")
    assert counted.objects[0]["matched"] == 9
    assert counted.objects[0]["in_flight"] >= 1
    refused = run(*bad)
    assert (refused.code, refused.out) == (2, "")
    assert refused.err.startswith("error: --yes: missing; needed to cancel 9 messages (")
    # When it is done, then each message has its own answer, and the counts are right
    done = run("--json", *bad, "--yes")
    assert done.code == 6
    answers = {each["id"]: each["answer"] for each in done.objects}
    assert answers == {f"m{n}": "cancelled" for n in range(9)} | {"m4": "in_flight"}
    assert summary(done) == {"matched": 9, "cancelled": 8, "in_flight": 1}
    assert client.get("good") is not None
    left = run(*bad, "--state", "delayed", "--yes")
    assert (left.code, left.out, left.err) == (0, "", "no message matches\n")


def test_messages_moved_by_filter_can_be_spread_over_time(run: Run, client: Client) -> None:
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
    assert run("message", "publish-now", "m050", "m051", "--over", "20m").code == 0
    stored = client.get("m051")
    assert stored is not None
    assert abs(stored.due_ms - wall_ms() - 600_000) < 30_000


def test_dead_messages_and_whole_destinations_are_changed_by_filter(
    run: Run, client: Client, namespace: str
) -> None:
    for id in ("a", "b", "c"):
        run("schedule", "rabbitmq:/q", "x", *HOUR, "--id", id)
        Owner(client, namespace, id).bury(f"{'unroutable' if id != 'c' else 'refused'}: by a test")
    assert run("dead", "kick", "--id-prefix", "zz", "--yes").err == "no message matches\n"
    kicked = run("dead", "kick", "--reason", "unroutable", "--over", "10m", "--yes")
    assert (kicked.code, kicked.err) == (0, "2 kicked\n")
    run("schedule", "rabbitmq:/other", "x", *HOUR, "--id", "d")
    missing = run("destination", "purge", "rabbitmq:/q")
    assert (missing.code, missing.out) == (2, "")
    assert missing.err.startswith("error: --confirm rabbitmq:/q: missing; needed to purge 3 ")
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


# lists


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
    text = run("message", "ls", "--limit", "4")
    assert text.out.splitlines()[-1].startswith("next: --cursor '") or "next: --cursor" in text.out


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
    nothing = run("message", "ls", "--state", "parked")
    assert (nothing.out, nothing.err) == ("", "no parked messages\n")
    part = run("message", "ls", "--destination", "rabbitmq:orders")
    assert part.err.startswith("no delayed messages; --destination: 'orders' has no slash: ")
    none = run("message", "ls", "--destination", "rabbitmq:/nobody")
    assert none.err == "no delayed messages; those due within seconds have --state in_flight\n"


def test_limit_is_capped(run: Run) -> None:
    assert "capped to 500" in run("message", "ls", "--limit", "1000000000").err


def test_the_dead_set(run: Run, client: Client, namespace: str) -> None:
    for id, reason in (("a", "unroutable: 312 NO_ROUTE"), ("b", "unroutable: x"), ("c", HOSTILE)):
        run("schedule", "rabbitmq:/q", "x", *HOUR, "--id", id)
        owner = Owner(client, namespace, id)
        owner.bury(reason)
        owner.ask(owner.bucket.release(owner.token))
    listed = run("dead", "ls")
    assert "unroutable: 312 NO_ROUTE" in listed.out
    assert "\x1b" not in listed.out
    (first, *_) = run("--json", "dead", "ls", "--by-reason").objects
    assert (first["reason"], first["count"]) == ("unroutable", 2)
    assert "dead since" in run("dead", "show", "a").out
    assert run("message", "show", "a").code == 0
    blocked = run("message", "reschedule", "a", *HOUR)
    assert (blocked.code, "delaybridge dead kick" in blocked.err) == (4, True)
    assert run("dead", "kick", "a").out == "a  kicked\n"
    assert run("dead", "kick", "a").code == 3
    assert run("dead", "show", "a").err == "error: a: not in the dead set; it is delayed\n"
    assert run("dead", "discard", "b").out == "b  discarded\n"
    assert run("dead", "discard", "b").code == 3
    assert run("dead", "show", "b").err == "error: b: not in the dead set\n"


def test_a_quarantined_message_is_found_by_its_own_id(run: Run, client: Client) -> None:
    payload = encode_record(Record("rabbitmq:/q", b"theirs"))
    one = Quarantine.of("a", b"1234", payload, f"ingress:foreign {HOSTILE}")
    two = replace(one.elsewhere(), stamp=b"5678", reason="ingress:bad_time x-delay: soon")
    client.run(lambda calls: store_entries(calls, [one, two]))
    assert "ingress:foreign" in run("message", "show", "a").out
    run("schedule", "rabbitmq:/q", "mine", *HOUR, "--id", "a")
    shown = run("message", "show", "a")
    assert shown.out.startswith("id           a\n")
    assert "also in the dead set: a~1: ingress:foreign" in shown.err
    assert "also in the dead set: a~2: ingress:bad_time" in shown.err
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


# --lines


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
    stopped = run("schedule", "kafka:t", *HOUR, "--lines", stdin=data)
    assert stopped.code == 6
    assert "error: line 2: longer than 262144 bytes" in stopped.err
    assert "1 scheduled, 1 refused, 1 lines not read" in stopped.err
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


@contextmanager
def start(flags: list[str], *args: str, **options: Any) -> Iterator[subprocess.Popen[bytes]]:
    """A command line in a process of its own, which does not outlive the test."""
    command = [sys.executable, "-m", "delaybridge", *flags, *args]
    with subprocess.Popen(command, **options) as process:
        try:
            yield process
        finally:
            process.kill()


def test_lines_that_trickle_in_are_not_held_back(flags: list[str], client: Client) -> None:
    pipe = subprocess.PIPE
    with start(flags, "schedule", "kafka:t", *HOUR, "--lines", stdin=pipe, stdout=pipe) as process:
        assert process.stdin is not None
        process.stdin.write(b"first\nsec")
        process.stdin.flush()
        until(lambda: client.stats().delayed == 1)
        process.stdin.write(b"ond\n")
        process.stdin.close()
        until(lambda: client.stats().delayed == 2)
        assert process.wait(10) == 0


def test_lines_interrupted(flags: list[str], client: Client) -> None:
    pipe = subprocess.PIPE
    streams = {"stdin": pipe, "stdout": pipe, "stderr": pipe}
    with start(flags, "schedule", "kafka:t", *HOUR, "--lines", **streams) as process:
        assert process.stdin is not None
        assert process.stderr is not None
        process.stdin.write(b"first\n")
        process.stdin.flush()
        until(lambda: client.stats().delayed == 1)
        process.send_signal(signal.SIGINT)
        assert process.wait(10) == 130
        assert process.stderr.read() == b"error: interrupted\n1 scheduled\n"


# the fleet


def test_stats_and_buckets(run: Run, client: Client, namespace: str) -> None:
    run("schedule", "rabbitmq:/q", "x", *HOUR, "--id", "a")
    counted = run("stats")
    assert counted.out.splitlines()[1].split() == ["delayed", "1"]
    assert "buckets   0/16 owned" in counted.out
    (data,) = run("--json", "stats").objects
    assert (data["delayed"], data["buckets_unowned"], data["workers"]) == (1, 16, 0)
    Owner(client, namespace, "a")
    owned = [each for each in run("--json", "bucket", "ls").objects if each["owner"]]
    assert [(each["owner"], each["delayed"]) for each in owned] == [("test", 1)]
    assert run("bucket", "ls").out.count("none") == 15
    assert run("worker", "ls").err == "no worker runs; start one: delaybridge scan\n"
    sick = run("health")
    assert (sick.code, sick.out) == (1, "FAIL  15 of 16 buckets have no worker\n")


@pytest.fixture
def crowded(client: Client, store: Store, namespace: str) -> str:
    """A namespace where everything is long: ids, names, destinations, reasons. A message's id."""
    place, long = "rabbitmq:orders.events.production/close.order.now", "北京" * 20
    for id in ("dead", "later"):
        client.schedule(place, b"", delay=900, id=f"{id}-{long}", headers={"shop": long})
    Owner(client, namespace, f"dead-{long}").bury(f"unroutable: {long}")
    counts: dict[str, Any] = {"total": 10**9, "quarantined": 10**6, "lag": 10**6, "rate": 1e5}
    about: dict[str, Any] = {
        "host": "web-1.eu-west-1.compute.internal", "pid": 1234567, "version": "0.1.0",
        "started_ms": 1, "brokers": {"rabbitmq": f"unreachable: {long}"}, "parked": {place: long},
        "sources": [{"source": f"{place}.delay", "target": place, "state": long, **counts}],
    }  # fmt: skip
    announcement = (namespace, f"worker-{long}", "0" * 16, 60_000, json.dumps(about).encode())
    store.run([registry.announce(*announcement), registry.announce(*announcement, ingests=True)])
    failing = {b"x\0": f"1\n{place}\nunroutable: {long}".encode(), b"x": b"1:0:"}
    store.redis.hset(keys.bucket_key(namespace, 0, "attempts"), mapping=failing)
    return f"later-{long}"


@pytest.mark.parametrize(
    ("words", "shows"),
    [
        ("message ls", "in 15m"),
        ("message ls --state dead", "unroutable:"),
        ("dead ls", "unroutable:"),
        ("dead ls --by-reason", "unroutable"),
        ("worker ls", "QUARANTINED"),
        ("bucket ls", "in 15m"),
        ("stats", "RETRYING"),
        ("health", "unroutable:"),
        ("doctor", "unroutable:"),
    ],
)
@pytest.mark.parametrize("columns", [50, 80])
def test_every_list_fits_the_terminal(
    run: Run, crowded: str, monkeypatch: pytest.MonkeyPatch, words: str, shows: str, columns: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    lines = run(*words.split()).out.splitlines()
    assert [line for line in lines if cell_len(line) > columns] == []
    assert any(shows in line for line in lines)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: False, raising=False)
    assert words != "message ls" or crowded in run("message", "ls").out


@pytest.fixture
def worker_flags(flags: list[str]) -> list[str]:
    """An unreachable broker is enough for a worker to start."""
    return [*flags, "--broker", "amqp://127.0.0.1:1"]


def test_scan_burst_with_nothing_due(worker_flags: list[str]) -> None:
    with start(worker_flags, "scan", "--burst", stderr=subprocess.PIPE) as process:
        assert process.wait(20) == 0
        assert process.stderr is not None
        printed = process.stderr.read().decode()
    assert "(Ctrl-C drains, twice aborts)" in printed


def test_scan_burst_publishes_the_due_messages(run: Run, flags: list[str], client: Client) -> None:
    memory = ("--broker", "memory://")
    for delay in ("0s", "1ms", "1h"):
        assert run(*memory, "schedule", "memory:x", "body", "--in", delay).code == 0
    with start([*flags, *memory], "scan", "--burst", stderr=subprocess.DEVNULL) as process:
        assert process.wait(20) == 0
    left = client.stats()
    assert (left.delayed, left.in_flight, left.dead) == (1, 0, 0)


def test_every_line_of_a_worker_s_json_log_names_its_event(
    worker_flags: list[str], tmp_path: Path
) -> None:
    log = tmp_path / "log"
    logged: Callable[[str], bool] = lambda event: f'"event": "{event}"' in log.read_text()  # noqa: E731
    flags = ["--json", *worker_flags, "--broker", "memory://"]
    with log.open("wb") as stderr, start(flags, "scan", stderr=stderr) as process:
        until(lambda: logged("lease_acquired"))
        process.send_signal(signal.SIGHUP)
        until(lambda: logged("reloaded"))
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
    events = [json.loads(line) for line in log.read_text().splitlines()]
    assert all("event" in each for each in events)
    (lost,) = [each for each in events if each["event"] == "broker_unavailable"]
    assert lost["name"] == "rabbitmq"
    assert lost["reason"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("processes", ["1", "2"])
def test_scan_drains(
    run: Run, worker_flags: list[str], client: Client, number: int, processes: str
) -> None:
    arguments = ("scan", "--processes", processes, "--name", "w")
    with start(worker_flags, *arguments, stderr=subprocess.DEVNULL) as process:
        until(lambda: len(client.stats().workers) == int(processes))
        until(lambda: run("health").code == 0)
        assert len(run("--json", "worker", "ls").objects) == int(processes)
        process.send_signal(number)
        assert process.wait(20) == 0
    assert client.stats().workers == []
    if processes == "1":
        assert not any(each.owner for each in client.stats().buckets)


def test_two_workers_of_one_name(
    worker_flags: list[str], client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DELAYBRIDGE_LEASE__TTL_MS", "2000")
    monkeypatch.setenv("DELAYBRIDGE_LEASE__RENEW_MS", "300")
    monkeypatch.setenv("DELAYBRIDGE_REDIS__TIMEOUT_S", "1")
    scan = ("scan", "--name", "twin")
    with start(worker_flags, *scan, stderr=subprocess.DEVNULL) as first:
        until(lambda: len(client.stats().workers) == 1)
        with start(worker_flags, *scan, stderr=subprocess.PIPE) as second:
            assert second.wait(20) == 4
            assert second.stderr is not None
            error = second.stderr.read().decode().splitlines()[-1]
        first.terminate()
        assert first.wait(20) == 0
    assert error.startswith("error: --name: twin is the name of a worker that runs on ")
    assert f"pid {first.pid}" in error


# doctor


def levels(result: Result) -> dict[str, list[str]]:
    """Level -> texts."""
    found: dict[str, list[str]] = {}
    for item in result.objects:
        found.setdefault(item["level"], []).append(f"{item['about']}: {item['text']}")
    return found


def test_doctor_on_every_redis(
    any_redis_url: str,
    namespace: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    flags = ["--json", "--redis", any_redis_url, "--namespace", namespace]
    code = cli.main([*flags, "doctor"])
    printed = levels(Result(code, *capsys.readouterr()))
    assert code == 0
    assert any("scripts run" in text for text in printed["ok"])
    assert any("is new" in text for text in printed["ok"])
    assert any("appendonly no" in text for text in printed["warn"])
    with redis.Redis.from_url(any_redis_url) as connection:
        assert [*connection.scan_iter(f"{{{namespace}*")] == []


def test_doctor_reports_missing_workers_and_unreachable_brokers(run: Run, client: Client) -> None:
    run("schedule", "rabbitmq:/q", "x", *HOUR, "--id", "a")
    lonely = run("--json", "doctor")
    assert lonely.code == 1
    (text,) = levels(lonely)["fail"]
    assert text.startswith("workers: 16 of 16 buckets have no worker. Start")
    broker = run("--json", "--broker", f"amqp://u:{CANARY}@127.0.0.1:1", "doctor")
    assert any(text.startswith("broker rabbitmq: ") for text in levels(broker)["fail"])
    assert CANARY not in broker.out + broker.err


def test_doctor_connects_to_the_brokers(run: Run) -> None:
    well = run("--json", "--broker", "memory://", "doctor")
    assert well.code == 0
    assert any(text.startswith("broker memory: ") for text in levels(well)["ok"])


def test_doctor_compares_the_limits_of_the_brokers_with_the_settings(
    run: Run, rabbitmq_url: str, real_kafka_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    narrow = ["--broker", f"{rabbitmq_url}?frame_max=8192", "--broker", real_kafka_url]
    assert [t for t in levels(run("--json", *narrow, "doctor"))["warn"] if "kafka" in t] == []
    monkeypatch.setenv("DELAYBRIDGE_LIMITS__BODY_BYTES", str(2 * 2**20))
    warnings = [
        text for text in levels(run("--json", *narrow, "doctor"))["warn"] if "broker" in text
    ]
    assert any("frame_max is 8,192 bytes" in text for text in warnings)
    assert any("records of up to 1,048,588 bytes" in text for text in warnings)


def test_another_bucket_count(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    run("schedule", "rabbitmq:/q", "x", *HOUR)
    monkeypatch.setenv("DELAYBRIDGE_BUCKETS", "8")
    refused = run("stats")
    assert refused.code == 2
    assert "set buckets = 16" in refused.err
    doctor = run("--json", "doctor")
    assert doctor.code == 1
    assert any("Set: buckets = 16" in text for text in levels(doctor)["fail"])


# a Redis that refuses


@pytest.fixture
def one_shot(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Callable[..., Result]:
    """Runs a command line against any URL, impatiently."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DELAYBRIDGE_REDIS__TIMEOUT_S", "1")

    def call(url: str, *args: str) -> Result:
        code = cli.main(["--redis", url, "--namespace", "x", *args])
        return Result(code, *capsys.readouterr())

    return call


def test_wrong_password(one_shot: Run) -> None:
    with RedisServer(["--requirepass", "right"]) as server:
        for secret in (f":{CANARY}@", ""):
            url = f"redis://{secret}127.0.0.1:{server.port}/0"
            for args in (("stats",), ("schedule", "kafka:t", "x", *HOUR), ("doctor",)):
                refused = one_shot(url, *args)
                assert refused.code == (1 if args == ("doctor",) else 5)
                assert "password" in refused.out + refused.err
                assert CANARY not in refused.out + refused.err
        right = f"redis://:right@127.0.0.1:{server.port}/0"
        assert one_shot(right, "stats").code == 0


@pytest.fixture(scope="module")
def guarded_port() -> Iterator[int]:
    """A Redis whose password must not be seen."""
    with RedisServer(["--requirepass", CANARY]) as server:
        yield server.port


@pytest.mark.parametrize(
    "command",
    [
        *("stats", "schedule kafka:t x --in 1h", "doctor", "config show --sources"),
        *("config check", "scan --burst", "worker ls", "health", "message show nothing"),
    ],
)
@pytest.mark.parametrize("options", ["", "-v --json"])
def test_no_secret_in_any_output(
    guarded_port: int, tmp_path: Path, command: str, options: str
) -> None:
    urls = {
        "DELAYBRIDGE_REDIS_URL": f"redis://:{CANARY}@127.0.0.1:{guarded_port}/0",
        "DELAYBRIDGE_BROKERS__RABBITMQ": f"amqp://u:{CANARY}@127.0.0.1:1/%2F",
        "DELAYBRIDGE_BROKERS__KAFKA": f"kafka://u:{CANARY}@127.0.0.1:1",
    }
    done = subprocess.run(
        [sys.executable, "-m", "delaybridge", *options.split(), *command.split()],
        env={**os.environ, **urls},
        cwd=tmp_path,
        capture_output=True,
        timeout=DEADLINE_S,
    )
    printed = done.stdout + done.stderr
    assert done.returncode in (0, 1, 3)
    assert CANARY.encode() not in printed
    assert b"Traceback" not in printed


def test_a_redis_that_would_evict(one_shot: Run) -> None:
    with RedisServer(["--maxmemory-policy", "allkeys-lru"]) as server:
        refused = one_shot(server.url, "schedule", "kafka:t", "x", *HOUR)
        assert refused.code == 5
        assert "maxmemory-policy noeviction" in refused.err
        doctor = one_shot(server.url, "--json", "doctor")
        assert doctor.code == 1
        assert any("allkeys-lru" in text for text in levels(doctor)["fail"])


def test_a_redis_that_is_full(one_shot: Run) -> None:
    with RedisServer() as server, redis.Redis.from_url(server.url) as connection:
        assert one_shot(server.url, "stats").code == 0
        connection.config_set("maxmemory", "1mb")
        full = one_shot(server.url, "schedule", "kafka:t", "x" * 100_000, *HOUR)
        assert full.code == 5
        assert "out of memory" in full.err
        connection.config_set("maxmemory", 1)
        failed = levels(one_shot(server.url, "--json", "doctor"))["fail"]
        assert [text for text in failed if text.endswith("Raise maxmemory")]


def test_not_a_redis(one_shot: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    handler = http.server.BaseHTTPRequestHandler
    monkeypatch.setattr(handler, "log_message", lambda *_: None)
    server = http.server.HTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        refused = one_shot(f"redis://127.0.0.1:{server.server_port}", "stats")
        assert refused.code == 5
        assert len(refused.err.splitlines()) == 1
    finally:
        server.shutdown()
        server.server_close()


# the way in and out


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


def test_a_narrow_terminal(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    run("schedule", "rabbitmq:/q", "x", *HOUR, "--id", "a-rather-long-id-that-is-not-cut")
    assert "a-rather-long-id-that-is-not-cut" in run("message", "ls").out


def test_no_temporary_files_and_no_leftovers(run: Run, tmp_path: Path) -> None:
    run("schedule", "rabbitmq:/q", "x", *HOUR)
    assert os.listdir(tmp_path) == []
