"""Connections to PostgreSQL that wait for an answer only so long."""

from __future__ import annotations

import time
from collections.abc import Generator
from typing import Any

import psycopg

GRACE_S = 2.0  # for the server to say itself that its time is up


class PatientConnection(psycopg.Connection[Any]):
    """Ends, with an error, after `patience_s` without an answer, to whatever.

    A connection whose packets are dropped, or whose server hangs, would wait for hours: what was
    sent has arrived, so the time-outs of the server and of TCP end nothing.
    """

    patience_s = 60.0

    def wait(self, gen: Generator[Any, Any, Any], *args: Any, **named: Any) -> Any:
        """As that of psycopg, which asks `gen` each 0.1 s."""
        return super().wait(self._within(gen, time.monotonic() + self.patience_s), *args, **named)

    def _within(self, gen: Generator[Any, Any, Any], until_s: float) -> Generator[Any, Any, Any]:
        is_ready: Any = None
        while True:
            try:
                asked = gen.send(is_ready)
            except StopIteration as done:
                return done.value
            is_ready = yield asked
            if not is_ready and time.monotonic() > until_s:
                self.close()
                raise psycopg.OperationalError(f"no answer within {self.patience_s:.3g} s")


def connect(timeout_s: float, *args: Any, **named: Any) -> PatientConnection:
    """A connection that waits as long as a server may take for a statement, and a little more."""
    made = PatientConnection.connect(*args, **named)
    made.patience_s = timeout_s + GRACE_S
    return made
