"""Serving: metrics and health of the processes that this one runs, or of itself, on one port."""

from __future__ import annotations

import errno
import importlib.util
import logging
import socket
from collections.abc import Collection, Iterator
from contextlib import contextmanager

from delaybridge.errors import ConfigError
from delaybridge.operate.metrics.reports import ProcessReports
from delaybridge.settings.settings import Settings
from delaybridge.settings.urls import kinds_of
from delaybridge.worker.eventlog import say

_BACKLOG = 64
_LEASES = 2  # for this many lease times a bucket may be unowned before this is not ready


@contextmanager
def served(settings: Settings, names: Collection[str]) -> Iterator[ProcessReports | None]:
    """Serve while the block runs, and yield where reports go; None if no port is set.

    names: of the processes that are to report. ConfigError if the port cannot be used, or if
    prometheus-client is missing.
    """
    port, host = settings.metrics.port, settings.metrics.host
    if not port:
        yield None
        return
    if importlib.util.find_spec("prometheus_client") is None:
        raise ConfigError('metrics.port needs: pip install "delaybridge[metrics]"')
    from delaybridge.operate.metrics.monitor import Monitor
    from delaybridge.operate.metrics.reader import Reader
    from delaybridge.operate.metrics.server import Server

    listener = _listen(host, port)
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


def _listen(host: str, port: int) -> socket.socket:
    """A listening socket."""
    try:
        family, *_, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        return socket.create_server(address[:2], family=family, backlog=_BACKLOG)
    except (OSError, UnicodeError) as exc:
        raise ConfigError(_fault(exc, host, port)) from None


def _fault(exc: Exception, host: str, port: int) -> str:
    code = exc.errno if isinstance(exc, OSError) else None
    if code == errno.EADDRINUSE:
        return f"metrics.port: {port} on {host} is in use; choose another, or 0 for none"
    if code == errno.EACCES:
        return f"metrics.port: {port} on {host} is not allowed; choose one above 1023"
    if code == errno.EADDRNOTAVAIL or isinstance(exc, socket.gaierror | UnicodeError):
        return f"metrics.host: {host!r} is no address of this host; use 127.0.0.1 or 0.0.0.0"
    return f"metrics.port: cannot listen on {host}, port {port}: {exc}"
