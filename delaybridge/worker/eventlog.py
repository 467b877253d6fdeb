"""Passes events on, and writes them as lines: rare ones one each, frequent ones summed by second.

A line has the event's name and its fields, as `key=value` text and as values for `--json`. The
length of a field is bounded. So is the number of lines: events are summed by destination and by
the first word of their reason. While nothing happens no timer runs.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import msgspec

from delaybridge import events
from delaybridge.errors import TROUBLESHOOTING, printable
from delaybridge.events import Emit, Event, Named
from delaybridge.settings.urls import redact_text
from delaybridge.store.protocol.record import first_word

_log = logging.getLogger("delaybridge")
_SUMMARY_S = 1.0
_TEXT_CHARS = 200
# The remedy for a source comes last, after names that may be long.
_MOST_CHARS = dict.fromkeys(
    (events.FrontTrouble, events.IngestFailed, events.SourceUnguarded, events.StoreWentBack), 1000
)
_MOST_LINES = 100  # of one summary; further groups are counted together as `(others)`
# Only logged with --verbose.
_DEBUG = (
    events.Claimed, events.FireAllowed, events.PublishFailed, events.Revoked, events.Settled,
    events.IngestStored,
)  # fmt: skip
_WARNINGS = (
    events.BucketDamaged, events.Buried, events.ChangeRefused, events.CircuitOpened,
    events.ClockDiffers, events.ClockStepped, events.CounterMended, events.DeadDropped,
    events.DeadLettered, events.Dropped, events.FleetDamaged, events.FrontTrouble, events.IdMissing,
    events.IngestFailed, events.LeaseLost, events.OrphansMended, events.Quarantined,
    events.RecurringFailed, events.Retried, events.ScannerFailed, events.SourceUnguarded,
    events.StoreSilent, events.StoreWentBack, events.Stuck, events.TakenForDead, events.WorkerGone,
)  # fmt: skip
_OF_SOURCES = (events.ChangeRefused, events.FrontTrouble, events.Ingested, events.Quarantined)
_OF_BUCKETS = (events.LeaseAcquired, events.LeaseLost, events.LeaseReleased)
_SUMMED = _OF_SOURCES + _OF_BUCKETS + (
    events.Buried, events.Claimed, events.DeadDropped, events.DeadLettered, events.Dropped,
    events.FireAllowed, events.IngestStored, events.Published, events.PublishFailed,
    events.RecurringFailed, events.Retried, events.Revoked, events.RunsMade, events.Settled,
    events.StoreSilent,
)  # fmt: skip
_OTHERS = "(others)"
_FOR_PROGRAMS = ("leases", "see")
_PLAIN = re.compile(r"[^\s\"'=]+")
Write = Callable[[int, str, dict[str, Any]], None]
_Group = tuple[type[Event], str, str]  # kind, destination or source, the reason's first word


@dataclass(slots=True)
class _Sum:
    """The events of one group in this second. reason: that of the first, as an example.

    leases: (bucket,), or for an acquired lease (bucket, at_ms, reclaimed, fired). ids: of every
    `step`th message, as many as are wanted.
    """

    reason: str
    messages: int = 0
    late_ms: int = 0
    missed: int = 0
    leases: list[tuple[int, ...]] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)
    step: int = 1

    def sample(self, copies: Sequence[Named], most: int) -> None:
        """Take ids of these, before they are counted; about `most` in all, evenly."""
        while len(self.ids) + len(copies) // self.step > most:
            self.ids, self.step = self.ids[::2], 2 * self.step
        self.ids += [each.id for each in copies[-self.messages % self.step :: self.step]]


class EventLog:
    """An `Emit` that writes to the log; or elsewhere, as (level, event's name, bounded fields)."""

    def __init__(self, write: Write | None = None, most_ids: int = 0) -> None:
        """most_ids: of each sum, as its field `ids`; the log has none."""
        self._write, self._most_ids = write or _to_log, most_ids
        self._sums: dict[_Group, _Sum] = {}
        self._timer: asyncio.TimerHandle | None = None

    def __call__(self, event: Event) -> None:
        if type(event) in _DEBUG and not _log.isEnabledFor(logging.DEBUG):
            return
        if not isinstance(event, _SUMMED):
            self._say(type(event), msgspec.structs.asdict(event))
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
        if self._most_ids and (copies := getattr(event, "copies", ())):
            found.sample(copies, self._most_ids)
        found.messages += getattr(event, "messages", 1)
        if isinstance(event, events.Published):
            found.late_ms = max(found.late_ms, event.late_ms)
        elif isinstance(event, events.RunsMade):
            found.missed += event.missed
        elif isinstance(event, events.LeaseAcquired):
            at_ms = time.time_ns() // 1_000_000
            found.leases.append((event.bucket, at_ms, event.reclaimed, event.fired))
        elif isinstance(event, _OF_BUCKETS):
            found.leases.append((event.bucket,))

    def flush(self) -> None:
        """Log now what was summed up."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        sums, self._sums = self._sums, {}
        for (kind, place, word), found in sums.items():
            self._say(kind, dict(_fields(kind, place, word, found)))

    def _say(self, kind: type[Event], fields: dict[str, Any]) -> None:
        level = logging.WARNING if issubclass(kind, _WARNINGS) else logging.INFO
        if kind in _DEBUG:
            level = logging.DEBUG
        fields = _bounded(fields, _MOST_CHARS.get(kind, _TEXT_CHARS))
        if level == logging.WARNING and self._write is _to_log:
            fields["see"] = f"{TROUBLESHOOTING}#{name_of(kind)}"
        self._write(level, name_of(kind), fields)


def _fields(kind: type[Event], place: str, word: str, found: _Sum) -> Iterator[tuple[str, Any]]:
    if issubclass(kind, _OF_BUCKETS):
        yield "buckets", sorted(lease[0] for lease in found.leases)
        if kind is events.LeaseAcquired:
            yield "reclaimed", sum(lease[2] for lease in found.leases)
            yield "fired", sum(lease[3] for lease in found.leases)
            yield "leases", found.leases
    else:
        yield "n", found.messages
    if place:
        yield "source" if issubclass(kind, _OF_SOURCES) else "destination", place
    if found.reason:
        # The reason of a refusal quotes the message, whose content does not belong in a log.
        yield "reason", word if kind is events.Quarantined else found.reason
    if kind is events.RunsMade:
        yield "missed", found.missed
    if kind is events.Published:
        yield "lateness_ms", found.late_ms
    if found.ids:
        yield "ids", found.ids


class Listeners:
    """An `Emit` that passes each event on to every listener, in the order in which they joined."""

    def __init__(self) -> None:
        self.log = EventLog()
        self._all: list[Emit] = [self.log]

    def __call__(self, event: Event) -> None:
        for listener in self._all:
            listener(event)

    def join(self, listener: Emit) -> None:
        """Pass events on to this one, too. It must not raise."""
        self._all = [*self._all, listener]

    def leave(self, listener: Emit) -> None:
        """Pass no more events on to it."""
        self._all = [each for each in self._all if each is not listener]

    def flush(self) -> None:
        """Log what the log has summed up until now."""
        self.log.flush()


def say(level: int, event: str, **fields: Any) -> None:
    """Log one line: the event's name and fields, as text and in the record for formatters."""
    _to_log(level, event, _bounded(fields, _TEXT_CHARS))


def _to_log(level: int, event: str, fields: dict[str, Any]) -> None:
    line = " ".join(filter(None, [event, text_of(fields)]))
    _log.log(level, "%s", line, extra={"event": event, "fields": fields})


def text_of(fields: Mapping[str, Any]) -> str:
    """Fields as text: `key=value`, separated by spaces; without what only programs need."""
    shown = {name: value for name, value in fields.items() if name not in _FOR_PROGRAMS}
    return " ".join(f"{name}={_text(value)}" for name, value in shown.items())


def _bounded(fields: dict[str, Any], most: int) -> dict[str, Any]:
    return {
        name: printable(redact_text(value[: 10 * _TEXT_CHARS]))[:most]
        if isinstance(value, str)
        else value
        for name, value in fields.items()
    }


def _text(value: object) -> str:
    if isinstance(value, list):
        is_names = any(isinstance(each, str) for each in value)
        value = ",".join(value) if is_names else ranges(value)
    if isinstance(value, str) and not _PLAIN.fullmatch(value):
        return json.dumps(value, ensure_ascii=False)
    return str(value)


def ranges(numbers: Iterable[int]) -> str:
    """Sorted numbers as text: 0, 1, 2, 5 is `0-2,5`."""
    parts = []
    for _, run in groupby(enumerate(numbers), lambda pair: pair[1] - pair[0]):
        found = [number for _, number in run]
        parts.append(str(found[0]) if len(found) == 1 else f"{found[0]}-{found[-1]}")
    return ",".join(parts)


def name_of(kind: type[Event]) -> str:
    """An event's name in the log: `LeaseLost` is `lease_lost`."""
    return "".join(f"_{c.lower()}" if c.isupper() else c for c in kind.__name__).lstrip("_")
