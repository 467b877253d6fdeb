"""The fields of a rule, each a control of its own: a change of one field is later for that alone.

For the ledger a rule is its parts: `{"rate":5}` is the control `rule` with the name `rate:PLACE`. A
part may be changed while Redis lacks the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from delaybridge.ledger.sql.rows import RULE, Control, ControlName
from delaybridge.store.namespace.rule_fields import OF_PAUSE, RETRY, object_of, parts


def joined(raw: bytes, controls: Iterable[tuple[str, bytes]]) -> bytes:
    """A stored rule with these fields as they are here; no value: without it."""
    rule = object_of(raw)
    for field, value in controls:
        _remove(rule, field)
        for name, part in object_of(value).items():
            inner = rule.get(name)
            if isinstance(part, dict) and isinstance(inner, dict):
                part = {**inner, **part}
            rule[name] = part
    return msgspec.json.encode(rule) if rule else b""


def _remove(rule: dict[str, Any], field: str) -> None:
    plan = rule.get("retry")
    if not field.startswith(RETRY):
        for name in OF_PAUSE if field == "paused" else (field,):
            rule.pop(name, None)
    elif isinstance(plan, dict):
        plan.pop(field.removeprefix(RETRY), None)
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
    """The field and the place that the name of a control means."""
    field, _, place = name.partition(b":")
    return field.decode(errors="replace"), place
