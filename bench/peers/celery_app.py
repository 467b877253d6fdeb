"""The Celery application of bench/peers/celery.py, in its worker and in the program."""

from __future__ import annotations

import os
import time

from celery import Celery

BROKER, QUEUE, RUNS = "BENCH_CELERY_BROKER", "BENCH_CELERY_QUEUE", "BENCH_CELERY_RUNS"
TASK = "bench.ran"
LINE = 16  # bytes for each run in the file: microseconds late, and the end of the line

_files: dict[int, int] = {}


def made(broker: str, queue: str, *, confirms: bool = False) -> Celery:
    """An application with one task, without results, events and limits on what is prefetched."""
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
    # One for each process of the pool.
    pid = os.getpid()
    if pid not in _files:
        _files[pid] = os.open(os.environ[RUNS], os.O_WRONLY | os.O_APPEND)
    return _files[pid]


if BROKER in os.environ:
    app = made(os.environ[BROKER], os.environ[QUEUE])
