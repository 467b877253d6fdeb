"""The listeners of a process' events: its log, and whoever joins them."""

from __future__ import annotations

from delaybridge.events import Emit, Event
from delaybridge.worker.eventlog import EventLog


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
