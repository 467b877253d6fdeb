"""What the ledger's rows hold, as values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from delaybridge.errors import printable

DELAYED, IN_FLIGHT, PUBLISHED = "delayed", "in_flight", "published"
DEAD, CANCELLED, EXPIRED = "dead", "cancelled", "expired"
OVER = (PUBLISHED, CANCELLED)
"""The states of finished rows. An expired message is in the dead set."""

FINISHED, HOT, COLD = 0, 1, 2
"""Tiers: nothing is left to do; it is in Redis, or is to be; it is in the ledger alone."""

Name = tuple[int, str]  # bucket and id: a message
RowName = tuple[int, str, int]  # and the stamp of the call that scheduled it: a row

_ERROR_CHARS = 1000

RULE, DEFINITION = "rule", "definition"
ControlName = tuple[str, bytes]  # kind and name: a field of a rule, or a recurring definition


def noted(error: str) -> str:
    """An error as rows have it: one of a broker may hold what a database does not take as text."""
    return printable(error)[:_ERROR_CHARS]


class LedgerRow(NamedTuple):
    """A row of `message`; due_ms, created_ms, updated_ms in epoch milliseconds.

    priority: 0 to 255. destination: printable, so perhaps not as in the record. payload: the
    encoded record. error: why it is dead, or was cancelled; as of `noted`.
    """

    bucket: int
    id: str
    stamp: int
    due_ms: int
    priority: int
    destination: str
    payload: bytes
    state: str = DELAYED
    error: str = ""
    created_ms: int = 0
    updated_ms: int = 0
    tier: int = HOT
    number: int = 0

    @property
    def name(self) -> RowName:
        """What names the row in its namespace."""
        return self.bucket, self.id, self.stamp

    @property
    def score(self) -> float:
        """The score that it has in Redis."""
        return self.due_ms + (255 - self.priority) / 256


class Step(NamedTuple):
    """A row of `transition`. attempt: 0 if it is not known."""

    id: str
    before: str
    after: str
    at_ms: int
    worker: str
    bucket: int
    attempt: int = 0
    error: str = ""


class Life(NamedTuple):
    """What the ledger knows of one id: its rows in the order of their calls, and all steps."""

    rows: Sequence[LedgerRow]
    steps: Sequence[Step]


class Control(NamedTuple):
    """A row of `control`. value: JSON; empty: it was removed. changed_ms: of its last change.

    made_ms: the last run that was made of the plan with this birth id; only read.
    """

    kind: str
    name: bytes
    value: bytes
    changed_ms: int
    birth: str = ""
    made_ms: int = 0

    @property
    def key(self) -> ControlName:
        """What names it in its namespace."""
        return self.kind, self.name

    @property
    def is_paused(self) -> bool:
        """Whether it says that something is paused."""
        try:
            found: Any = msgspec.json.decode(self.value or b"{}")
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return False
        return isinstance(found, dict) and found.get("paused") is True

    def wins(self, other: Control | None) -> bool:
        """Whether it is the later one. In a tie a pause wins, and else whoever all agree on."""
        if other is None or self.changed_ms != other.changed_ms:
            return other is None or self.changed_ms > other.changed_ms
        return (self.is_paused, self.value) > (other.is_paused, other.value)
