"""Metrics and health of real processes: on one port, while they and their servers come and go."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from prometheus_client.parser import text_string_to_metric_families

from delaybridge import Client, Message
from delaybridge.operate.metrics.catalog import METRICS, PREFIX
from delaybridge.operate.metrics.exposition import TEXT
from delaybridge.operate.metrics.reader import Reader
from tests.rigs.crew import CALM, SELDOM
from tests.rigs.fault_proxy import FaultProxy
from tests.rigs.fleet import Fleet, Process
from tests.rigs.ingest import Rabbit
from tests.rigs.waiting import DEADLINE_S, PATIENCE_S, until, until_async
from tests.servers.process import LOOPBACK, free_port
from tests.servers.redis import RedisServer

SCRAPE_S = 0.05
HOUR_MS = 3_600_000
Samples = dict[tuple[str, ...], float]


class Port:
    """The metrics port of a process."""

    def __init__(self) -> None:
        self.number = free_port()

    def get(self, path: str) -> tuple[int, str]:
        connection = HTTPConnection(LOOPBACK, self.number, timeout=DEADLINE_S)
        connection.request("GET", path, headers={"Accept": TEXT})
        response = connection.getresponse()
        return response.status, response.read().decode()

    def scrape(self) -> Samples:
        """(name, label values in order of name) -> value."""
        status, text = self.get("/metrics")
        assert status == 200, text
        samples = (s for f in text_string_to_metric_families(text) for s in f.samples)
        return {
            (s.name.removeprefix(PREFIX), *(s.labels[name] for name in sorted(s.labels))): s.value
            for s in samples
        }

    def whole(self, **told: float) -> Samples:
        """A scrape with what is read from Redis, which may take too long for one of them.

        told: what Redis says by then; that may be a second older than what the process says.
        """
        wanted = {("store_up",): 1.0} | {tuple(name.split("__")): n for name, n in told.items()}
        return until(lambda: s if wanted.items() <= (s := self.scrape()).items() else {})

    def value(self, *key: str) -> float | None:
        return self.scrape().get(key)

    def ready(self) -> list[str]:
        """Why it is not ready; empty if it is."""
        status, text = self.get("/health/ready")
        said = json.loads(text)
        assert (status == 200) == (said["status"] == "ok") == (said["reasons"] == [])
        return list(said["reasons"])

    @property
    def is_up(self) -> bool:
        try:
            return self.get("/health/live")[0] == 200
        except (OSError, HTTPException):
            return False


class Watch:
    """Scrapes all the time; `fallen`: the counters that fell, with their values."""

    def __init__(self, port: Port) -> None:
        self._port = port
        self._stopped = threading.Event()
        self.scrapes = 0
        self.fallen: list[tuple[tuple[str, ...], float, float]] = []
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        before: Samples = {}
        while not self._stopped.wait(SCRAPE_S):
            now = self._port.scrape()
            self.scrapes += 1
            for key, value in before.items():
                is_total = key[0].endswith(("_total", "_count", "_sum", "_bucket"))
                if is_total and now.get(key, -1.0) < value:
                    self.fallen.append((key, value, now.get(key, -1.0)))
            before = now


Start = Callable[..., Process]
FAST = {"LEASE__TTL_MS": "2000", "LEASE__RENEW_MS": "600", "REDIS__TIMEOUT_S": "1"}


@pytest.fixture
def start(tmp_path: Path, namespace: str) -> Iterator[Start]:
    """Starts `delaybridge` with these arguments and settings."""
    processes: list[Process] = []

    def run(redis_url: str, *arguments: str, **settings: str) -> Process:
        command = [sys.executable, "-m", "delaybridge", "--redis", redis_url]
        command += ["--namespace", namespace, *arguments]
        calm = {f"LEASE__{name.upper()}": str(ms) for name, ms in CALM.items()}
        calm["REDIS__TIMEOUT_S"] = str(PATIENCE_S)
        given = {f"DELAYBRIDGE_{name}": value for name, value in (calm | settings).items()}
        log = tmp_path / f"{len(processes)}.log"
        processes.append(Process("w", command, {**os.environ, **given}, log))
        return processes[-1]

    yield run
    for process in processes:
        process.close()


@pytest.mark.slow
async def test_counters_never_fall_while_processes_are_killed(
    redis_url: str, rabbitmq_url: str, namespace: str, start: Start
) -> None:
    rabbit, port, batch = Rabbit(rabbitmq_url), Port(), 200
    await rabbit.target(namespace)
    with Client(redis_url, namespace=namespace, brokers={"rabbitmq": rabbitmq_url}) as client:
        process = start(
            redis_url, "--broker", rabbitmq_url, "scan", "--processes", "2", "--with-ingest",
            "--metrics-port", str(port.number), INGEST__EXCHANGES=f"{namespace}.delay", **FAST,
        )  # fmt: skip

        def publish() -> None:
            client.schedule_many(
                [Message(f"rabbitmq:{namespace}/k", b"x", delay=0.01) for _ in range(batch)]
            )

        def total(name: str, *labels: str) -> float:
            return port.value(name, f"rabbitmq:{namespace}", *labels) or 0

        async def reached(name: str, count: int, *labels: str) -> None:
            await until_async(lambda: total(name, *labels) >= count, f"{name} {count}")

        await until_async(lambda: rabbit.is_read(f"{namespace}.delay"), "read")
        await until_async(lambda: port.value("worker_buckets") == 16, "leases")
        with Watch(port) as watch:
            for number in range(3):
                publish()
                await reached("messages_published_total", (number + 1) * batch)
                await rabbit.publish(f"{namespace}.delay", "k", headers={"x-delay": HOUR_MS})
                await reached("messages_scheduled_total", number + 1, "ingest")
                os.kill(process.children()[number % 3], signal.SIGKILL)
                await until_async(
                    lambda n=number: (
                        port.value("process_crashes_total") == n + 1
                        and port.value("worker_processes") == 3
                        and port.value("worker_buckets") == 16
                    ),
                    f"the replacement of {number}",
                )
                await until_async(lambda: rabbit.is_read(f"{namespace}.delay"), "read again")
        assert watch.scrapes > 10
        assert watch.fallen == []
        arrived = await rabbit.waiting(namespace)  # some twice if a worker was stalled
        assert total("messages_published_total") == arrived >= 3 * batch
        assert total("publish_lateness_seconds_count") == arrived
        found = port.scrape()
        assert found["messages", "delayed"] == found["horizon_messages", "1d"] == 3
        assert found["horizon_messages", "5m"] == 0
        names = {name for name, *_ in found}
        missing = {n for n, m in METRICS.items() if not m.labels and n not in names}
        missing -= {n for n in missing if n.startswith(("front_", "ledger_"))}  # there are none
        assert missing <= {"claim_seconds", "scan_batch_messages"}  # their samples have suffixes
        process.signal(signal.SIGHUP)
        process.signal(signal.SIGTERM)
        assert await asyncio.to_thread(process.wait) == 0
        assert not port.is_up


async def test_every_step_of_a_message_is_counted_by_destination(
    redis_url: str, rabbitmq_url: str, namespace: str, start: Start
) -> None:
    rabbit, port, wrong = Rabbit(rabbitmq_url), Port(), f"rabbitmq:/{namespace}.missing"
    await rabbit.target(namespace)
    start(
        redis_url, "--broker", rabbitmq_url, "scan", "--with-ingest",
        "--metrics-port", str(port.number), INGEST__EXCHANGES=f"{namespace}.delay",
        RETRY__MAX_ATTEMPTS="1",
    )  # fmt: skip
    await until_async(lambda: rabbit.is_read(f"{namespace}.delay"), "read")
    for delay_ms in (100, 2000, "soon"):
        await rabbit.publish(f"{namespace}.delay", "k", headers={"x-delay": delay_ms})
    with Client(redis_url, namespace=namespace, brokers={"rabbitmq": rabbitmq_url}) as client:
        lost = client.schedule(wrong, b"x", delay=0.01).id
        buried = "messages_buried_total", wrong, "unroutable"
        await until_async(lambda: port.value(*buried) == 1, "buried")
        assert client.dead.kick(lost) == "kicked"
    await until_async(lambda: port.value(*buried) == 2, "buried again")
    expected = {
        f"messages_{step}_total": 2 for step in ("claimed", "fired", "published", "settled")
    }
    expected |= {
        "requested_delay_seconds_count": 2,
        "requested_delay_seconds_sum": 2.1,
        "requested_delay_seconds_bucket 1.0": 1,
        "requested_delay_seconds_bucket 4.0": 2,
        "requested_delay_seconds_bucket 31557600.0": 2,
    }
    to = f"rabbitmq:{namespace}"

    def counted() -> dict[str, float | None]:
        found = port.scrape()
        return {key: found.get((name, to, *le)) for key in expected for name, *le in [key.split()]}

    await until_async(lambda: counted() == expected, "every step")
    refusal = "messages_refused_total", "bad_time"
    await until_async(lambda: port.value(*refusal) == 1, "the third one is refused")
    found = port.whole(store_messages_kicked_total=1, store_messages_scheduled_total=3)
    assert found["messages_claimed_total", wrong] == found["messages_fired_total", wrong] == 2
    assert ("messages_settled_total", wrong) not in found
    refused = {key: n for key, n in found.items() if key[0] == "messages_refused_total"}
    assert refused == {refusal: 1}
    claims = found["scan_batch_messages_count",]
    assert claims == found["claim_seconds_count",]
    assert found["scan_batch_messages_sum",] == 4
    assert found["scan_batch_messages_bucket", "5.0"] == claims


def test_health_follows_redis_as_it_ends_hangs_and_comes_back(
    tmp_path: Path, namespace: str
) -> None:
    port = Port()
    with (
        RedisServer(["--appendonly", "yes", "--appendfsync", "always"]) as server,
        Fleet(tmp_path, server.url, namespace, ttl_ms=SELDOM["ttl_ms"]) as fleet,
    ):
        fleet.start("w", "--metrics-port", str(port.number))
        fleet.wait_published(fleet.schedule(20, seconds=0.1))
        until(lambda: port.value("messages_published_total", "file:q") == 20)
        until(lambda: not port.ready(), "ready")
        fleet.schedule(7, seconds=1, first_s=3600)

        for away, back in ((server.stop, server.start), (server.pause, server.resume)):
            away()
            until(lambda: "redis: no answer" in str(port.ready()))
            found = port.scrape()
            assert found["store_up",] == 0
            assert found["messages_published_total", "file:q"] == 20
            assert ("messages", "delayed") not in found
            assert port.is_up, "a restart would not mend it"
            back()
            until(lambda: not port.ready(), "ready again")
            until(lambda: port.value("messages", "delayed") == 7)


async def test_a_stalled_fleet_is_told_from_an_idle_one(
    redis_url: str, rabbitmq_url: str, namespace: str, start: Start
) -> None:
    rabbit, idle, worker = Rabbit(rabbitmq_url), Port(), Port()
    await rabbit.target(namespace)
    ingest = start(
        redis_url, "--broker", rabbitmq_url, "ingest", "rabbitmq", "--exchange",
        f"{namespace}.delay", "--metrics-port", str(idle.number), **FAST,
    )  # fmt: skip

    async def is_read() -> bool:
        ingest.revive()
        return await rabbit.is_read(f"{namespace}.delay")

    await until_async(is_read, "read")
    assert idle.whole()["oldest_overdue_seconds",] == 0
    await rabbit.publish(f"{namespace}.delay", "k", headers={"x-delay": 10})

    def is_stalled() -> bool:
        return (idle.value("oldest_overdue_seconds") or 0) > 1

    await until_async(is_stalled, "nobody publishes it")
    found = idle.whole()
    assert found["buckets_unowned",] == found["buckets",] == 16
    assert found["source_up", f"rabbitmq:{namespace}.delay"] == 1
    assert ("worker_buckets",) not in found
    await until_async(lambda: "16 buckets have had no worker" in str(idle.ready()), "not ready")
    start(redis_url, "--broker", rabbitmq_url, "scan", "--metrics-port", str(worker.number))
    await until_async(lambda: worker.is_up and not worker.ready(), "ready")
    await until_async(lambda: not idle.ready(), "all buckets have a worker")
    await until_async(lambda: idle.value("oldest_overdue_seconds") == 0, "none")
    assert await rabbit.take(namespace, 1)


@pytest.mark.slow
async def test_a_broker_that_is_away_is_named_and_its_messages_become_overdue(
    redis_url: str, rabbitmq_url: str, namespace: str, start: Start
) -> None:
    rabbit, port = Rabbit(rabbitmq_url), Port()
    await rabbit.target(namespace)
    parts = urlsplit(rabbitmq_url)
    async with FaultProxy(free_port(), parts.port or 5672) as proxy:
        url = parts._replace(netloc=f"{parts.netloc.rpartition(':')[0]}:{proxy.port}").geturl()
        start(redis_url, "--broker", url, "scan", "--metrics-port", str(port.number))

        async def asked(question: Callable[[], Any]) -> Any:
            return await asyncio.to_thread(question)  # the proxy needs this loop

        async def until(question: Callable[[], Any], what: str) -> None:
            await until_async(lambda: asked(question), what)

        await until(lambda: port.is_up and not port.ready(), "ready")
        proxy.mode = "refuse"
        proxy.reset()
        await until(lambda: "broker rabbitmq: " in str(port.ready()), "not ready")
        with Client(redis_url, namespace=namespace, brokers={"rabbitmq": url}) as client:
            await asked(lambda: client.schedule(f"rabbitmq:{namespace}/k", b"x", delay=0.01))
        await until(lambda: port.value("broker_up", "rabbitmq") == 0, "broker_up 0")
        await until(lambda: port.value("messages", "parked") == 1, "it is parked")
        await until(lambda: (port.value("oldest_overdue_seconds") or 0) > 0.5, "overdue")
        proxy.mode = "pass"
        await until(lambda: not port.ready(), "ready again")
        await until(lambda: port.value("oldest_overdue_seconds") == 0, "delivered")
        assert await rabbit.take(namespace, 1)


def test_paused_messages_are_held_and_not_overdue(
    redis_url: str, tmp_path: Path, namespace: str
) -> None:
    port = Port()
    with Fleet(tmp_path, redis_url, namespace, ttl_ms=SELDOM["ttl_ms"]) as fleet:
        worker = fleet.start("w", "--metrics-port", str(port.number))
        fleet.client.destinations.pause("file:q")
        until(lambda: "rules_changed rules=1 paused=file:q" in worker.log)
        fleet.schedule(5, seconds=0.1, first_s=0.5)
        until(lambda: port.value("held_messages", "paused", "file:q") == 5)
        assert port.whole(messages__parked=5)["oldest_overdue_seconds",] == 0
        of_it = "file:q", "parked"
        until(lambda: port.value("destination_messages", *of_it) == 5)
        assert port.value("destination_messages_error", *of_it) == 0
        until(lambda: not port.ready(), "ready")
        fleet.client.destinations.resume("file:q")
        until(lambda: port.value("messages_published_total", "file:q") == 5)
        assert port.value("held_messages", "paused", "file:q") is None


def test_destinations_are_counted_again_after_a_while_or_if_the_buckets_are_others(
    redis_url: str, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    brokers = {"memory": "memory://"}
    monkeypatch.setattr("delaybridge.operate.metrics.reader._TIMEOUT_S", PATIENCE_S)
    monkeypatch.setattr("delaybridge.operate.metrics.reader._COUNTED_S", 3600)
    reader = Reader(redis_url, namespace, {"memory": "memory"})

    def counted(buckets: int = 16) -> list[int]:
        gauges = reader.read(range(buckets)).gauges
        assert gauges is not None
        return [each.delayed.messages for each in gauges.destinations]

    with Client(redis_url, namespace=namespace, brokers=brokers) as client:
        client.schedule("memory:o/k", b"", delay="1h")
        assert counted() == [1]
        client.schedule("memory:o/k", b"", delay="1h")
        assert counted() == [1]
        assert counted(0) == []
        assert counted() == [2]
        client.schedule("memory:o/k", b"", delay="1h")
        monkeypatch.setattr("delaybridge.operate.metrics.reader._COUNTED_S", 0)
        assert counted() == [3]
    reader.close()


def test_paused_messages_without_a_worker_are_late_neither_in_stats_nor_in_metrics(
    redis_url: str, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    brokers = {"memory": "memory://"}
    monkeypatch.setattr("delaybridge.operate.metrics.reader._TIMEOUT_S", PATIENCE_S)
    with Client(redis_url, namespace=namespace, brokers=brokers) as client:
        reader = Reader(redis_url, namespace, {"memory": "memory"})
        client.schedule("memory:q", b"x", delay=0.001)
        client.destinations.pause("memory:q")
        until(lambda: client.stats().next_due_ms < client.stats().now_ms)
        assert reader.read([]).overdue_s([]) == client.stats().overdue_ms == 0
        client.destinations.resume("memory:q")
        late_s, late_ms = reader.read([]).overdue_s([]), client.stats().overdue_ms
        assert 0 < late_s <= late_ms / 1000
        reader.close()
