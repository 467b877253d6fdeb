"""Objects of a program as a JSON body: models of pydantic, dataclasses, structs, plain data."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from delaybridge.errors import MessageError
from delaybridge.message import Message

_TYPED_KINDS = ("rabbitmq", "kombu", "http")  # a message for them has a content type
_NAMES = ("__struct_fields__", "__dataclass_fields__", "model_fields")


def with_json_body(message: Message, kind: str) -> Message:
    """The message with its `json` as body. MessageError `bad_json` names the part at fault."""
    if message.body is not msgspec.UNSET:
        raise MessageError("body_ambiguous", "json", "both body and json are given; give one")
    body, properties = _encoded(message.json), message.properties
    if kind in _TYPED_KINDS and isinstance(properties, Mapping):
        properties = {"content_type": "application/json", **properties}
    return msgspec.structs.replace(message, body=body, json=msgspec.UNSET, properties=properties)


def _encoded(value: Any) -> bytes:
    try:
        return _text(value).encode()
    except Exception as exc:
        field, fault = _at_fault(value, "json", exc)
        raise MessageError("bad_json", field, f"cannot be JSON: {fault}") from None


def _text(value: Any) -> str:
    plain = msgspec.to_builtins(value, str_keys=True, enc_hook=_plain)
    # Not msgspec's own encoder, for which not-a-number is null.
    return json.dumps(plain, allow_nan=False, ensure_ascii=False, separators=(",", ":"))


def _plain(value: Any) -> Any:
    if hasattr(type(value), "model_dump"):  # of pydantic
        return value.model_dump(mode="json")
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} is unknown; give plain data or a model")


def _at_fault(value: Any, field: str, fault: Exception) -> tuple[str, Exception]:
    """The innermost part that cannot be encoded, and why."""
    for name, part in _parts(value) if field.count(".") < 20 else ():
        try:
            _text(part).encode()
        except Exception as exc:
            return _at_fault(part, f"{field}.{name}", exc)
    return field, fault


def _parts(value: Any) -> Iterator[tuple[object, Any]]:
    if isinstance(value, Mapping):
        yield from value.items()
    elif isinstance(value, list | tuple | set | frozenset):
        yield from enumerate(value)
    else:
        names = next((found for n in _NAMES if (found := getattr(type(value), n, None))), ())
        yield from ((name, getattr(value, name)) for name in names)
