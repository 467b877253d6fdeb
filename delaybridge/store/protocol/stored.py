"""A stored message, decoded for people and programs that inspect it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from delaybridge.amqp.decoding import decode_properties, decode_table
from delaybridge.errors import DecodeError
from delaybridge.message import MAX_PRIORITY, MessagePlan, Record, State, decode_record
from delaybridge.store.protocol.record import split_record
from delaybridge.store.protocol.replies import Row


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """A message in the store. Times are in epoch milliseconds, `ttl_ms` in milliseconds.

    due_ms: when it is due, or due again. first_due_ms: the due time that was asked for, if a failed
    publish has postponed it. attempts: failed publishes so far. maybe_delivered: one of them may
    have been delivered. last_error: how the last publish failed; failing_ms: when the first one
    failed. fired: handed to the broker, or about to be. reason: why it is parked or dead. dead_ms:
    when it was buried. tenant: whose it is; its name is the beginning of the id. is_readable: False
    if the record cannot be decoded; then `body` is the raw record, and only id, state, reason and
    dead_ms are known.
    """

    id: str
    state: State
    due_ms: int
    priority: int
    destination: str
    body: bytes | None
    headers: list[tuple[str, Any]] = field(default_factory=list)
    properties: dict[str, Any] = field(default_factory=dict)
    key: bytes | None = None
    ttl_ms: int | None = None
    at_most_once: bool = False
    retry: MessagePlan | None = None
    attempts: int = 0
    maybe_delivered: bool = False
    first_due_ms: int | None = None
    last_error: str | None = None
    failing_ms: int | None = None
    reason: str | None = None
    dead_ms: int | None = None
    bucket: int = 0
    tenant: str = ""
    fired: bool = False
    is_readable: bool = True


def stored(row: Row, bucket: int) -> Stored:
    """The message of a row. Never raises: an unreadable record is shown as such."""
    dead_ms = row.score_ms if row.state is State.DEAD else None
    try:
        score, payload = split_record(row.record)
        record = decode_record(payload)
        headers, properties = headers_and_properties(record)
    except DecodeError as exc:
        return Stored(
            id=row.id, state=row.state, due_ms=row.score_ms, priority=0, destination="",
            body=row.record, reason=row.reason or f"{exc.code}: {exc.detail}", bucket=bucket,
            attempts=row.tried.failures, dead_ms=dead_ms, is_readable=False,
        )  # fmt: skip
    return Stored(
        id=row.id,
        state=row.state,
        due_ms=int(score),
        priority=MAX_PRIORITY - round(score % 1 * 256),
        destination=record.destination,
        body=record.body,
        headers=headers,
        properties=properties,
        key=record.key,
        ttl_ms=record.ttl_ms,
        at_most_once=record.at_most_once,
        retry=record.retry,
        attempts=row.tried.failures,
        maybe_delivered=row.tried.maybe_delivered,
        first_due_ms=row.tried.due_ms,
        last_error=row.failing and row.failing.error,
        failing_ms=row.failing and row.failing.since_ms,
        reason=(row.reason or None) if row.state is State.DEAD else None,
        dead_ms=dead_ms,
        bucket=bucket,
        tenant=record.tenant,
        fired=row.fired,
    )


def headers_and_properties(record: Record) -> tuple[list[tuple[str, Any]], dict[str, Any]]:
    """As callers gave them: pairs in order, and values by name; DecodeError if they are broken."""
    headers, given = record.headers, record.properties
    pairs = decode_table(headers) if isinstance(headers, bytes) else list(headers)
    if isinstance(given, bytes):
        properties = dict(decode_table(given))
    else:
        properties = decode_properties(*given) if given else {}
    if record.partition is not None:
        properties["partition"] = record.partition
    return pairs, properties
