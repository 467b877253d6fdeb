"""The sources that ingest processes read: which are not read, what producers get wrong."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from delaybridge.operate.troubles.finding import Finding, ok
from delaybridge.operate.troubles.listed import trouble

if TYPE_CHECKING:
    from delaybridge import Stats
    from delaybridge.operate.notices.announcements import IngestInfo, SourceInfo
    from delaybridge.settings.settings import Settings

_IDLE = "idle: "
_READING = ("reading", "?")  # `?`: a process of a version that does not report it
_START_MS = 60_000


def sources_of(found: Stats) -> list[tuple[SourceInfo, IngestInfo]]:
    """The sources of all ingest processes, each with its process."""
    return [(source, process) for process in found.ingests for source in process.sources]


def ingest_numbers(source: SourceInfo) -> str:
    """`lag 12, 100/s, 0 quarantined`."""
    rate, quarantined = number_text(source.rate), number_text(source.quarantined)
    return f"lag {number_text(source.lag)}, {rate}/s, {quarantined} quarantined"


def number_text(count: float | None) -> str:
    """`?` for a number that an ingest process of another version does not report."""
    return "?" if count is None else f"{count:,.0f}"


def is_stalled(source: SourceInfo, process: IngestInfo, now_ms: int) -> bool:
    """Whether a process fails to read a source that it should; it has a minute to start."""
    if source.state == "starting":
        return now_ms - (process.started_ms or 0) > _START_MS
    return source.state not in _READING and not source.state.startswith(_IDLE)


def unread(found: Stats, settings: Settings) -> list[str]:
    """The delay exchanges and topics that the settings name and that no process reads."""
    from delaybridge.errors import ConfigError
    from delaybridge.ingest.process import routes_of

    if not settings.ingest.exchanges and all("*" in topic for topic in settings.ingest.topics):
        return []
    announced = {source.source for source, _ in sources_of(found)}
    try:
        routes = [str(route) for route in routes_of(settings) if not route.is_pattern]
    except ConfigError:  # this host need not have the brokers of the ingest processes
        return []
    return [route for route in routes if route not in announced]


def ingest_faults(found: Stats, settings: Settings | None) -> Iterator[Finding]:
    """Sources that are not read, and what loses messages of those that are."""
    read = {source.source for source, _ in sources_of(found)}
    for route in found.fronted:
        if str(route) not in read:
            yield trouble("intake_unread", queue=route.queue, source=route)
    for name in unread(found, settings) if settings else ():
        yield trouble("source_unread", source=name)
    told: dict[tuple[str, str], None] = {}  # once, though all that read a source find the same
    for source, process in sources_of(found):
        if is_stalled(source, process, found.now_ms):
            yield trouble("source_stalled", source=source.source, state=source.state)
        told |= dict.fromkeys((source.source, fault) for fault in source.faults)
    for name, fault in told:
        yield trouble("source_fault", source=name, fault=fault)


def reading(found: Stats) -> Iterator[Finding]:
    """The sources that are read, and what their producers should change."""
    for each, process in sources_of(found):
        what = f"{each.source} -> {each.target}: {each.state}, {ingest_numbers(each)}"
        if each.quarantined:
            yield trouble("source_quarantines", what)
        elif not is_stalled(each, process, found.now_ms):
            yield ok("ingest", what)
        counts = {
            "source_misspelt": each.near_misses,
            "source_without_id": each.without_id,
            "source_refuses": each.refused,
        }
        for code, count in counts.items():
            if count:
                yield trouble(code, source=each.source, count=count)
