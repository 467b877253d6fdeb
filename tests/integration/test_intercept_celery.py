"""Celery's own worker on RabbitMQ and on Redis: tasks with a countdown wait in delaybridge."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import redis
from celery import chain, chord, group
from kombu import pools
from kombu.exceptions import OperationalError

from delaybridge import Client
from delaybridge.intercept.celery import install
from tests.acceptance.bridge import Bridge
from tests.waiting import wait_until

DEADLINE_S = 25.0
APP = "tests.integration.celery_app"
ROOT = Path(__file__).parents[2]
pytestmark = [
    pytest.mark.timeout(60),
    pytest.mark.filterwarnings("ignore:Call to deprecated setex"),
]


class Team:
    """An app that sends, a Celery worker without delaybridge, and a worker of delaybridge."""

    def __init__(self, folder: Path, redis_url: str, broker: str, queue: str, kind: str) -> None:
        url = broker if kind == "rabbitmq" else f"kombu+{broker}"
        self.queue = queue
        self.environment = {
            "CELERY_TEST_BROKER": broker,
            "CELERY_TEST_BACKEND": redis_url,
            "CELERY_TEST_QUEUE": queue,
        }
        os.environ.update(self.environment)
        sys.modules.pop(APP, None)
        self.tasks: Any = importlib.import_module(APP)
        self.app: Any = self.tasks.app
        self.bridge = Bridge(folder, redis_url, queue, {kind: url})
        self.client = Client(redis_url, namespace=queue, brokers={kind: url})
        install(self.app, client=self.client)
        self._folder = folder
        self._redis = redis.Redis.from_url(redis_url)
        self._processes: list[subprocess.Popen[bytes]] = []

    def start(self, **environment: str) -> None:
        """Both workers; returns when Celery's answers."""
        command = [sys.executable, "-m", "celery", "-A", APP, "worker", "--pool=threads"]
        command += ["--concurrency=4", "--loglevel=INFO", "--without-mingle", "--without-gossip"]
        with (self._folder / "celery.log").open("wb") as log:
            self._processes.append(
                subprocess.Popen(
                    [*command, f"--hostname={self.queue}@localhost"],
                    cwd=ROOT,
                    env={**os.environ, **environment},
                    stdout=log,
                    stderr=log,
                )
            )
        self.bridge.start_workers(1)
        wait_until(
            lambda: "ready." in (self._folder / "celery.log").read_text(),
            *(DEADLINE_S, "a Celery worker"),
            interval_s=0.1,
        )

    def runs(self) -> dict[str, list[float]]:
        """What ran, and when, in seconds since the epoch."""
        found: dict[str, list[float]] = {}
        for line in self._redis.lrange(f"{self.queue}:runs", 0, -1):
            label, at_us = line.decode().rsplit(" ", 1)
            found.setdefault(label, []).append(int(at_us) / 1e6)
        return found

    def until_ran(self, *labels: str) -> dict[str, list[float]]:
        wait_until(
            lambda: set(labels) <= self.runs().keys(),
            *(DEADLINE_S, f"runs of {len(labels)} tasks"),
            interval_s=0.05,
        )
        return self.runs()

    def close(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()
        self.bridge.close()
        self.client.close()
        self.app.close()
        pools.reset()
        self._redis.close()
        for name in self.environment:
            os.environ.pop(name, None)


@pytest.fixture(params=["rabbitmq", "kombu"])
def kind(request: pytest.FixtureRequest) -> str:
    """The kind of broker that Celery is on; `kombu`: Redis."""
    return str(request.param)


@pytest.fixture
def team(
    kind: str, tmp_path: Path, redis_url: str, rabbitmq_url: str, namespace: str
) -> Iterator[Team]:
    team = Team(
        tmp_path, redis_url, rabbitmq_url if kind == "rabbitmq" else redis_url, namespace, kind
    )
    try:
        yield team
    finally:
        team.close()


def in_(seconds: float) -> datetime:
    return datetime.now(UTC) + timedelta(seconds=seconds)


def test_countdowns_and_etas_run_once_and_never_early_and_no_worker_holds_one(team: Team) -> None:
    team.start()
    due: dict[str, float] = {}
    for number in range(200):
        seconds = 2 + number % 20 / 20
        due[f"c{number}"] = time.time() + seconds
        team.tasks.ran.apply_async([f"c{number}"], countdown=seconds)
    together = in_(3)
    for number in range(50):
        due[f"e{number}"] = together.timestamp()
        team.tasks.ran.apply_async([f"e{number}"], eta=together)
    assert team.client.stats().delayed + team.client.stats().in_flight > 0
    scheduled = team.app.control.inspect([f"{team.queue}@localhost"], timeout=2).scheduled()
    assert scheduled == {f"{team.queue}@localhost": []}, "the worker holds ETAs"
    runs = team.until_ran(*due)
    assert {label: len(times) for label, times in runs.items()} == dict.fromkeys(due, 1)
    early = {label: runs[label][0] - at for label, at in due.items() if runs[label][0] < at - 0.001}
    assert not early


def test_what_is_due_already_is_sent_straight_on(team: Team) -> None:
    team.start()
    team.tasks.ran.apply_async(["zero"], countdown=0)
    team.tasks.ran.apply_async(["negative"], countdown=-5)
    team.tasks.ran.apply_async(["past"], eta=in_(-3600))
    team.tasks.ran.delay("now")
    assert team.client.stats().delayed == 0
    team.until_ran("zero", "negative", "past", "now")


def test_a_revoke_before_due_cancels_and_the_result_says_so(team: Team) -> None:
    team.start()
    hours = team.tasks.ran.apply_async(["hours"], countdown=3 * 3600)
    soon = team.tasks.ran.apply_async(["soon"], countdown=1.5)
    assert hours.state == soon.state == "PENDING"
    assert team.client.get(hours.id) is not None
    hours.revoke()
    team.app.control.revoke([soon.id])
    assert team.client.get(hours.id) is None
    assert hours.state == soon.state == "REVOKED"
    after = team.tasks.ran.apply_async(["after"], countdown=2)
    assert after.get(timeout=DEADLINE_S) == "after"
    assert after.state == "SUCCESS"
    assert team.runs().keys() == {"after"}


def test_chains_groups_and_chords_with_countdowns(team: Team) -> None:
    team.start()
    began_s = time.time()
    add, total = team.tasks.add, team.tasks.total
    chained = chain(add.s(1, 2), add.s(3).set(countdown=1), add.s(4)).apply_async()
    grouped = group(add.s(n, n) for n in range(5)).apply_async(countdown=1)
    joined = chord((add.s(n, 1).set(countdown=1) for n in range(4)), total.s()).apply_async()
    assert chained.get(timeout=DEADLINE_S) == 10
    assert grouped.get(timeout=DEADLINE_S) == [0, 2, 4, 6, 8]
    assert joined.get(timeout=DEADLINE_S) == 10
    assert time.time() - began_s >= 1


def test_a_chord_learns_that_one_of_its_tasks_was_revoked(team: Team) -> None:
    team.start()
    add, total = team.tasks.add, team.tasks.total
    late = add.s(1, 1).set(countdown=3600, task_id=f"{team.queue}-late")
    joined = chord([add.s(1, 2), late], total.s()).apply_async()
    team.app.control.revoke(f"{team.queue}-late")
    with pytest.raises(Exception, match="revoked|Revoked|ChordError"):
        joined.get(timeout=DEADLINE_S)


@pytest.mark.parametrize("installed", [True, False], ids=["installed", "without"])
def test_a_retry_with_a_countdown_comes_back(team: Team, kind: str, installed: bool) -> None:
    broker = team.bridge.brokers[kind]
    settings = {
        "CELERY_TEST_INSTALL": "1",
        "DELAYBRIDGE_REDIS_URL": team.bridge.redis_url,
        "DELAYBRIDGE_NAMESPACE": team.queue,
        f"DELAYBRIDGE_BROKERS__{kind.upper()}": broker,
    }
    team.start(**(settings if installed else {}))
    results = [team.tasks.at_the_third_try.delay(f"r{n}", 0.7) for n in range(10)]
    assert [r.get(timeout=DEADLINE_S) for r in results] == [2] * 10
    for number in range(10):
        times = [team.runs()[f"r{number}-{retry}"] for retry in range(3)]
        assert [len(each) for each in times] == [1, 1, 1]
        assert times[1][0] - times[0][0] >= 0.69
        assert times[2][0] - times[1][0] >= 0.69


def test_concurrent_publishers_lose_nothing(team: Team) -> None:
    team.start()
    labels = [f"t{number}" for number in range(200)]
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda x: team.tasks.ran.apply_async([x], countdown=1), labels))
    runs = team.until_ran(*labels)
    assert Counter(len(times) for times in runs.values()) == {1: 200}


def test_the_same_task_id_twice_runs_twice_as_celery_has_it(team: Team) -> None:
    team.start()
    for _ in range(2):
        team.tasks.ran.apply_async(["twice"], countdown=1, task_id=f"{team.queue}-same")
    wait_until(lambda: len(team.runs().get("twice", ())) == 2, DEADLINE_S, "two runs")


def test_a_store_that_is_away_is_told_as_a_broker_that_is_away(team: Team, kind: str) -> None:
    away = Client(
        "redis://127.0.0.1:1/0", namespace="x", brokers=team.bridge.brokers, timeout_s=0.3
    )
    app = type(team.app)(
        "other", broker=team.environment["CELERY_TEST_BROKER"], backend="cache+memory://"
    )
    install(app, client=away)
    install(app, client=away)
    with pytest.raises(OperationalError):
        app.send_task("x", countdown=10, queue=team.queue)
    away.close()
    app.close()
