"""Tells the events of a process to everybody who listens: `delaybridge tail`."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from delaybridge.operate.notices.event_channel import Beat, Told, publish
from delaybridge.worker.eventlog import EventLog, Listeners
from delaybridge.worker.parts import Commands, Part
from delaybridge.worker.service import Identity

_MOST_LINES = 200  # of one beat
_MOST_IDS = 50  # of one beat; each line that has some keeps one


class Broadcast(Part):
    """Publishes a beat each second; the reply tells whether it was heard.

    Only then does it join the listeners, so the events of the first second are not told. It sums
    events as the log does. Needs no right but PUBLISH, which scripts need, too.
    """

    name = "tail"

    def __init__(self, namespace: str, identity: Identity) -> None:
        self._namespace, self._identity = namespace, identity
        self._log = EventLog(self._write, _MOST_IDS)
        self._lines: list[Told] = []
        self._dropped = 0
        self._number = 0
        self.is_heard = False

    def join(self, listeners: Listeners) -> None:
        """Keep them, for the time when it is heard."""
        self._listeners = listeners

    def commands(self) -> Commands:
        """One PUBLISH, with what happened since the last."""
        self._log.flush()
        who, lines, dropped = self._identity, self._lines, self._dropped
        _thin(lines)
        self._lines, self._dropped, self._number = [], 0, self._number + 1
        beat = Beat(who.name, who.instance, self._number, lines, dropped)
        return [publish(self._namespace, beat)]

    def take_replies(self, replies: Sequence[Any]) -> None:
        """Listen to events from now on if a `tail` heard this beat, else no longer."""
        (heard,) = replies
        if isinstance(heard, Exception):
            return  # the next beat's number tells that this one is missing
        if heard and not self.is_heard:
            self._listeners.join(self._log)
        elif not heard and self.is_heard:
            self._listeners.leave(self._log)
            self._log.flush()
            self._lines.clear()
        self.is_heard = bool(heard)

    def _write(self, level: int, event: str, fields: dict[str, Any]) -> None:
        if len(self._lines) >= _MOST_LINES:
            self._dropped += 1
            return
        fields.pop("leases", None)
        ids = fields.pop("ids", [])
        self._lines.append(Told(time.time_ns() // 1_000_000, level, event, fields, ids))


def _thin(lines: Sequence[Told]) -> None:
    """Leave ids out, evenly within a line, until all lines together have few enough."""
    room, named = _MOST_IDS, sorted((line for line in lines if line.ids), key=lambda a: len(a.ids))
    for at, line in enumerate(named):
        share = max(1, room // (len(named) - at))
        line.ids = line.ids[:: -(-len(line.ids) // share)]
        room -= len(line.ids)
