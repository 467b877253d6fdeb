"""An application of Celery, its worker, and a worker of delaybridge."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import redis
from celery import Celery
from kombu import pools

from delaybridge import Client
from delaybridge.intercept.celery import install
from tests.rigs.bridge import CALM_LEASE_MS, ROOT, Bridge
from tests.rigs.crew import PATIENT_PROCESS
from tests.rigs.waiting import DEADLINE_S, until

APP = "tests.rigs.programs.celery_app"


class Workers:
    """Two processes on one queue: a Celery worker without delaybridge, a worker of delaybridge."""

    def __init__(self, folder: Path, redis_url: str, broker: str, queue: str, kind: str) -> None:
        url = broker if kind == "rabbitmq" else f"kombu+{broker}"
        self.queue = queue
        self.environment = {
            "CELERY_TEST_BROKER": broker,
            "CELERY_TEST_BACKEND": redis_url,
            "CELERY_TEST_QUEUE": queue,
        }
        self.bridge = Bridge(folder, redis_url, queue, {kind: url}, lease_ttl_ms=CALM_LEASE_MS)
        self._log = folder / "celery.log"
        self._celery: subprocess.Popen[bytes] | None = None

    def start(self, *, pool: str = "threads", **environment: str) -> None:
        """Start both workers unless they run; returns when Celery's answers."""
        if self._celery is not None:
            return
        command = [sys.executable, "-m", "celery", "-A", APP, "worker", f"--pool={pool}"]
        command += [
            f"--concurrency={4 if pool == 'threads' else 2}",
            "--loglevel=INFO",
            "--without-mingle",
            "--without-gossip",
        ]
        with self._log.open("wb") as log:
            self._celery = subprocess.Popen(
                [*command, f"--hostname={self.queue}@localhost"],
                cwd=ROOT,
                env={**os.environ, **self.environment, **environment},
                stdout=log,
                stderr=log,
            )
        self.bridge.start_workers(1)
        until(lambda: "ready." in self._log.read_text(), "a Celery worker", interval_s=0.05)

    def close(self) -> None:
        if self._celery is not None:
            self._celery.terminate()  # the processes of its pool end with it
            try:
                self._celery.wait(10)
            except subprocess.TimeoutExpired:
                self._celery.kill()
                self._celery.wait()
        self.bridge.close()


class Team:
    """An app that sends, and the workers of its queue."""

    def __init__(self, workers: Workers) -> None:
        self._workers, self.bridge, self.queue = workers, workers.bridge, workers.queue
        self.environment = workers.environment
        os.environ.update(self.environment)
        sys.modules.pop(APP, None)
        self.tasks: Any = importlib.import_module(APP)
        self.app: Any = self.tasks.app
        self.client = Client(
            self.bridge.redis_url, namespace=self.queue, brokers=self.bridge.brokers
        )
        install(self.app, client=self.client)
        self._redis = redis.Redis.from_url(self.bridge.redis_url)

    def start(self, **options: str) -> None:
        """The workers, as `Workers.start`."""
        self._workers.start(**options)

    def runs(self) -> dict[str, list[float]]:
        """The tasks that ran, and when, in seconds since the epoch."""
        found: dict[str, list[float]] = {}
        for line in self._redis.lrange(f"{self.queue}:runs", 0, -1):
            label, at_us = line.decode().rsplit(" ", 1)
            found.setdefault(label, []).append(int(at_us) / 1e6)
        return found

    def until_ran(self, *labels: str) -> dict[str, list[float]]:
        until(
            lambda: set(labels) <= self.runs().keys(),
            f"runs of {len(labels)} tasks",
            interval_s=0.05,
        )
        return self.runs()

    @property
    def settings(self) -> dict[str, str]:
        """The settings of a process that calls `install` itself."""
        ((kind, url),) = self.bridge.brokers.items()
        return {
            "DELAYBRIDGE_REDIS_URL": self.bridge.redis_url,
            "DELAYBRIDGE_NAMESPACE": self.queue,
            f"DELAYBRIDGE_BROKERS__{kind.upper()}": url,
            **PATIENT_PROCESS,
        }

    def pending(self) -> list[str]:
        return sorted(message.id for message in self.client.pending().items)

    def take(self) -> Any:
        """Wait for the next message of the queue, as kombu gives it to a worker."""
        with self.app.connection_for_read() as connection:
            channel = connection.default_channel
            return until(
                lambda: channel.basic_get(self.queue, no_ack=True), "a message", interval_s=0.05
            )

    def run(self, code: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run code in a process of its own, with `settings`."""
        return subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, **self.settings, **environment},
            cwd=ROOT, capture_output=True, text=True, timeout=DEADLINE_S, check=False,
        )  # fmt: skip

    def unreachable(self) -> Client:
        """A client whose Redis does not run."""
        brokers = self.bridge.brokers
        return Client("redis://127.0.0.1:1/0", namespace="x", brokers=brokers, timeout_s=0.3)

    def other(self, client: Client | None = None) -> Any:
        """Another application on the same broker, with delaybridge if it is given a client."""
        broker = self.environment["CELERY_TEST_BROKER"]
        app: Any = Celery("other", broker=broker, set_as_current=False)
        if client is not None:
            install(app, client=client)
        return app

    def close(self) -> None:
        """Nothing that this test sent and did not await is left to the next one."""
        while left := self.client.pending().items:
            for message in left:
                self.client.cancel(message.id, key=message.key)
        self._redis.delete(f"{self.queue}:runs")
        self.client.close()
        self.app.close()
        pools.reset()
        self._redis.close()
        for name in self.environment:
            os.environ.pop(name, None)
