"""What a message becomes if it goes to another destination."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

import msgspec

from delaybridge.accept.accept import accept, of_tenant
from delaybridge.accept.destination import check_plan, parse_destination
from delaybridge.accept.other_kind import for_other_kind
from delaybridge.errors import MessageError
from delaybridge.message import Limits, Message, decode_record, id_as_given
from delaybridge.store.protocol.stored import headers_and_properties

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_ITEMS = 10  # of a record, that `accept` writes; later ones are kept
_MISSING = [msgspec.Raw(msgspec.msgpack.encode(None)), msgspec.Raw(msgspec.msgpack.encode(""))]
_decode_items = msgspec.msgpack.Decoder(list[msgspec.Raw]).decode


class Redirection(NamedTuple):
    """To which destination. kinds: name of each configured broker -> its kind."""

    to: str
    kinds: Mapping[str, str]
    limits: Limits

    def check(self) -> None:
        """MessageError if there can be no such destination."""
        try:
            parse_destination(self.to, self.kinds)
        except MessageError as exc:
            raise MessageError(exc.code, "to", exc.detail) from None

    def payload(self, id: str, payload: bytes) -> tuple[bytes, list[str]]:
        """The record of a message with its new destination, and what of it is left out.

        To a broker of the same kind nothing else changes. DecodeError: it cannot be read.
        MessageError: the new destination does not take it.
        """
        record = decode_record(payload)
        destination = parse_destination(self.to, self.kinds)
        canonical = of_tenant(str(destination), record.tenant)
        if record.destination == canonical:
            return payload, []
        items = _decode_items(payload)
        is_same = self.kinds.get(record.destination.partition(":")[0]) == destination.kind
        if is_same and record.suits(destination.kind):
            check_plan(record.retry, self.kinds, destination)
            items[0] = msgspec.Raw(msgspec.msgpack.encode(canonical))
            return msgspec.msgpack.encode(items), []
        headers, properties, left = for_other_kind(*headers_and_properties(record), destination)
        message = Message(
            str(destination), record.body, at=_EPOCH + timedelta(days=366 * 50),
            id=id_as_given(id, record.tenant), tenant=record.tenant, key=record.key,
            headers=headers, properties=properties,
            ttl=None if record.ttl_ms is None else timedelta(milliseconds=record.ttl_ms),
            at_most_once=record.at_most_once, retry=record.retry,
        )  # fmt: skip
        made = accept(message, self.kinds, self.limits)
        if made.id != id:
            raise MessageError("bad_destination", "to", "it is a topic of another tenant")
        later, items = items[_ITEMS:], _decode_items(made.payload)
        if later:
            items += _MISSING[len(items) - _ITEMS + len(_MISSING) :]
        return msgspec.msgpack.encode([*items, *later]), left
