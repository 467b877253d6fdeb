"""Ingest: what producers publish to a delay exchange or delay topic, taken into the store.

`routes` says what is read and where it goes. `rabbitmq` and `kafka` read, and tell their broker
only after the store has answered; `amqp_messages` and `kafka_records` make an `Entry` of what was
read; `storing` is the store's part of it. A message that cannot be accepted becomes a `Quarantine`:
it goes to the dead set as it came, with the reason, and stops nothing.
"""

from __future__ import annotations

from time import time_ns
from typing import NamedTuple

from delaybridge.accept import Accepted, check_delay
from delaybridge.errors import MessageError
from delaybridge.instructions import Instructions
from delaybridge.message import Limits, OnConflict

INGRESS = "ingress:"


class Schedule(NamedTuple):
    """Accept this message. stamp: the same whenever the same message is read again.

    policy None: as `fail`, and an id whose message is fired waits until that one is settled.
    payload: what is kept should it be quarantined. source, offset: where it was read (Kafka).
    """

    accepted: Accepted
    stamp: bytes
    policy: OnConflict | None
    payload: bytes
    source: str = ""
    offset: int = -1


class Cancel(NamedTuple):
    """Cancel by id; in its own bucket only if the basis is given. otherwise: if there is none."""

    id: str
    basis: bytes | None
    stamp: bytes
    source: str = ""
    offset: int = -1
    otherwise: Schedule | None = None


class Quarantine(NamedTuple):
    """Keep this in the dead set."""

    id: str
    stamp: bytes
    payload: bytes
    reason: str


Entry = Schedule | Cancel | Quarantine


def reason_of(error: MessageError) -> str:
    """Why a message was quarantined, as it is shown: `ingress:CODE FIELD: DETAIL`."""
    return f"{INGRESS}{error.code} {error.field}: {error.detail}"


def when_of(asked: Instructions, limits: Limits) -> str:
    """The time as the scripts take it, now if none was asked for; DelayOutOfRange `too_far`."""
    if asked.due_ms is not None:
        check_delay(asked.due_ms - time_ns() // 1_000_000, limits, "due time")
        return str(asked.due_ms)
    check_delay(asked.delay_ms or 0, limits, "delay")
    return f"+{asked.delay_ms or 0}"
