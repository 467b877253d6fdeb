"""A message's life, by the ledger: what it shows of an id, also after the message has ended."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import msgspec

from delaybridge.message import State
from delaybridge.store.protocol.record import UNTRIED, joined_record
from delaybridge.store.protocol.replies import Row
from delaybridge.store.protocol.stored import Stored, stored
from delaybridge.store.protocol.verbs import LedgerSteps, Work
from delaybridge.times import format_time

if TYPE_CHECKING:
    from delaybridge.ledger.sql.records import Records
    from delaybridge.ledger.sql.rows import LedgerRow, Life


class RecordedCall(msgspec.Struct):
    """A call that scheduled a message, and what became of it. error: why it is dead or cancelled.

    state: delayed, in_flight, published, dead, cancelled or expired.
    """

    state: str
    due_ms: int
    destination: str
    bucket: int
    error: str
    created: str
    created_ms: int
    updated_ms: int


class RecordedStep(msgspec.Struct, rename={"before": "from", "after": "to"}):
    """A change of a message's state, by a worker. error: of a failed publish."""

    before: str
    after: str
    at: str
    at_ms: int
    worker: str
    bucket: int
    error: str


class RecordedLife(msgspec.Struct):
    """What the ledger knows of an id: its calls in order, and what became of them."""

    calls: list[RecordedCall]
    transitions: list[RecordedStep]


def life(records: Records, id: str) -> LedgerSteps[Life]:
    """Ask the ledger for the life of an id."""
    found: Life = yield Work(lambda on: records.life(on, id))
    return found


def recorded_life(life: Life) -> RecordedLife:
    """The life as JSON has it."""
    return RecordedLife(
        [
            RecordedCall(
                row.state, row.due_ms, row.destination, row.bucket, row.error,
                format_time(row.created_ms), row.created_ms, row.updated_ms,
            )
            for row in life.rows
        ],
        [
            RecordedStep(
                step.before, step.after, format_time(step.at_ms), step.at_ms, step.worker,
                step.bucket, step.error,
            )
            for step in life.steps
        ],
    )  # fmt: skip


def as_recorded(row: LedgerRow, life: Life) -> Stored:
    """The message of a row. Its `state` is not the ledger's, which has more of them."""
    record = joined_record(row.score, row.stamp, row.payload)
    found = stored(Row(row.id, State.DELAYED, row.score, record, UNTRIED, "", False), row.bucket)
    attempts = max((s.attempt for s in life.steps if s.at_ms >= row.created_ms), default=0)
    return dataclasses.replace(found, attempts=attempts, reason=row.error or None)
