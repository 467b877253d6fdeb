"""Messages as a delay exchange's intake gets them, in bytes; and how they are read."""

from __future__ import annotations

import struct
from typing import Any

from delaybridge.amqp.encoding import HEADERS_FLAG, encode_properties, encode_table
from delaybridge.ingest.rabbitmq.messages import Immediate, MessageReader, RawMessage
from delaybridge.ingest.reach import AllowList
from delaybridge.ingest.routes import Route
from delaybridge.message import Limits, Record, decode_record

KINDS = {"rabbitmq": "rabbitmq", "eu": "rabbitmq", "kafka": "kafka"}
ROUTE = Route("rabbitmq", "rabbitmq", "x.delay", "x")
STAMP = b"\x01\x02\x03\x04"


def reader(
    *,
    allowed: tuple[str, ...] = (),
    limits: Limits | None = None,
    negates: bool = False,
    trusts_stamp: bool = False,
    **route: Any,
) -> MessageReader:
    """Reads the delay exchange x.delay; y.delay exists, too."""
    mine, limits, sources = ROUTE._replace(**route), limits or Limits(), ["x.delay", "y.delay"]
    ways = {"negates": negates, "trusts_stamp": trusts_stamp}
    return MessageReader(mine, KINDS, limits, AllowList(allowed), sources, **ways)


def raw(name: str, kind: bytes, value: bytes) -> bytes:
    """One header as it is encoded in a table."""
    return bytes([len(name)]) + name.encode() + kind + value


def delivered(
    headers: dict[str, Any] | bytes | None = None,
    body: bytes = b"body",
    *,
    key: bytes = b"some.key",
    redelivered: bool = False,
    **properties: Any,
) -> RawMessage:
    """A message with these headers, or with this table."""
    flags, before, after = encode_properties(properties)
    table = b""
    if headers is not None:
        table = headers if isinstance(headers, bytes) else encode_table(headers.items())
        flags |= HEADERS_FLAG
        before += struct.pack(">I", len(table))
    header = struct.pack(">HHQH", 60, 0, len(body), flags) + before + table + after
    return RawMessage(1, redelivered, key, header, body)


def read(message: RawMessage, reader: MessageReader | None = None) -> Any:
    return (reader or _READER).read(message, STAMP)


_READER = reader()


def record_of(entry: Any) -> Record:
    if isinstance(entry, Immediate):
        return entry.record
    return decode_record(entry.payload)
