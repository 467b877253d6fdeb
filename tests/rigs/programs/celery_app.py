"""An ordinary Celery app; it installs delaybridge only if CELERY_TEST_INSTALL is set."""

import os
import time
from datetime import UTC, datetime, timedelta

import redis
from celery import Celery
from kombu import Exchange, Queue

app = Celery(
    "tests", broker=os.environ["CELERY_TEST_BROKER"], backend=os.environ["CELERY_TEST_BACKEND"]
)
if os.environ.get("CELERY_TEST_INSTALL"):
    from delaybridge.intercept.celery import install

    install(app)

name = app.conf.task_default_queue = os.environ["CELERY_TEST_QUEUE"]
if kind := os.environ.get("CELERY_TEST_QUORUM"):
    quorum = {"x-queue-type": "quorum"}
    exchange = Exchange(name, type=kind)
    app.conf.task_queues = [Queue(name, exchange, routing_key=name, queue_arguments=quorum)]
    app.conf.task_default_exchange, app.conf.task_default_exchange_type = name, kind
    app.conf.task_default_routing_key = name
app.conf.accept_content = ["json", "yaml"]
app.conf.worker_prefetch_multiplier = 10
app.conf.broker_connection_retry_on_startup = True
app.conf.broker_connection_timeout = 60  # a busy machine is no fault
app.conf.result_expires = 600

_runs = redis.Redis.from_url(os.environ["CELERY_TEST_BACKEND"])


def _note_run(label: str) -> None:
    _runs.rpush(os.environ["CELERY_TEST_QUEUE"] + ":runs", f"{label} {time.time_ns() // 1000}")


@app.task
def ran(label: str) -> str:
    _note_run(label)
    return label


@app.task
def fails(*_: object) -> None:
    raise ValueError("this task always fails")


@app.task
def add(x: int, y: int) -> int:
    return x + y


@app.task
def total(numbers: list[int]) -> int:
    return sum(numbers)


@app.task(bind=True, max_retries=3)
def at_the_third_try(self, label: str, countdown: float) -> int:
    _note_run(f"{label}-{self.request.retries}")
    if self.request.retries < 2:
        raise self.retry(countdown=countdown)
    return self.request.retries


@app.task(bind=True, max_retries=1)
def again_at(self, label: str, seconds: float) -> float:
    if self.request.retries == 0:
        raise self.retry(eta=datetime.now(UTC) + timedelta(seconds=seconds))
    _note_run(label)
    return self.request.retries
