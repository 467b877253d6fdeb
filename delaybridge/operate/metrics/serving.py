"""Serving: metrics and health of the processes that this one runs, or of itself, on one port."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator
from contextlib import contextmanager

from delaybridge.operate.metrics.reports import ProcessReports
from delaybridge.settings.settings import Settings
from delaybridge.settings.urls import kinds_of
from delaybridge.worker.eventlog import say
from delaybridge.worker.listening import listening

_BACKLOG = 64
_LEASES = 2  # for this many lease times a bucket may be unowned before this is not ready


@contextmanager
def served(settings: Settings, names: Collection[str]) -> Iterator[ProcessReports | None]:
    """Serve while the block runs, and yield where reports go; None if no port is set.

    names: of the processes that are to report. ConfigError if the port cannot be used.
    """
    port, host = settings.metrics.port, settings.metrics.host
    if not port:
        yield None
        return
    from delaybridge.operate.metrics.monitor import Monitor
    from delaybridge.operate.metrics.reader import Reader
    from delaybridge.operate.metrics.server import Server

    listener = listening("metrics", host, port, backlog=_BACKLOG, zero="none")
    reports = ProcessReports(names)
    reader = Reader(settings.redis.url, settings.namespace, kinds_of(settings.brokers))
    patience_s = _LEASES * settings.lease.ttl_ms / 1000
    monitor = Monitor(reports, reader, patience_s=patience_s)
    server = Server(listener, monitor.answer)
    server.start()
    shown = f"[{host}]" if ":" in host else host
    say(logging.INFO, "metrics_served", url=f"http://{shown}:{port}/metrics")
    try:
        yield reports
    finally:
        server.close()
        monitor.close()
