"""The sources that ingest processes read: which are not read, what producers get wrong."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from delaybridge.operate.doctor.finding import FAIL, OK, WARN, Finding

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


def ingest_faults(found: Stats, settings: Settings) -> Iterator[Finding]:
    """Sources that are not read, and what loses messages of those that are."""
    read = {source.source for source, _ in sources_of(found)}
    for route in found.fronted:
        if str(route) not in read:
            what = f"no ingest process reads {route.queue}, the intake of {route}"
            remedy = "Start: delaybridge front without --no-ingest, or ingest rabbitmq --front"
            yield Finding(FAIL, "ingest", what, remedy)
    for name in unread(found, settings):
        remedy = "Start: delaybridge ingest, or scan --with-ingest"
        yield Finding(WARN, "ingest", f"no ingest process reads {name}", remedy)
    told: dict[str, None] = {}  # once, though all processes that read a source find the same
    for source, process in sources_of(found):
        if is_stalled(source, process, found.now_ms):
            yield Finding(FAIL, "ingest", f"{source.source} is not read: {source.state}")
        told |= dict.fromkeys(f"{source.source}: {fault}" for fault in source.faults)
    for fault in told:
        yield Finding(FAIL, "ingest", fault)


def reading(found: Stats) -> Iterator[Finding]:
    """The sources that are read, and what their producers should change."""
    for each, process in sources_of(found):
        what = f"{each.source} -> {each.target}: {each.state}, {ingest_numbers(each)}"
        if each.quarantined:
            yield Finding(WARN, "ingest", what, "See: delaybridge dead ls --by-reason")
        elif not is_stalled(each, process, found.now_ms):
            yield Finding(OK, "ingest", what)
        for count, fault in (
            (each.near_misses, "with a misspelt header, as X-Delay for x-delay, were not delayed"),
            (each.without_id, "without an id may arrive twice after a crash. Set message_id"),
        ):
            if count:
                yield Finding(WARN, "ingest", f"{each.source}: {count} messages {fault}")
        if each.refused:
            what = f"{each.source}: {each.refused} cancels or reschedules of messages to other "
            what += "destinations were refused"
            yield Finding(WARN, "ingest", what, "See: ingest.trust")
