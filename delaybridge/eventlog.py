"""Events as log lines: one line an event, `key=value`; what comes in masses is summed up a second.

Nothing is logged, and no timer runs, while nothing happens.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter

from delaybridge.errors import printable
from delaybridge.events import (
    Buried,
    ChangeRefused,
    CircuitOpened,
    Claimed,
    ClockStepped,
    Dropped,
    Event,
    IdMissing,
    Ingested,
    IngestFailed,
    LeaseLost,
    Published,
    Quarantined,
    Retried,
    Revoked,
    ScannerFailed,
    SourceUnguarded,
    StoreSilent,
    Stuck,
)

_log = logging.getLogger("delaybridge")
_SUMMARY_S = 1.0
_WARNINGS = (
    *(Buried, CircuitOpened, ClockStepped, Dropped, LeaseLost, Retried),
    *(ChangeRefused, IdMissing, IngestFailed, Quarantined, ScannerFailed, SourceUnguarded),
    *(StoreSilent, Stuck),
)
_OF_SOURCES = (ChangeRefused, Ingested, Quarantined)
_SUMMED = (
    *(Published, Retried, Buried, Dropped, Claimed, Revoked, StoreSilent),
    *_OF_SOURCES,
)


class EventLog:
    """An `Emit` that logs."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[type[Event], str, str]] = Counter()
        self._late_ms: Counter[str] = Counter()  # the latest of each destination
        self._timer: asyncio.TimerHandle | None = None

    def __call__(self, event: Event) -> None:
        if not isinstance(event, _SUMMED):
            self._say(type(event), _pairs(event))
            return
        destination = printable(getattr(event, "destination", "") or getattr(event, "source", ""))
        if isinstance(event, Published):
            self._late_ms[destination] = max(self._late_ms[destination], event.late_ms)
        reason = printable(getattr(event, "reason", ""))[:200]
        self._counts[type(event), destination, reason] += getattr(event, "messages", 1)
        if self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(_SUMMARY_S, self.flush)

    def flush(self) -> None:
        """Log what is summed up, now."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        counts, self._counts = self._counts, Counter()
        late_ms, self._late_ms = self._late_ms, Counter()
        for (kind, destination, reason), number in counts.items():
            parts = [f"n={number}"]
            place = "source" if issubclass(kind, _OF_SOURCES) else "destination"
            parts += [f"{place}={destination}"] if destination else []
            parts += [f"reason={reason!r}"] if reason else []
            parts += [f"latest={late_ms[destination]}ms"] if kind is Published else []
            self._say(kind, parts)

    def _say(self, kind: type[Event], parts: list[str]) -> None:
        level = logging.WARNING if issubclass(kind, _WARNINGS) else logging.INFO
        if kind in (Claimed, Revoked):
            level = logging.DEBUG
        _log.log(level, "%s %s", _name(kind), " ".join(parts))


def _name(kind: type[Event]) -> str:
    return "".join(f"_{c.lower()}" if c.isupper() else c for c in kind.__name__).lstrip("_")


def _pairs(event: Event) -> list[str]:
    values = ((name, getattr(event, name)) for name in event.__struct_fields__)
    return [
        f"{name}={printable(value)!r}" if isinstance(value, str) else f"{name}={value}"
        for name, value in values
    ]
