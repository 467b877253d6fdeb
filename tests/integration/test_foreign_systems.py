"""`message import --from`, of what the other systems themselves have stored."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from delaybridge import Client
from tests.rigs.bridge import ROOT
from tests.rigs.celery_team import APP, Team, Workers
from tests.rigs.command_line import Result, Run
from tests.servers.clients import PROGRAMS

pytestmark = pytest.mark.slow
HOUR_MS = 3_600_000
TO = "rabbitmq:{queue}/{name}"


def ran(*command: str, **options: Any) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, **options)
    assert done.returncode == 0, done.stderr
    return done.stdout


def bodies(caller: Client) -> dict[str, tuple[str, int, dict[str, Any]]]:
    """The pending messages by id: destination, hours until they are due, and what the body adds."""
    found = {}
    for message in caller.pending(limit=100).items:
        body = json.loads(message.body or b"")
        hours = round((message.due_ms - time.time() * 1000) / HOUR_MS)
        found[message.id] = message.destination, hours, body
    return found


def left(result: Result) -> list[str]:
    lines = [json.loads(line) for line in result.err.splitlines()]
    return sorted(each["left_out"]["field"] for each in lines if "left_out" in each)


def job(queue: str, id: str, name: str, attempts: int = 0, **data: Any) -> dict[str, Any]:
    return {"queue": queue, "id": id, "name": name, "attempts": attempts, **data}


def test_what_bullmq_has_stored(
    node_modules: str, redis_url: str, namespace: str, run: Run, caller: Client
) -> None:
    environment = {**os.environ, "NODE_PATH": node_modules}
    ran("node", str(PROGRAMS / "pending_bullmq.js"), redis_url, namespace, env=environment)
    asked = ("message", "import", redis_url, "--from", "bullmq", "--prefix", namespace, "--to", TO)
    done = run("--json", *asked)
    assert left(done) == ["parentKey", "rjk"]
    welcome, fails = job("mails", "1", "welcome", data={"to": "\xe4"}), {"k": 1}
    assert bodies(caller) == {
        f"{namespace}:mails:1": ("rabbitmq:mails/welcome", 1, welcome),
        f"{namespace}:mails:own-id": (
            ("rabbitmq:mails/half", 2, job("mails", "own-id", "half", data="\ud83d"))
        ),
        f"{namespace}:retries:1": (
            ("rabbitmq:retries/fails", 1, job("retries", "1", "fails", 1, data=fails))
        ),
    }


@pytest.fixture(params=["rabbitmq", "kombu"])
def workers(request: pytest.FixtureRequest, tmp_path: Path, namespace: str) -> Iterator[Workers]:
    kind, redis_url = request.param, request.getfixturevalue("redis_url")
    broker = request.getfixturevalue("rabbitmq_url") if kind == "rabbitmq" else redis_url
    with closing(Workers(tmp_path, redis_url, broker, namespace, kind)) as workers:
        yield workers


def imported(run: Run, workers: Workers, *more: str) -> dict[str, Any]:
    broker, queue = workers.environment["CELERY_TEST_BROKER"], workers.queue
    ((kind, url),) = workers.bridge.brokers.items()
    system = "celery-rabbitmq" if kind == "rabbitmq" else "celery-redis"
    asked = ("message", "import", broker, "--from", system, "--queue", queue, *more)
    done = run("--broker", f"{kind}={url}", "--json", *asked)
    found: dict[str, Any] = json.loads(done.err.splitlines()[-1])["summary"]
    return found


def test_celery_s_own_workers_run_imported_tasks_once_and_when_they_are_due(
    run: Run, workers: Workers
) -> None:
    # Given tasks of an application without delaybridge, imported while no worker runs
    with closing(Team(workers)) as team, closing(team.other()) as stock:
        due: dict[str, float] = {}
        for number in range(40):
            due[f"t{number}"] = time.time() + 8 + number / 10
            stock.send_task(
                team.tasks.ran.name, [f"t{number}"], countdown=8 + number / 10, queue=team.queue
            )
        stock.send_task(team.tasks.ran.name, ["now"], queue=team.queue)
        assert imported(run, workers, "--remove", "--yes") == ({"created": 40, "removed": 40})
        # When the workers start, then each task runs once and not early
        team.start()
        runs = team.until_ran(*due, "now")
        assert {label: len(times) for label, times in runs.items()} == dict.fromkeys(runs, 1)
        assert not {label: at for label, at in due.items() if runs[label][0] < at - 0.001}


SEND = f"""
from {APP} import app, ran
for number in range(20):
    ran.apply_async([str(number)], countdown=30 + number)
app.close()
"""


@pytest.mark.parametrize("workers", ["rabbitmq"], indirect=True)
def test_tasks_in_celery_s_native_delayed_delivery_are_taken_over(
    run: Run, workers: Workers, tmp_path: Path
) -> None:
    # Given tasks that Celery itself delays in queues of RabbitMQ, which its worker has declared
    quorum = {"CELERY_TEST_QUORUM": "topic"}
    with closing(Workers(tmp_path, *_same(workers))) as first:
        first.start(**quorum)
    environment = {**os.environ, **workers.environment, **quorum}
    began_s = time.time()
    ran(sys.executable, "-c", SEND, env=environment, cwd=ROOT)
    assert imported(run, workers, "--remove", "--yes") == ({"created": 20, "removed": 20})
    workers.start(**quorum)
    with closing(Team(workers)) as team:
        runs = team.until_ran(*map(str, range(20)))
    assert {label: len(times) for label, times in runs.items()} == dict.fromkeys(runs, 1)
    assert min(times[0] for times in runs.values()) >= began_s + 30


def _same(workers: Workers) -> tuple[str, str, str, str]:
    of = workers.environment
    return of["CELERY_TEST_BACKEND"], of["CELERY_TEST_BROKER"], workers.queue, "rabbitmq"
