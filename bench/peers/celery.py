"""Celery's countdown: the worker takes every message at once, and holds it until it is due."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from uuid import uuid4

from bench.lateness import Lateness, percentiles
from bench.peers.celery_app import BROKER, LINE, QUEUE, RUNS, TASK, make_app
from bench.peers.peer import DAY_S, PATIENCE_S, POLL_S, Peer, check_pending, lead_s
from bench.peers.publishing import broker_bytes, ready, resting_bytes
from bench.rig import BODY, cpu_seconds, resident_bytes
from tests.rigs.bridge import rabbitmq_channel
from tests.servers.rabbitmq import RabbitMQNode

ROOT = Path(__file__).parents[2]
POOL = ("--pool=threads", f"--concurrency={os.cpu_count() or 2}")
QUIET = ("--without-gossip", "--without-mingle", "--without-heartbeat", "--loglevel=ERROR")
CONFIRMED = 300  # adds that are made with confirms; all of them would take too long
IDLE_CPU_S = 0.03  # CPU time in half a second below which the worker counts as idle
SAMPLE = 100  # messages that are added first, to measure how fast adding is


class Celery(Peer):
    """One worker with as many threads as the machine has cores, on a durable classic queue."""

    name = "Celery, countdown"
    stored = "a classic queue's file, which the system writes to disk later"
    cannot = "hold more than its workers' memory; reach plain consumers; reschedule"
    most_due, most_pending = 1000, 5000

    def open(self) -> None:
        """Make the two applications and start the worker."""
        self.queue = f"bench-{uuid4().hex[:8]}"
        self.runs = Path(self.stack.enter_context(TemporaryDirectory()), "runs")
        self.runs.touch()
        self.stack.callback(self._remove)
        self.app = make_app(self.url, self.queue)
        self.confirmed = make_app(self.url, self.queue, confirms=True)
        self._start()
        self.stack.callback(self._end)

    def fill(self, count: int) -> float:
        """Adds with confirms are measured; the others are made without, and only noted."""
        some = min(CONFIRMED, count)
        rate = self._add(some, lambda _: time.time() + DAY_S, self.confirmed)
        self.note = f"{self.most_pending:,} pending at most, all in the worker, unacknowledged"
        if count > some:
            fast = self._add(count - some, lambda _: time.time() + DAY_S)
            self.note += f"; adds without confirms: {fast:,.0f}/s"
        return rate

    def burst(self, count: int, slack: int = 1) -> float:
        """Measured until the worker has run the last task."""
        due_s = time.time() + slack * lead_s(count, self.rate)
        check_pending(self._run(count, lambda _: due_s), due_s)
        return self.runs.stat().st_mtime - due_s

    def lateness(self, rate: int, seconds: float) -> Lateness:
        """Tasks are added ahead."""
        count = int(rate * seconds)
        first_s = time.time() + lead_s(count, self.rate)
        check_pending(self._run(count, lambda number: first_s + number / rate), first_s)
        return percentiles([int(line) for line in self.runs.read_text().split()])

    def memory_bytes(self) -> Mapping[str, int]:
        """Memory of the broker, and the worker's resident set."""
        return self._memory(broker_bytes)

    def empty_memory_bytes(self) -> Mapping[str, int]:
        """The same figures, of a fresh worker that has not held any message yet."""
        self._end()
        self._start()
        return self._memory(resting_bytes)

    def versions(self) -> Mapping[str, str]:
        """The version of Celery."""
        return {"celery": version("celery")}

    def _memory(self, broker: Callable[[RabbitMQNode], Mapping[str, int]]) -> Mapping[str, int]:
        self._wait_until_prefetched()
        resident = resident_bytes(self.process.pid)
        bytes_in_broker = broker(self.servers.rabbitmq)["in segments"]
        return {"in the worker": resident, "in the broker": bytes_in_broker}

    def _run(self, count: int, due_s: Callable[[int], float]) -> float:
        self.runs.write_bytes(b"")
        self.rate = self._add(count, due_s)
        added_s, last_s = time.time(), due_s(count - 1)
        while (done := self.runs.stat().st_size // LINE) < count:
            if time.time() > last_s + PATIENCE_S:
                raise RuntimeError(f"{done:,} of {count:,} ran within {PATIENCE_S:.0f} s")
            time.sleep(POLL_S)
        return added_s

    def _add(self, count: int, due_s: Callable[[int], float], app: Any = None) -> float:
        task, body = (app or self.app).tasks[TASK], BODY.decode()
        began_s = time.monotonic()
        for number in range(count):
            when_s = due_s(number)
            arguments = (round(when_s * 1_000_000), body)
            task.apply_async(arguments, countdown=when_s - time.time())
        return count / (time.monotonic() - began_s)

    def _start(self) -> None:
        given = {BROKER: self.url, QUEUE: self.queue, RUNS: str(self.runs)}
        command = [sys.executable, "-m", "celery", "-A", "bench.peers.celery_app", "worker"]
        self.process = subprocess.Popen(
            [*command, *POOL, *QUIET, f"--hostname={uuid4().hex[:8]}@localhost"],
            env={**os.environ, **given, "PYTHONWARNINGS": "ignore"},
            cwd=ROOT,
            stdout=subprocess.DEVNULL,
        )
        began_s = time.time()
        self._run(SAMPLE, lambda _: began_s)

    def _end(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def _wait_until_prefetched(self) -> None:
        # `ready` does not count messages that the broker has sent to the worker.
        deadline_s = time.monotonic() + PATIENCE_S
        with rabbitmq_channel(self.url) as channel:
            while ready(channel, self.queue):
                if time.monotonic() > deadline_s:
                    raise RuntimeError("the worker does not take its messages")
                time.sleep(POLL_S)
        # Messages that the broker has sent may still be in the worker's socket.
        used_s = 0.0
        while cpu_seconds(self.process.pid) - used_s > IDLE_CPU_S:
            used_s = cpu_seconds(self.process.pid)
            time.sleep(0.5)

    def _remove(self) -> None:
        with rabbitmq_channel(self.url) as channel:
            channel.queue_delete(self.queue)
            channel.exchange_delete(self.queue)
