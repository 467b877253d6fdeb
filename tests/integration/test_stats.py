"""`delaybridge stats`: rates, repeated, by destination, bucket, worker; what is missing and why."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from delaybridge import Client, Message, cli
from delaybridge.store import keys, registry
from delaybridge.store.store import Store
from tests.rigs.crew import Crew
from tests.rigs.waiting import until, until_async
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
def reporting(store: Store, namespace: str) -> Reporting:
    return Reporting(store, namespace, "w1")


@pytest.fixture
def filled(redis_url: str, namespace: str) -> Iterator[Client]:
    with Client(redis_url, namespace=namespace) as client:
        client.schedule_many([Message("kafka:orders", b"x", delay=HOUR) for _ in range(7)])
        yield client


@pytest.fixture
def command(redis_url: str, namespace: str) -> list[str]:
    return ["--redis", redis_url, "--namespace", namespace, "stats"]


def printed(capsys: pytest.CaptureFixture[str], *args: str) -> str:
    assert cli.main([*args]) == 0
    return capsys.readouterr().out


def cells(text: str, word: str) -> list[str]:
    """The line that begins with this word, cut into words."""
    return next(line for line in text.splitlines() if line.startswith(word)).split()


def test_rates_and_lateness_are_shown(
    filled: Client, reporting: Reporting, command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    for second in (11, 10, 3, 2, 1, 0):
        reporting.report(before_s=second)
    out = printed(capsys, *command)
    assert max(map(len, out.splitlines())) <= 80
    assert cells(out, "delayed") == ["delayed", "7"]
    assert cells(out, "RATE/s") == ["RATE/s", "1s", "1m", "15m"]
    # 5 or 6 samples of 120 in 11 or 12 seconds; in the last whole second one.
    name, second_, minute, _ = cells(out, "published")
    assert (name, second_) == ("published", "120")
    assert 50 <= int(minute) <= 66
    assert cells(out, "1m")[:4] == ["1m", "2.0ms", "7.9ms", "8.0ms"]
    assert "the first report is" in out
    assert "not in rates" not in out
    (data,) = [json.loads(line) for line in printed(capsys, "--json", *command).splitlines()]
    assert data["rates"]["1s"]["per_s"]["published"] == 120
    assert data["rates"]["15m"]["lateness"]["max_ms"] == 8
    assert (data["not_in_rates"], data["rates_missing"]) == ({}, None)


def test_nothing_is_made_up_where_nobody_reported(
    filled: Client, command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    out = printed(capsys, *command)
    assert "RATE/s" not in out
    (data,) = [json.loads(line) for line in printed(capsys, "--json", *command).splitlines()]
    assert data["rates"] == {"1s": None, "1m": None, "15m": None}


def test_a_second_in_which_nobody_reported_has_no_rate(
    filled: Client, reporting: Reporting, command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    reporting.report(before_s=30)
    out = printed(capsys, *command)
    assert cells(out, "published")[1] == "-"
    assert cells(out, "published")[2] != "-"


def test_workers_that_do_not_report_are_named_with_the_reason(
    filled: Client,
    reporting: Reporting,
    store: Store,
    namespace: str,
    command: list[str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    for second in (2, 1, 0):
        reporting.report(before_s=second)
    Reporting(store, namespace, "old")
    Reporting(store, namespace, "full").announce(failing={"series": "redis: full"})
    assert printed(capsys, *command).count("not in rates  ") == 2
    (data,) = [json.loads(line) for line in printed(capsys, "--json", *command).splitlines()]
    assert data["not_in_rates"] == {"full": "redis: full", "old": ""}


def test_by_destination_counts_and_rates_stand_side_by_side(
    filled: Client, reporting: Reporting, command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    reporting.report(before_s=1)
    out = printed(capsys, *command, "--by", "destination")
    assert max(map(len, out.splitlines())) <= 80
    name, delayed, *others = cells(out, "kafka:orders")
    assert (name, delayed, others[:3]) == ("kafka:orders", "7", ["0", "0", "0"])
    assert others[3] not in ("0", "-")
    assert cells(out, "kafka:gone")[1:5] == ["0"] * 4
    rows = printed(capsys, "--json", *command, "--by", "destination").splitlines()
    found = {row["destination"]: row for row in map(json.loads, rows)}
    assert found["kafka:orders"]["delayed"] == 7
    assert found["kafka:orders"]["delayed_error"] == 0
    assert found["kafka:gone"]["per_s"]["published"] > 0


def test_by_bucket_and_by_worker(
    filled: Client, reporting: Reporting, command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert len(printed(capsys, *command, "--by", "bucket").splitlines()) == 17
    out = printed(capsys, *command, "--by", "worker")
    assert cells(out, "w1")[:3] == ["w1", "0", "0"]
    assert cells(out, "none")[:3] == ["none", "16", "7"]
    rows = [
        json.loads(line)
        for line in printed(capsys, "--json", *command, "--by", "worker").splitlines()
    ]
    assert {row["worker"]: row["delayed"] for row in rows} == {"w1": 0, None: 7}


def test_the_wrong_type_by_hand_says_what_is_missing_and_why(
    filled: Client,
    store: Store,
    namespace: str,
    command: list[str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    name = keys.series(namespace)
    store.redis.set(name, "by hand")
    out = printed(capsys, *command)
    assert f"damaged   {name} is not a hash" in out
    assert f"rates     none: redis: {name} has a wrong type" in out
    (data,) = [json.loads(line) for line in printed(capsys, "--json", *command).splitlines()]
    assert name in data["rates_missing"]
    store.redis.delete(name)


@pytest.mark.parametrize("ending", ["Ctrl-C", "closed stdout"])
@pytest.mark.parametrize("flags", [(), ("--json",)], ids=["text", "json"])
def test_an_interval_repeats_until_the_end(
    filled: Client, command: list[str], ending: str, flags: tuple[str, ...]
) -> None:
    program = [sys.executable, "-m", "delaybridge", *flags, *command, "-i", "100ms"]
    with subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        blocks = 0
        while blocks < 3:
            blocks += process.stdout.readline().startswith((b"delayed", b'{"now_ms"'))
        if ending == "Ctrl-C":
            process.send_signal(signal.SIGINT)
        else:
            process.stdout.close()
        assert process.wait(10) == 0
        assert process.stderr.read() == b""


def test_an_interval_goes_on_when_redis_comes_back(namespace: str) -> None:
    with RedisServer() as server:
        program = [
            *(sys.executable, "-m", "delaybridge", "--json", "--redis", server.url),
            *("--namespace", namespace, "stats", "-i", "100ms"),
        ]
        environment = {"DELAYBRIDGE_REDIS__TIMEOUT_S": "0.4"}
        with subprocess.Popen(
            program, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment
        ) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            assert b"now_ms" in process.stdout.readline()
            server.kill()
            assert b"store_unavailable" in process.stderr.readline()
            server.start()
            until(lambda: b"now_ms" in process.stdout.readline())
            process.send_signal(signal.SIGINT)
            assert process.wait(10) == 0


async def test_workers_go_on_while_the_series_cannot_be_written_and_say_why(
    crew: Crew, arrived: Any
) -> None:
    name = keys.series(crew.namespace)
    crew.start("w1")
    await crew.shared("w1")
    store = Store(crew.url)
    store.redis.delete(name)
    store.redis.set(name, "by hand")

    async def told() -> bool:
        stats = await crew.client.stats()
        return "wrong type" in str(stats.workers[0].failing.get("series"))

    await until_async(told, "the worker announces it")
    await arrived.all(await crew.schedule(50, seconds=0.2))
    store.redis.delete(name)

    async def mended() -> bool:
        recent = await crew.client.rates()
        published = recent.rates[1].per_s.get("published", 0) * recent.rates[1].covered_s
        return not recent.missing and round(published) == 50

    await until_async(mended, "what was counted meanwhile is recorded")
    store.close()
