"""The Celery application of bench/peers/celery.py, for its worker and for the benchmark itself."""

from __future__ import annotations

import os
import time

from celery import Celery

BROKER, QUEUE, RUNS = "BENCH_CELERY_BROKER", "BENCH_CELERY_QUEUE", "BENCH_CELERY_RUNS"
TASK = "bench.ran"
LINE = 16  # bytes of a line in the file of runs: microseconds late, and the newline

_files: dict[int, int] = {}


def make_app(broker: str, queue: str, *, confirms: bool = False) -> Celery:
    """Make an application with one task, without results and rate limits; prefetch is unlimited."""
    app = Celery("bench", broker=broker)
    app.conf.update(
        broker_transport_options={"confirm_publish": confirms},
        broker_connection_retry_on_startup=True,
        task_default_queue=queue,
        task_ignore_result=True,
        worker_disable_rate_limits=True,
        worker_prefetch_multiplier=0,
    )
    app.task(_ran, name=TASK)
    return app


def _ran(due_us: int, body: str) -> None:
    late_us = time.time_ns() // 1000 - due_us
    os.write(_file(), f"{late_us:>{LINE - 1}}\n".encode())


def _file() -> int:
    # Each process of the pool opens the file once.
    pid = os.getpid()
    if pid not in _files:
        _files[pid] = os.open(os.environ[RUNS], os.O_WRONLY | os.O_APPEND)
    return _files[pid]


if BROKER in os.environ:
    app = make_app(os.environ[BROKER], os.environ[QUEUE])
