"""The fields of a rule: which of them a change is about, and each as an object of its own.

A rule is one JSON object in Redis. A recorder records its parts, each with the time of its change.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from delaybridge import late
from delaybridge.backoff import RetryPlan

RETRY = "retry."
FIELDS = frozenset(
    ("paused", "rate", "spread_ms", "dead_letter")
    + tuple(f"{RETRY}{field}" for field in RetryPlan.__struct_fields__)
)
"""A pause and its time are one field."""
OF_PAUSE = ("paused", "paused_ms")
_NAMED = late.pattern(r"\w[\w.]{0,49}", re.ASCII)  # also those of another version


def touched(change: Mapping[str, Any]) -> set[str]:
    """The fields that a change of a rule is about, whatever it says of them."""
    found = set[str]()
    for field, value in change.items():
        if field in OF_PAUSE:
            found.add("paused")
        elif field != "retry":
            found.add(field)
        elif isinstance(value, Mapping):
            found |= {f"{RETRY}{each}" for each in value}
        else:
            found |= {each for each in FIELDS if each.startswith(RETRY)}
    return found


def parts(raw: bytes) -> dict[str, bytes]:
    """Each field of a rule as it is stored, as an object of its own. Nothing, if it is no rule."""
    found = dict[str, dict[str, Any]]()
    for field, value in object_of(raw).items():
        if field in OF_PAUSE:
            found.setdefault("paused", {})[field] = value
        elif field == "retry" and isinstance(value, dict):
            found |= {f"{RETRY}{each}": {field: {each: own}} for each, own in value.items()}
        else:
            found[field] = {field: value}
    return {
        field: msgspec.json.encode(part, order="deterministic")
        for field, part in found.items()
        if _NAMED.fullmatch(field)
    }


def object_of(raw: bytes) -> dict[str, Any]:
    """A stored rule, or a part of one, as an object; empty if it cannot be read."""
    try:
        found = msgspec.json.decode(raw or b"{}")
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
