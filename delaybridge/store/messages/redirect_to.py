"""What a message becomes if it goes to another destination."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from delaybridge.accept.accept import body_bytes
from delaybridge.accept.destination import check_plan, of_tenant, parse_destination, tenant_of_topic
from delaybridge.accept.headers import encode_headers, partition_of
from delaybridge.accept.other_kind import for_other_kind
from delaybridge.errors import DecodeError, MessageError
from delaybridge.message import PULL, Destination, Limits, Message, Record, decode_record
from delaybridge.store.protocol.stored import headers_and_properties

_PLACES = {name: place for place, name in enumerate(Record.__struct_fields__)}


def new_destination(to: str, kinds: Mapping[str, str]) -> Destination:
    """Where messages are to go; MessageError of `to` if there can be no such destination."""
    try:
        return parse_destination(to, kinds)
    except MessageError as exc:
        raise MessageError(exc.code, "to", exc.detail) from None


def with_fields(payload: bytes, **fields: Any) -> bytes:
    """A record with other values in these fields; all else stays, byte for byte. DecodeError."""
    try:
        items = msgspec.msgpack.decode(payload, type=list[msgspec.Raw])
        for name, value in fields.items():
            items[_PLACES[name]] = msgspec.Raw(msgspec.msgpack.encode(value))
    except (msgspec.MsgspecError, IndexError) as exc:
        raise DecodeError("undecodable", "record", str(exc)) from None
    return msgspec.msgpack.encode(items)


def redirected(
    payload: bytes, to: Destination, kinds: Mapping[str, str], limits: Limits
) -> tuple[bytes, list[str]]:
    """The record of a message with its new destination, and what of it is left out.

    To a broker of the same kind nothing else changes. DecodeError: it cannot be read. MessageError:
    the new destination does not take it.
    """
    record = decode_record(payload)
    destination = of_tenant(str(to), record.tenant)
    if record.destination == destination:
        return payload, []
    if tenant_of_topic(to) not in ("", record.tenant):
        raise MessageError("bad_destination", "to", "it is a topic of another tenant")
    check_plan(record.retry, kinds, to)
    is_same = kinds.get(record.destination.partition(":")[0]) == to.kind
    if is_same and record.suits(to.kind):
        return with_fields(payload, destination=destination), []
    if to.kind == PULL and record.at_most_once:
        raise MessageError("bad_destination", "to", "a pull topic takes no message at most once")
    body_bytes(record.body, to, limits)
    headers, properties, left = for_other_kind(*headers_and_properties(record), to)
    encoded = encode_headers(Message("", headers=headers, properties=properties), to, limits)
    partition = partition_of(properties) if to.kind == "kafka" else None
    fields = dict(zip(("headers", "properties", "partition"), (*encoded, partition), strict=True))
    return with_fields(payload, destination=destination, **fields), left
