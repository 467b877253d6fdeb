"""`delaybridge stats`: rates, repeated, by destination, bucket, worker; what is missing and why."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from delaybridge import Client, Message
from delaybridge.store.namespace import registry
from delaybridge.store.protocol import keys
from delaybridge.store.redis.store import Store
from tests.rigs.command_line import Run
from tests.rigs.crew import PATIENT_PROCESS
from tests.rigs.waiting import DEADLINE_S, until
from tests.servers.redis import RedisServer

HOUR = "1h"
COUNTS = {"published": 120, "retried": 6, "late_1": 90, "late_3": 30}
PLACES = {"kafka:orders": {"published": 100, "retried": 6}, "kafka:gone": {"published": 20}}


class Reporting:
    """A worker, as far as the store sees it: announced, and reporting samples."""

    def __init__(self, store: Store, namespace: str, name: str) -> None:
        self.store, self.namespace, self.name = store, namespace, name
        self._number = 0
        self.announce()

    def announce(self, **about: Any) -> None:
        info = json.dumps({"host": "h", "pid": 1, **about}).encode()
        self.store.run(
            [registry.announce(self.namespace, self.name, f"{self.name}00", 60_000, info)]
        )

    def report(self, *, before_s: int = 0, late_ms: int = 8) -> None:
        """A sample, as if that many seconds ago."""
        self._number += 1
        sample = msgspec.msgpack.encode([COUNTS, PLACES, late_ms, []])
        (now_us,) = self.store.run([registry.store_time()])
        now_ms = now_us // 1000 - before_s * 1000
        who = self.namespace, self.name, f"{self.name}00"
        self.store.run([registry.record(*who, self._number, sample, now_ms=now_ms)])


@pytest.fixture
def reporting(store: Store, namespace: str, monkeypatch: pytest.MonkeyPatch) -> Reporting:
    """Redis' clock stands still: no second may end between two reports, or before a look."""
    (now_us,) = store.run([registry.store_time()])
    still = msgspec.structs.replace(registry.store_time(), parse=lambda _: now_us)
    monkeypatch.setattr(registry, "store_time", lambda near="": still)
    return Reporting(store, namespace, "w1")


@pytest.fixture
def filled(redis_url: str, namespace: str) -> Iterator[Client]:
    with Client(redis_url, namespace=namespace) as client:
        client.schedule_many([Message("kafka:orders", b"x", delay=HOUR) for _ in range(7)])
        yield client


def printed(run: Run, *options: str) -> str:
    shown = run("stats", *options)
    assert shown.code == 0
    return shown.out


def in_json(run: Run, *options: str) -> list[dict[str, Any]]:
    return run("--json", "stats", *options).objects


def cells(text: str, word: str) -> list[str]:
    """The line that begins with this word, cut into words."""
    return next(line for line in text.splitlines() if line.startswith(word)).split()


def test_rates_and_lateness_are_shown(filled: Client, reporting: Reporting, run: Run) -> None:
    for second in (11, 10, 3, 2, 1, 0):
        reporting.report(before_s=second)
    out = printed(run)
    assert max(map(len, out.splitlines())) <= 80
    assert cells(out, "delayed") == ["delayed", "7"]
    assert cells(out, "RATE/s") == ["RATE/s", "1s", "1m", "15m"]
    # 5 samples of 120 in 11 seconds; in the last whole second one.
    assert cells(out, "published")[:3] == ["published", "120", "55"]
    assert cells(out, "1m")[:4] == ["1m", "2.0ms", "7.9ms", "8.0ms"]
    assert "the first report is" in out
    assert "not in rates" not in out
    (data,) = in_json(run)
    assert data["rates"]["1s"]["per_s"]["published"] == 120
    assert data["rates"]["15m"]["lateness"]["max_ms"] == 8
    assert (data["not_in_rates"], data["rates_missing"]) == ({}, None)


def test_nothing_is_made_up_where_nobody_reported(filled: Client, run: Run) -> None:
    out = printed(run)
    assert "RATE/s" not in out
    (data,) = in_json(run)
    assert data["rates"] == {"1s": None, "1m": None, "15m": None}


def test_a_second_in_which_nobody_reported_has_no_rate(
    filled: Client, reporting: Reporting, run: Run
) -> None:
    reporting.report(before_s=30)
    out = printed(run)
    assert cells(out, "published")[1] == "-"
    assert cells(out, "published")[2] != "-"


