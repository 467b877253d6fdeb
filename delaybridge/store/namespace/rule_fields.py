"""The fields of a rule, each a control of its own: a change of one field is later for that alone.

A rule is one JSON object in Redis. For the ledger it is its parts: `{"rate":5}` is the control
`rule` with the name `rate:PLACE`. A part may be changed while Redis lacks the others.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from delaybridge.backoff import RetryPlan
from delaybridge.ledger.sql.rows import RULE, Control, ControlName

_RETRY = "retry."
FIELDS = frozenset(
    ("paused", "rate", "spread_ms", "dead_letter")
    + tuple(f"{_RETRY}{field}" for field in RetryPlan.__struct_fields__)
)
"""A pause and its time are one field."""
_OF_PAUSE = ("paused", "paused_ms")
_NAMED = re.compile(r"\w[\w.]{0,49}", re.ASCII)  # also those of another version


def touched(change: Mapping[str, Any]) -> set[str]:
    """The fields that a change of a rule is about, whatever it says of them."""
    found = set[str]()
    for field, value in change.items():
        if field in _OF_PAUSE:
            found.add("paused")
        elif field != "retry":
            found.add(field)
        elif isinstance(value, Mapping):
            found |= {f"{_RETRY}{each}" for each in value}
        else:
            found |= {each for each in FIELDS if each.startswith(_RETRY)}
    return found


def parts(raw: bytes) -> dict[str, bytes]:
    """Each field of a rule as it is stored, as an object of its own. Nothing, if it is no rule."""
    found = dict[str, dict[str, Any]]()
    for field, value in _object(raw).items():
        if field in _OF_PAUSE:
            found.setdefault("paused", {})[field] = value
        elif field == "retry" and isinstance(value, dict):
            found |= {f"{_RETRY}{each}": {field: {each: own}} for each, own in value.items()}
        else:
            found[field] = {field: value}
    return {
        field: msgspec.json.encode(part, order="deterministic")
        for field, part in found.items()
        if _NAMED.fullmatch(field)
    }


def joined(raw: bytes, controls: Iterable[tuple[str, bytes]]) -> bytes:
    """A stored rule with these fields as they are here; no value: without it."""
    rule = _object(raw)
    for field, value in controls:
        _remove(rule, field)
        for name, part in _object(value).items():
            inner = rule.get(name)
            if isinstance(part, dict) and isinstance(inner, dict):
                part = {**inner, **part}
            rule[name] = part
    return msgspec.json.encode(rule) if rule else b""


def _remove(rule: dict[str, Any], field: str) -> None:
    plan = rule.get("retry")
    if not field.startswith(_RETRY):
        for name in _OF_PAUSE if field == "paused" else (field,):
            rule.pop(name, None)
    elif isinstance(plan, dict):
        plan.pop(field.removeprefix(_RETRY), None)
        if not plan:
            del rule["retry"]


def controls_of(place: bytes, raw: bytes, at_ms: Mapping[ControlName, int]) -> list[Control]:
    """The controls that a stored rule is; at_ms: their times, as far as they are known."""
    found = ((named(field, place), value) for field, value in parts(raw).items())
    return [Control(*key, value, at_ms.get(key, 0)) for key, value in found]


def named(field: str, place: bytes) -> ControlName:
    """The control that a field of the rule of a place is."""
    return RULE, field.encode() + b":" + place


def field_and_place(name: bytes) -> tuple[str, bytes]:
    """Of the control of this name."""
    field, _, place = name.partition(b":")
    return field.decode(errors="replace"), place


def _object(raw: bytes) -> dict[str, Any]:
    try:
        found = msgspec.json.decode(raw or b"{}")
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
