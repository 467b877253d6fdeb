"""Events as log lines: one line an event; what comes in masses is summed up a second.

A line has its event's name and fields, as `key=value` and, for `--json`, as they are. Every field
is bounded, and so is the number of lines: they are summed by destination and the reason's first
word. Nothing is logged, and no timer runs, while nothing happens.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from delaybridge.errors import printable
from delaybridge.events import (
    BucketDamaged,
    Buried,
    ChangeRefused,
    CircuitOpened,
    Claimed,
    ClockStepped,
    DeadDropped,
    DeadLettered,
    Dropped,
    Event,
    FleetDamaged,
    IdMissing,
    Ingested,
    IngestFailed,
    LeaseAcquired,
    LeaseLost,
    LeaseReleased,
    Published,
    Quarantined,
    Retried,
    Revoked,
    ScannerFailed,
    SourceUnguarded,
    StoreSilent,
    Stuck,
)
from delaybridge.troubles import first_word
from delaybridge.urls import redact_text

_log = logging.getLogger("delaybridge")
_SUMMARY_S = 1.0
_TEXT_CHARS = 200
# Their remedy stands at the end, behind names that may be long.
_MOST_CHARS = {IngestFailed: 1000, SourceUnguarded: 1000}
_MOST_LINES = 100  # of one summary; what is over is summed up under no destination
_WARNINGS = (
    *(DeadDropped, DeadLettered),
    *(BucketDamaged, Buried, CircuitOpened, ClockStepped, Dropped, FleetDamaged, LeaseLost),
    *(Retried, ChangeRefused, IdMissing, IngestFailed, Quarantined, ScannerFailed),
    SourceUnguarded,
    *(StoreSilent, Stuck),
)
_OF_SOURCES = (ChangeRefused, Ingested, Quarantined)
_OF_BUCKETS = (LeaseAcquired, LeaseLost, LeaseReleased)
_SUMMED = (
    *(
        Published,
        Retried,
        Buried,
        DeadLettered,
        DeadDropped,
        Dropped,
        Claimed,
        Revoked,
        StoreSilent,
    ),
    *(*_OF_SOURCES, *_OF_BUCKETS),
)
_OTHERS = "(others)"
_PLAIN = re.compile(r"[^\s\"'=]+")
_Group = tuple[type[Event], str, str]  # kind, destination or source, the reason's first word


@dataclass(slots=True)
class _Sum:
    """What is said of one group. reason: the first one's, as an example.

    leases: bucket, and of one acquired also when (ms), how many were reclaimed, how many fired.
    """

    reason: str
    messages: int = 0
    late_ms: int = 0
    leases: list[tuple[int, ...]] = field(default_factory=list)


class EventLog:
    """An `Emit` that logs."""

    def __init__(self) -> None:
        self._sums: dict[_Group, _Sum] = {}
        self._timer: asyncio.TimerHandle | None = None

    def __call__(self, event: Event) -> None:
        if not isinstance(event, _SUMMED):
            fields = {name: getattr(event, name) for name in event.__struct_fields__}
            _say_event(type(event), fields)
            return
        self._add(event)
        if self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(_SUMMARY_S, self.flush)

    def _add(self, event: Event) -> None:
        place = getattr(event, "destination", "") or getattr(event, "source", "")
        reason = getattr(event, "reason", "")
        group = type(event), place, first_word(reason)
        if group not in self._sums and len(self._sums) >= _MOST_LINES:
            group = type(event), _OTHERS, ""
        found = self._sums.setdefault(group, _Sum(reason[: 10 * _TEXT_CHARS]))
        found.messages += getattr(event, "messages", 1)
        if isinstance(event, Published):
            found.late_ms = max(found.late_ms, event.late_ms)
        elif isinstance(event, LeaseAcquired):
            at_ms = time.time_ns() // 1_000_000
            found.leases.append((event.bucket, at_ms, event.reclaimed, event.fired))
        elif isinstance(event, _OF_BUCKETS):
            found.leases.append((event.bucket,))

    def flush(self) -> None:
        """Log what is summed up, now."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        sums, self._sums = self._sums, {}
        for (kind, place, word), found in sums.items():
            _say_event(kind, dict(_fields(kind, place, word, found)))


def _fields(kind: type[Event], place: str, word: str, found: _Sum) -> Iterator[tuple[str, Any]]:
    if issubclass(kind, _OF_BUCKETS):
        yield "buckets", sorted(lease[0] for lease in found.leases)
        if kind is LeaseAcquired:
            yield "reclaimed", sum(lease[2] for lease in found.leases)
            yield "fired", sum(lease[3] for lease in found.leases)
            yield "leases", found.leases
    else:
        yield "n", found.messages
    if place:
        yield "source" if issubclass(kind, _OF_SOURCES) else "destination", place
    if found.reason:
        # Why something was refused quotes it: what a sender wrote does not belong in a log.
        yield "reason", word if kind is Quarantined else found.reason
    if kind is Published:
        yield "lateness_ms", found.late_ms


def _say_event(kind: type[Event], fields: dict[str, Any]) -> None:
    level = logging.WARNING if issubclass(kind, _WARNINGS) else logging.INFO
    if kind in (Claimed, Revoked):
        level = logging.DEBUG
    _say(level, _name(kind), fields, _MOST_CHARS.get(kind, _TEXT_CHARS))


def say(level: int, event: str, **fields: Any) -> None:
    """One line: the event's name and fields, as text and, under `fields`, for formatters."""
    _say(level, event, fields, _TEXT_CHARS)


def _say(level: int, event: str, fields: dict[str, Any], most: int) -> None:
    bounded = {
        name: _bounded(value, most) if isinstance(value, str) else value
        for name, value in fields.items()
    }
    shown = (f"{name}={_text(value)}" for name, value in bounded.items() if name != "leases")
    extra = {"event": event, "fields": bounded}
    _log.log(level, "%s", " ".join([event, *shown]), extra=extra)


def _bounded(value: str, most: int) -> str:
    return printable(redact_text(value[: 10 * _TEXT_CHARS]))[:most]


def _text(value: object) -> str:
    if isinstance(value, list):
        return ranges(value)
    if isinstance(value, str) and not _PLAIN.fullmatch(value):
        return json.dumps(value, ensure_ascii=False)
    return str(value)


def ranges(numbers: Iterable[int]) -> str:
    """`0-2,5` of sorted numbers."""
    parts = []
    for _, run in groupby(enumerate(numbers), lambda pair: pair[1] - pair[0]):
        found = [number for _, number in run]
        parts.append(str(found[0]) if len(found) == 1 else f"{found[0]}-{found[-1]}")
    return ",".join(parts)


def _name(kind: type[Event]) -> str:
    return "".join(f"_{c.lower()}" if c.isupper() else c for c in kind.__name__).lstrip("_")
