"""Records as a delay topic's intake gets them, and how they are read."""

from __future__ import annotations

from typing import Any

from delaybridge.ingest.entries import Entry, Quarantine, Schedule
from delaybridge.ingest.kafka.records import RawRecord, RecordReader
from delaybridge.ingest.reach import AllowList
from delaybridge.ingest.routes import Route
from delaybridge.message import Limits, Record, decode_record

TOPIC_ID = "kA3m3VfLTGCVLLSREXUSRQ"
KINDS = {"kafka": "kafka", "rabbitmq": "rabbitmq", "other": "kafka"}
ROUTE = Route("kafka", "kafka", "orders.delay", "orders")
FAR_MS = 32_503_680_000_000  # the year 3000
Pairs = list[tuple[str, bytes | None]]
DELAY, DUE = "delaybridge-delay", "delaybridge-due"
HOUR: Pairs = [(DELAY, b"1h")]


def reader(
    topic_id: str = TOPIC_ID,
    *,
    route: Route = ROUTE,
    keep_partition: bool = False,
    allowed: tuple[str, ...] = (),
    **limits: int,
) -> RecordReader:
    return RecordReader(
        route, topic_id, KINDS, Limits(**limits), AllowList(allowed), keep_partition=keep_partition
    )


def record(
    headers: Pairs | None = None,
    *,
    key: bytes | None = b"k",
    value: bytes | None = b"body",
    offset: int = 7,
    partition: int = 3,
    timestamp_ms: int = 1_700_000_000_999,
) -> RawRecord:
    return RawRecord(partition, offset, key, value, headers, timestamp_ms)


def read(headers: Pairs | None, **given: Any) -> Entry:
    return reader().read(record(headers, **given))


def scheduled(entry: Entry) -> Schedule:
    assert isinstance(entry, Schedule), entry
    return entry


def kept(entry: Entry) -> Record:
    """The record that would be published."""
    return decode_record(scheduled(entry).accepted.payload)


def reason(entry: Entry) -> str:
    assert isinstance(entry, Quarantine), entry
    return entry.reason
