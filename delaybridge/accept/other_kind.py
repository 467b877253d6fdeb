"""Headers and properties for a broker of another kind than the one that they were given for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from typing import Any

from delaybridge.accept.headers import encode_headers
from delaybridge.errors import MessageError
from delaybridge.message import TABLE_KINDS, Destination, Limits, Message

_NO_LIMITS = Limits(headers=2**20, headers_bytes=2**40)
_UNSAID = frozenset({"delivery_mode", "partition"})  # nothing of it is lost to a consumer
_CONTENT_TYPE = "content-type"


def for_other_kind(
    headers: Sequence[tuple[str, Any]], properties: Mapping[str, Any], destination: Destination
) -> tuple[list[tuple[str, Any]], dict[str, Any], list[str]]:
    """Headers and properties as the destination takes them, and a note for each that it does not.

    Where all headers are bytes, numbers, truth values and times become text. The content type is a
    property or the header `content-type`, as that kind has it.
    """
    is_table, left = destination.kind in TABLE_KINDS, list[str]()
    kept: list[tuple[str, Any]] = []
    for name, value in headers:
        one = name, _value(value, is_table=is_table)
        if is_table and name.lower() == _CONTENT_TYPE:
            properties = {**properties, "content_type": one[1]}
        elif _is_taken(destination, headers=[*(kept if is_table else ()), one]):
            kept.append(one)
        else:
            left.append(f"header {name} is left out")
    found: dict[str, Any] = {}
    for name, value in properties.items():
        if not is_table and name == "content_type":
            kept.append((_CONTENT_TYPE, value))
        elif _is_taken(destination, properties={name: value}):
            found[name] = value
        elif name not in _UNSAID:
            left.append(f"property {name} is left out")
    return kept, found, left


def _is_taken(destination: Destination, **given: Any) -> bool:
    try:
        encode_headers(Message("", **given), destination, _NO_LIMITS)
    except MessageError:
        return False
    return True


def _value(value: Any, *, is_table: bool) -> Any:
    """The value as the other kind may take it; tables and lists have no form but AMQP's."""
    if is_table:
        try:
            return value.decode() if isinstance(value, bytes) else value
        except UnicodeDecodeError:
            return value
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, datetime):
        return value.isoformat()
    return str(value) if isinstance(value, int | float | Decimal) else value
