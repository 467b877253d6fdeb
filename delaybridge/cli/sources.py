"""Are delay exchanges and delay topics read? For `doctor` and `health`."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from delaybridge.settings.routes import Route
    from delaybridge.settings.settings import Settings
    from delaybridge.store.announcements import IngestInfo, SourceInfo
    from delaybridge.store.stats import Stats

_IDLE = "idle: "
_READING = ("reading", "?")  # the latter where another version does not say
_START_MS = 60_000


def is_stalled(source: SourceInfo, ingest: IngestInfo, now_ms: int) -> bool:
    """Whether a process should read a source and does not; it has a minute to start."""
    if source.state == "starting":
        return now_ms - (ingest.started_ms or 0) > _START_MS
    return source.state not in _READING and not source.state.startswith(_IDLE)


def stalled(found: Stats) -> list[str]:
    """What is not read although a process tries to, and why."""
    return [
        f"{source.source} is not read: {source.state}"
        for ingest in found.ingests
        for source in ingest.sources
        if is_stalled(source, ingest, found.now_ms)
    ]


def unread(found: Stats, settings: Settings) -> list[str]:
    """The delay exchanges and topics that the settings name and that no process reads."""
    from delaybridge.errors import ConfigError
    from delaybridge.worker.ingester import routes_of

    named = [topic for topic in settings.ingest.topics if "*" not in topic]
    if not settings.ingest.exchanges and not named:
        return []
    announced = {source.source for ingest in found.ingests for source in ingest.sources}
    try:
        routes = [route for route in routes_of(settings) if not route.is_pattern]
    except ConfigError:  # these settings are of somebody who ingests nothing
        return []
    return [str(route) for route in routes if str(route) not in announced]


def delay_exchanges(settings: Settings, announced: Iterable[SourceInfo]) -> list[Route]:
    """The delay exchanges that the settings name, and those that are read at their brokers.

    ConfigError if a name in the settings cannot work.
    """
    from delaybridge.settings.routes import Route, parse_routes
    from delaybridge.settings.urls import kinds_of

    kinds = kinds_of(settings.brokers)
    routes = {str(r): r for r in parse_routes(settings.ingest.exchanges, kinds, "rabbitmq")}
    for source in announced:
        broker, _, exchange = source.source.partition(":")
        if kinds.get(broker) == "rabbitmq":
            target = source.target.removeprefix(f"{broker}:")
            routes.setdefault(source.source, Route(broker, "rabbitmq", exchange, target))
    return list(routes.values())