def test_workers_that_do_not_report_are_named_with_the_reason(
    filled: Client, reporting: Reporting, store: Store, namespace: str, run: Run
) -> None:
    for second in (2, 1, 0):
        reporting.report(before_s=second)
    Reporting(store, namespace, "old")
    Reporting(store, namespace, "full").announce(failing={"series": "redis: full"})
    assert printed(run).count("not in rates  ") == 2
    (data,) = in_json(run)
    assert data["not_in_rates"] == {"full": "redis: full", "old": ""}


def test_by_destination_counts_and_rates_stand_side_by_side(
    filled: Client, reporting: Reporting, run: Run
) -> None:
    reporting.report(before_s=1)
    out = printed(run, "--by", "destination")
    assert max(map(len, out.splitlines())) <= 80
    name, delayed, *others = cells(out, "kafka:orders")
    assert (name, delayed, others[:3]) == ("kafka:orders", "7", ["0", "0", "0"])
    assert others[3] not in ("0", "-")
    assert cells(out, "kafka:gone")[1:5] == ["0"] * 4
    found = {row["destination"]: row for row in in_json(run, "--by", "destination")}
    assert found["kafka:orders"]["delayed"] == 7
    assert found["kafka:orders"]["delayed_error"] == 0
    assert found["kafka:gone"]["per_s"]["published"] > 0


def test_by_bucket_and_by_worker(filled: Client, reporting: Reporting, run: Run) -> None:
    assert len(printed(run, "--by", "bucket").splitlines()) == 17
    out = printed(run, "--by", "worker")
    assert cells(out, "w1")[:3] == ["w1", "0", "0"]
    assert cells(out, "none")[:3] == ["none", "16", "7"]
    rows = in_json(run, "--by", "worker")
    assert {row["worker"]: row["delayed"] for row in rows} == {"w1": 0, None: 7}


def test_the_wrong_type_by_hand_says_what_is_missing_and_why(
    filled: Client, store: Store, namespace: str, run: Run
) -> None:
    name = keys.series(namespace)
    store.redis.set(name, "by hand")
    out = printed(run)
    assert f"damaged   {name} is not a hash" in out
    assert f"rates     none: redis: {name} has a wrong type" in out
    (data,) = in_json(run)
    assert name in data["rates_missing"]
    store.redis.delete(name)


@pytest.mark.parametrize("ending", ["Ctrl-C", "closed stdout"])
@pytest.mark.parametrize("form", [(), ("--json",)], ids=["text", "json"])
def test_an_interval_repeats_until_the_end(
    filled: Client, flags: list[str], ending: str, form: tuple[str, ...]
) -> None:
    program = [sys.executable, "-m", "delaybridge", *flags, *form, "stats", "-i", "100ms"]
    environment = os.environ | PATIENT_PROCESS
    with subprocess.Popen(
        program, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        blocks = 0
        while blocks < 3:
            assert (line := process.stdout.readline())
            blocks += line.startswith((b"delayed", b'{"now_ms"'))
        if ending == "Ctrl-C":
            process.send_signal(signal.SIGINT)
        else:
            process.stdout.close()
        assert process.wait(DEADLINE_S) == 0
        assert process.stderr.read() == b""


def test_an_interval_goes_on_when_redis_comes_back(namespace: str) -> None:
    with RedisServer() as server:
        program = [
            *(sys.executable, "-m", "delaybridge", "--json", "--redis", server.url),
            *("--namespace", namespace, "stats", "-i", "100ms"),
        ]
        environment = {"DELAYBRIDGE_REDIS__TIMEOUT_S": "0.4"}

        def begun() -> subprocess.Popen[bytes] | None:
            """It ends at once where a stalled Redis misses the short time-out the first time."""
            process = subprocess.Popen(
                program, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment
            )
            if process.stdout and b"now_ms" in process.stdout.readline():
                return process
            process.communicate()
            return None

        with until(begun, "the first look") as process:
            assert process.stdout is not None
            assert process.stderr is not None
            server.kill()
            assert b"store_unavailable" in process.stderr.readline()
            server.start()
            until(lambda: b"now_ms" in process.stdout.readline())
            process.send_signal(signal.SIGINT)
            assert process.wait(DEADLINE_S) == 0
