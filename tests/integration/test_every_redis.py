"""Every command, on one Redis, behind Sentinels and on a Cluster."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import click
import pytest

from delaybridge import Client
from delaybridge.ingest.entries import Quarantine
from delaybridge.ingest.storing import store_entries
from delaybridge.message import Record, encode_record
from delaybridge.operate.cli import root
from tests.rigs.command_line import Run
from tests.rigs.crew import PATIENT_PROCESS
from tests.rigs.fleet import Fleet, FleetFactory
from tests.rigs.waiting import DEADLINE_S, until
from tests.servers.redis import ON_EVERY_REDIS

pytestmark = ON_EVERY_REDIS
HOUR = ("--in", "1h")
TO = "file:orders"
DEFINITIONS = {"delaybridge": 1, "destinations": {}, "recurring": []}
BEFORE = (datetime.now(UTC) - timedelta(minutes=3)).strftime("%Y-%m-%dT%H:%M:00Z")

# What each command prints; each ends with exit code 0.
CALLS: list[tuple[str, str]] = [
    (f"schedule {TO} one --in 1h --id one", "one  due"),
    (f"schedule {TO} two --in 1h --id two", "two  due"),
    ("message ls", "one"),
    ("message show one", "delayed"),
    ("message reschedule one --in 2h", "one  rescheduled"),
    ("message touch one --ttl 3h", "one  replaced"),
    ("message reschedule --destination file:orders --in 3h --yes", "2"),
    ("message cancel two", "two  cancelled"),
    ("message publish-now one", "one  rescheduled"),
    ("dead ls", "lost-1"),
    ("dead ls --by-reason", "ingress"),
    ("dead show lost-1", "ingress:no_route"),
    ("dead kick lost-1 lost-2", "lost-2  kicked"),
    ("dead discard lost-3", "lost-3  discarded"),
    ("dead discard --destination file:orders --yes", "6"),
    ("destination pause file:held --new", "paused"),
    ("schedule file:held x --in 1h --id held", "held  due"),
    ("destination ls", "file:held"),
    ("destination show file:held", "paused"),
    ("destination resume file:held", "ok"),
    (f"destination limit {TO} --rate 100/s --new", "100/s"),
    (f"destination spread {TO} 1s", "spread=1s"),
    (f"destination retry {TO} --max-attempts 3", "3"),
    ("destination purge file:held --confirm file:held", "1"),
    ("definitions export", "spread_ms"),
    ("definitions import -", ""),
    (f"recurring add beat {TO} b --every 1s", "beat"),
    (f"recurring add later {TO} b --cron 0_9_*_*_MON", "later"),
    ("recurring ls", "beat"),
    ("recurring preview later", "09:00"),
    ("recurring show beat", TO),
    ("recurring run later", "later"),
    ("recurring pause beat", "beat"),
    ("recurring resume beat", "beat"),
    (f"recurring backfill beat --from {BEFORE}", ""),
    ("recurring rm later", "later"),
    ("recurring rm beat", "beat"),
    ("stats", "published"),
    ("horizon", "0"),
    ("worker ls", "w2"),
    ("bucket ls", "w1"),
    ("bucket resize", "none is being moved"),
    ("health --max-overdue 1h", "ok"),
    ("doctor", "scripts run"),
    ("alarm show", ""),
    ("alarm clear", ""),
    ("scripts load", ""),
    ("config show", "[redis]"),
    ("config check", "ok"),
    ("worker reconnect file", "asked w"),
    ("worker drain w2", "drained w2"),
]
ELSEWHERE = {  # what runs until it is stopped, or asks no Redis
    "scan": "here, by the fleet",
    "front": "test_front_*.py",
    "plugin convert": "asks no Redis",
    "serve": "test_http_*.py",
    "serve token new": "unit/test_web_tokens.py",
    "tail": "runs first",
    "top": "test_top.py",
    "ingest rabbitmq": "test_ingest_rabbitmq.py",
    "ingest kafka": "test_ingest_kafka.py",
    "demo": "acceptance/test_demo.py",
    "completion": "asks no Redis",
    "message export": "test_carry.py",
    "message import": "test_carry.py",
    "message redirect": "test_redirect.py",
    "dead redirect": "test_redirect.py",
    "size": "asks no Redis",
    "ledger upgrade": "asks no Redis",
    "ledger restore": "test_ledger.py",
    "ledger purge": "test_ledger.py",
    "outbox run": "test_outbox.py",
    "outbox create-table": "asks no Redis",
    "outbox ls": "asks no Redis",
}


@pytest.fixture
def fleet(fleet_of: FleetFactory) -> Fleet:
    fleet = fleet_of(ttl_ms=60_000)
    for name in ("w1", "w2"):
        fleet.start(name, settled=False)
    fleet.wait_shared("w1", "w2")
    return fleet


def all_commands() -> set[str]:
    """Every command that is no group, in words."""

    def below(command: click.Command, context: click.Context, words: str) -> Iterator[str]:
        if not isinstance(command, click.Group):
            yield words
            return
        for name in command.list_commands(context):
            _, found, _ = command.resolve_command(context, [name])
            assert found is not None
            yield from below(found, click.Context(found, parent=context), f"{words} {name}".strip())

    return set(below(root, click.Context(root), ""))


def give_up(client: Client, count: int) -> None:
    for number in range(count):
        payload = encode_record(Record(destination=TO, body=b"x"))
        entry = Quarantine.with_own_id(
            f"lost-{number}", b"%04d" % number, payload, "ingress:no_route"
        )
        client.run(lambda calls, entry=entry: store_entries(calls, [entry]))


@pytest.mark.slow_with("single")
@pytest.mark.usefixtures("stall")  # a Redis that is silent for seconds is lost to `tail`
def test_every_command_works(
    run: Run, fleet: Fleet, redis_url: str, namespace: str, flags: list[str], tmp_path: Path
) -> None:
    tail_hears_all_workers(fleet, redis_url, namespace, tmp_path)
    give_up(fleet.client, 9)
    flags += ["--broker", "file=memory://"]
    done, wrong = set[str](), list[str]()
    for line, shown in CALLS:
        words = [word.replace("_", " ") if "*" in word else word for word in line.split()]
        result = run(*words, stdin=json.dumps(DEFINITIONS).encode())
        if result.code or shown not in result.out + result.err:
            wrong.append(f"{line}: {result.code} {result.out}{result.err}")
        done |= {" ".join(words[:count]) for count in (1, 2)}
    assert wrong == []
    assert all_commands() <= done | ELSEWHERE.keys()
    fleet.wait_published(["one", "lost-1~1", "lost-2~1"])


def tail_hears_all_workers(fleet: Fleet, redis_url: str, namespace: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "delaybridge", "--redis", redis_url, "--namespace", namespace]
    log, patient = tmp_path / "tail", PATIENT_PROCESS | os.environ
    with (
        log.open("wb") as out,
        subprocess.Popen([*command, "tail"], stdout=out, env=patient) as tail,
    ):

        def heard() -> bool:
            fleet.schedule(16, seconds=0.1)
            text = log.read_text()
            return "w1" in text and "w2" in text and "published" in text

        try:
            until(heard, lambda: log.read_text(), interval_s=0.5)
        finally:
            tail.send_signal(signal.SIGINT)
        assert tail.wait(DEADLINE_S) == 0
    assert "redis_lost" not in log.read_text()
