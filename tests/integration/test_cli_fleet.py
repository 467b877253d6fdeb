"""`delaybridge scan`, and what shows the fleet: stats, buckets, lists that fit the terminal."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len

from delaybridge import Client
from delaybridge.store.namespace import registry
from delaybridge.store.protocol import keys
from delaybridge.store.redis.store import Store
from tests.rigs.bucket import Owner
from tests.rigs.burials import bury
from tests.rigs.command_line import Run, spawn, started
from tests.rigs.waiting import DEADLINE_S, until

HOUR = ("--in", "1h")
COMMANDS = ("delaybridge ", "rabbitmqadmin ", "redis-cli ")  # they are not broken
OwnerOf = Callable[[str], Owner]


def test_stats_and_buckets(run: Run, owner_of: OwnerOf) -> None:
    run("schedule", "rabbitmq:/q", "x", *HOUR, "--id", "a")
    (data,) = run("--json", "stats").objects
    assert (data["delayed"], data["buckets_unowned"], data["workers"]) == (1, 16, 0)
    owner_of("a")
    owned = [each for each in run("--json", "bucket", "ls").objects if each["owner"]]
    assert [(each["owner"], each["delayed"]) for each in owned] == [("test", 1)]
    assert run("bucket", "ls").out.count("none") == 15
    sick = run("--json", "health")
    assert (sick.code, len(sick.objects[0]["unowned"])) == (1, 15)


@pytest.fixture
def crowded(caller: Client, store: Store, namespace: str, owner_of: OwnerOf) -> str:
    """A namespace where everything is long: ids, names, destinations, reasons. A message's id."""
    place, long = "rabbitmq:orders.events.production/close.order.now", "北京" * 20
    for id in ("dead", "later"):
        caller.schedule(place, b"", delay=900, id=f"{id}-{long}", headers={"shop": long})
    bury(owner_of(f"dead-{long}"), f"dead-{long}", f"unroutable: {long}")
    counts: dict[str, Any] = {"total": 10**9, "quarantined": 10**6, "lag": 10**6, "rate": 1e5}
    about: dict[str, Any] = {
        "host": "web-1.eu-west-1.compute.internal", "pid": 1234567, "version": "0.1.0",
        "started_ms": 1, "brokers": {"rabbitmq": f"unreachable: {long}"}, "parked": {place: long},
        "sources": [{"source": f"{place}.delay", "target": place, "state": long, **counts}],
        "listen": long, "nodes": {long: long}, "refused": {long: long}, "open": 10**6,
    }  # fmt: skip
    announcement = (namespace, f"worker-{long}", "0" * 16, 60_000, json.dumps(about).encode())
    store.run([registry.announce(*announcement, kind=kind) for kind in registry.KINDS])
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
    too_long = [line.strip() for line in lines if cell_len(line) > columns]
    assert [each for each in too_long if not each.startswith(COMMANDS)] == []
    assert any(shows in line for line in lines)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: False, raising=False)
    assert words != "message ls" or crowded in run("message", "ls").out


@pytest.fixture
def worker_flags(flags: list[str]) -> list[str]:
    """An unreachable broker is enough for a worker to start."""
    return [*flags, "--broker", "amqp://127.0.0.1:1"]


def test_scan_burst_with_nothing_due(worker_flags: list[str]) -> None:
    burst = spawn(*worker_flags, "scan", "--burst")
    assert burst.code == 0 and "(Ctrl-C drains, twice aborts)" in burst.err


def test_scan_burst_publishes_the_due_messages(run: Run, flags: list[str], caller: Client) -> None:
    memory = ("--broker", "memory://")
    for delay in ("0s", "1ms", "1h"):
        assert run(*memory, "schedule", "memory:x", "body", "--in", delay).code == 0
    assert spawn(*flags, *memory, "scan", "--burst").code == 0
    left = caller.stats()
    assert (left.delayed, left.in_flight, left.dead) == (1, 0, 0)


def test_every_line_of_a_worker_s_json_log_names_its_event(
    worker_flags: list[str], tmp_path: Path
) -> None:
    log = tmp_path / "log"
    logged: Callable[[str], bool] = lambda event: f'"event": "{event}"' in log.read_text()  # noqa: E731
    flags = ["--json", *worker_flags, "--broker", "memory://"]
    with log.open("wb") as stderr, started(*flags, "scan", stderr=stderr) as process:
        until(lambda: logged("lease_acquired") and logged("broker_unavailable"))
        process.send_signal(signal.SIGHUP)
        until(lambda: logged("reloaded"))
        process.send_signal(signal.SIGTERM)
        assert process.wait(DEADLINE_S) == 0
    events = [json.loads(line) for line in log.read_text().splitlines()]
    assert all("event" in each for each in events)
    (lost,) = [each for each in events if each["event"] == "broker_unavailable"]
    assert lost["name"] == "rabbitmq"
    assert lost["reason"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("processes", ["1", "2"])
@pytest.mark.slow_with("2-2", "1-15")
def test_scan_drains(
    run: Run, flags: list[str], caller: Client, number: int, processes: str
) -> None:
    arguments = ("--broker", "memory://", "scan", "--processes", processes, "--name", "w")
    with started(*flags, *arguments, stderr=subprocess.DEVNULL) as process:
        until(lambda: len(caller.stats().workers) == int(processes))
        until(lambda: run("health").code == 0)
        until(lambda: len(run("--json", "worker", "ls").objects) == int(processes))
        process.send_signal(number)
        assert process.wait(DEADLINE_S) == 0
    assert caller.stats().workers == []
    if processes == "1":
        assert not any(each.owner for each in caller.stats().buckets)


def test_two_workers_of_one_name(
    worker_flags: list[str], caller: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The second waits as long as the first one's announcement lasts, which must not run out.
    for name, value in {
        "LEASE__TTL_MS": 5000,
        "LEASE__RENEW_MS": 300,
        "REDIS__TIMEOUT_S": 4,
    }.items():
        monkeypatch.setenv(f"DELAYBRIDGE_{name}", str(value))
    scan = (*worker_flags, "--json", "scan", "--name", "twin")
    with started(*scan, stderr=subprocess.DEVNULL) as first:
        until(lambda: len(caller.stats().workers) == 1)
        second = spawn(*scan)
    assert (second.code, second.error["field"]) == (4, "--name")
    assert f"pid {first.pid}" in second.error["message"]
