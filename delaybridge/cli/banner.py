"""What a worker says of itself when it starts: where it works, and with what."""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING

from delaybridge import __version__
from delaybridge.cli.measure import measured, server_name
from delaybridge.cli.session import Session
from delaybridge.store import registry
from delaybridge.times import format_duration

if TYPE_CHECKING:
    from collections.abc import Sequence

    from delaybridge.ingest.routes import Route
    from delaybridge.settings.settings import Settings


def show_banner(
    session: Session,
    settings: Settings,
    name: str | None,
    routes: Sequence[Route] = (),
    *,
    role: str = "worker",
) -> None:
    """Print it on stderr. Redis away: Failure, before anything is started."""
    with session.store() as store:
        asked = [registry.info(section) for section in ("server", "persistence")]
        server, persistence = store.run(asked)
        trip_ms, ahead_ms = measured(store)
    aof = "on" if persistence.get("aof_enabled") == "1" else "off"
    who = name or f"{socket.gethostname()}:{os.getpid()}"
    scan = settings.scan
    session.note(f"delaybridge {__version__} {role} {who}  (Ctrl-C drains, twice aborts)")
    session.note(
        f" store    {settings.redis.url}  {server_name(server)}  aof {aof}  "
        f"latency {trip_ms:.2f} ms  clock {round(ahead_ms):+d} ms"
    )
    for broker, url in settings.brokers.items():
        session.note(f" broker   {broker}  {url}")
    for route in routes:
        target = route.target or "the same without .delay"
        session.note(f" ingest   {route} -> {target}")
    lease = format_duration(settings.lease.ttl_ms)
    session.note(
        f" buckets  {settings.buckets} in {settings.namespace}  processes {scan.processes}  "
        f"batch {scan.batch_messages}  lease {lease}"
    )
