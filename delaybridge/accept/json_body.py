"""Objects of a program as a JSON body: models of pydantic, dataclasses, structs, plain data."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
from msgspec import UNSET

from delaybridge.errors import MessageError
from delaybridge.message import Message

_TYPED_KINDS = ("rabbitmq", "kombu", "http")  # a message for them has a content type
_NAMES = ("__struct_fields__", "__dataclass_fields__", "model_fields")
_DEEPEST = 20  # of the parts that are named; a list may contain itself


def with_json_body(message: Message, kind: str) -> Message:
    """The message with its `json` as body. MessageError `bad_json` names the part at fault."""
    if message.body is not UNSET:
        raise MessageError("body_ambiguous", "json", "both body and json are given; give one")
    try:
        body = _encoded(message.json)
    except Exception as exc:
        field, fault = _at_fault(message.json, "json", exc)
        raise MessageError("bad_json", field, f"cannot be JSON: {fault}") from None
    properties = message.properties
    if kind in _TYPED_KINDS and isinstance(properties, Mapping):
        properties = {"content_type": "application/json", **properties}
    return msgspec.structs.replace(message, body=body, json=UNSET, properties=properties)


def body_given(body: Any, body_json: Any, body_base64: Any) -> bytes | None:
    """The body of a message that is JSON itself: one of text, JSON and bytes. MessageError."""
    if type(body) is str and body_json is body_base64 is UNSET:  # nearly always
        return body.encode()
    if body_json is not UNSET and memoryview(body_json) == memoryview(b"null"):
        if (body, body_base64) != (UNSET, UNSET):
            body_json = UNSET  # so some generated clients write a field that is not set
    given = [each for each in (body, body_json, body_base64) if each is not UNSET]
    if len(given) != 1:
        code = "body_ambiguous" if given else "body_required"
        raise MessageError(code, "body", "give one of body, body_json and body_base64")
    if isinstance(given[0], str):
        return given[0].encode()
    return None if given[0] is None else bytes(given[0])


def _encoded(value: Any) -> bytes:
    plain = msgspec.to_builtins(value, str_keys=True, enc_hook=_plain)
    # Not msgspec's own encoder, for which not-a-number is null.
    return json.dumps(plain, allow_nan=False, ensure_ascii=False, separators=(",", ":")).encode()


def _plain(value: Any) -> Any:
    if hasattr(type(value), "model_dump"):  # of pydantic
        return value.model_dump(mode="json")
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} is unknown; give plain data or a model")


def _at_fault(value: Any, field: str, fault: Exception) -> tuple[str, Exception]:
    """The innermost part that cannot be encoded, and why."""
    for name, part in _parts(value) if field.count(".") < _DEEPEST else ():
        try:
            _encoded(part)
        except Exception as exc:
            return _at_fault(part, f"{field}.{name}", exc)
    return field, fault


def _parts(value: Any) -> Iterable[tuple[object, Any]]:
    if isinstance(value, Mapping):
        return value.items()
    if isinstance(value, list | tuple | set | frozenset):
        return enumerate(value)
    names = [name for kind in _NAMES for name in getattr(type(value), kind, ())]
    return [(name, getattr(value, name, None)) for name in names]
