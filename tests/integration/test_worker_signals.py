"""How processes end and change their settings: by signals."""

from __future__ import annotations

import fcntl
import os
import pty
import signal
import subprocess
import sys
import termios
from pathlib import Path
from typing import IO

import pytest

from delaybridge import Client
from tests.rigs import recorder
from tests.rigs.crew import SELDOM
from tests.rigs.fleet import Fleet, FleetFactory
from tests.rigs.waiting import DEADLINE_S, until
from tests.servers.redis import RedisServer


def test_sigterm_drains_under_load_without_a_gap_or_a_duplicate(patient: Fleet) -> None:
    leaving = patient.start("a", settled=False)
    patient.start("b", settled=False)
    patient.wait_shared("a", "b")
    ids = patient.schedule(600, seconds=2)
    until(lambda: len(patient.published()) > 200, "under load")
    leaving.signal(signal.SIGTERM)
    assert leaving.wait() == 0
    patient.wait_published(ids)
    patient.wait_settled()
    assert patient.twice() == []
    assert patient.early() == []
    assert {record.attempt for record in patient.published()} == {1}


@pytest.mark.parametrize("processes", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_sigterm_while_redis_is_down_ends_in_time_and_reports_leases_not_given_back(
    fleet_of: FleetFactory, processes: int
) -> None:
    with RedisServer() as server:
        # A step that waited for Redis by itself would take a minute.
        fleet = fleet_of(
            server.url, ttl_ms=600_000, REDIS__TIMEOUT_S="60", SCAN__DRAIN_TIMEOUT_S="2"
        )
        worker = fleet.start("a", "--processes", str(processes), settled=processes == 1)
        if processes == 2:
            fleet.wait_shared("a-0", "a-1")
        server.pause()
        worker.signal(signal.SIGTERM)
        assert worker.wait() == 1
        assert "not_drained" in worker.log or "were not released" in worker.log
        server.resume()


@pytest.mark.parametrize(
    ("fault", "processes"), [("closed pipe", 1), ("full disk", 1), ("full disk", 2)]
)
@pytest.mark.slow_with("full disk-1")
def test_a_worker_keeps_working_when_its_log_cannot_be_written(
    patient: Fleet, fault: str, processes: int
) -> None:
    with unwritable(fault) as stderr:
        worker = patient.start("a", "--processes", str(processes), stderr=stderr)
    patient.wait_published(patient.schedule(20, seconds=0.1))
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0


def test_a_command_whose_output_cannot_be_written_reports_by_its_exit_code() -> None:
    command = [sys.executable, "-m", "delaybridge", "stats", "--no-such-option"]
    for fault in ("closed pipe", "full disk"):
        with unwritable(fault) as stderr:
            assert subprocess.run(command, stderr=stderr, check=False).returncode == 2


def unwritable(fault: str) -> IO[bytes]:
    """A file that takes nothing."""
    if fault == "full disk":
        return open("/dev/full", "wb", buffering=0)
    read_end, write_end = os.pipe()
    os.close(read_end)
    return os.fdopen(write_end, "wb", buffering=0)


def test_a_second_sigterm_ends_at_once_and_the_next_owner_publishes_again(fleet: Fleet) -> None:
    fleet.hold()
    worker = fleet.start("a", SCAN__DRAIN_TIMEOUT_S="3600")
    (id,) = fleet.schedule(1, seconds=1)
    fleet.wait_published([id])
    worker.signal(signal.SIGTERM)
    until(lambda: "draining" in worker.log, "it drains")
    assert worker.running
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 130
    fleet.let_go()
    other = fleet.start("b", LEASE__TTL_MS=str(SELDOM["ttl_ms"]))
    fleet.wait_settled()
    *earlier, last = fleet.published()
    assert last.pid == other.pid not in {record.pid for record in earlier}
    # One, unless the first owner lost its lease: that must be short here.
    assert [record.attempt for record in earlier] == [*range(1, last.attempt)] != []


@pytest.mark.parametrize("processes", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_brokers_are_added_replaced_and_removed_while_the_worker_keeps_its_leases(
    fleet_of: FleetFactory, tmp_path: Path, redis_url: str, namespace: str, processes: int
) -> None:
    config = tmp_path / "settings.toml"
    config.touch()
    fleet = fleet_of(ttl_ms=SELDOM["ttl_ms"], CONFIG=str(config))
    worker = fleet.start("w", "--processes", str(processes))
    fleet.wait_shared(*(("w",) if processes == 1 else ("w-0", "w-1")))
    with Client(redis_url, namespace=namespace, brokers={"eu": "memory://"}) as client:
        before = client.stats().buckets

        def written(text: str, say: str) -> None:
            """Write the file, send SIGHUP, and wait until every process has logged `say`."""
            config.write_text(text)
            seen = worker.log.count(say)
            worker.signal(signal.SIGHUP)
            until(lambda: worker.log.count(say) >= seen + processes, say)

        def arrived(place: Path) -> list[str]:
            return [record.id for record in recorder.read(place)]

        def schedule() -> list[str]:
            return [client.schedule("eu:q", b"", delay=0, key="one").id for _ in range(20)]

        parked = lambda: client.stats().parked  # noqa: E731
        first, second = tmp_path / "first.jsonl", tmp_path / "second.jsonl"
        ids = schedule()
        until(lambda: parked() == 20, "parked: no worker has the broker")
        written(f'[brokers]\neu = "recorder://{first}"\n', "reloaded changed_brokers=eu")
        until(lambda: arrived(first) == ids, "all arrive, in order")
        written(f'[brokers]\neu = "recorder://{second}"\n', "reloaded changed_brokers=eu")
        ids = schedule()
        until(lambda: arrived(second) == ids, "all arrive elsewhere, in order")
        written("", "reloaded changed_brokers=eu")
        ids += schedule()
        until(lambda: parked() == 20, "parked: the broker is gone")

        config.write_text("[brokers]\neu = 'amqp://h/?foo=1'\n")
        worker.signal(signal.SIGHUP)
        refused = "reload_refused reason=\"brokers.eu: 'foo' is not an option of a RabbitMQ URL"
        until(lambda: refused in worker.log, "refused, with the reason")
        fleet.wait_published(fleet.schedule(10, seconds=0.1))
        assert parked() == 20

        written(f'[brokers]\neu = "recorder://{second}"\n', "reloaded changed_brokers=eu")
        until(lambda: arrived(second) == ids, "the rest arrives, in order")
        after = client.stats().buckets
    assert [bucket.owner for bucket in after] == [bucket.owner for bucket in before]
    assert "scanner_failed" not in worker.log
    assert processes > 1 or "lease_released" not in worker.log  # two share when they start
    assert worker.log.count("broker_connected name=file ") == processes, "the other one stayed"
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0


@pytest.mark.parametrize("processes", ["1", "2"])
@pytest.mark.slow_with("1")
def test_closing_the_terminal_drains_and_ends_the_worker(
    redis_url: str, namespace: str, tmp_path: Path, processes: str
) -> None:
    ours, theirs = pty.openpty()
    log = tmp_path / "w.log"
    command = [sys.executable, "-m", "delaybridge", "--redis", redis_url, "--namespace", namespace]
    command += ["--broker", "memory://", "scan", "--processes", processes]
    with log.open("wb") as file, subprocess.Popen(
        command,
        stdin=theirs, stdout=file, stderr=file,
        start_new_session=True, preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    ) as process:  # fmt: skip
        os.close(theirs)
        owned = lambda: log.read_text().count("lease_acquired")  # noqa: E731
        until(lambda: owned() > 0, "it holds buckets")
        os.close(ours)
        assert process.wait(DEADLINE_S) == 0
    assert "draining" in log.read_text()
