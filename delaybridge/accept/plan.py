"""Retry plans, of a message or of a destination, checked."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

from delaybridge.accept.destination import parse_destination
from delaybridge.backoff import ATTEMPTS_LIMIT, FACTOR_LIMIT, WAIT_LIMIT_MS
from delaybridge.errors import MessageError, shown
from delaybridge.message import PULL, Destination, MessagePlan, Retry

_FIELDS = MessagePlan.__struct_fields__
_WHOLE = {"max_attempts": ATTEMPTS_LIMIT, "base_ms": WAIT_LIMIT_MS, "max_ms": WAIT_LIMIT_MS}


def check_plan(
    plan: Retry,
    kinds: Mapping[str, str],
    destination: Destination | None = None,
    *,
    to_dead_set: bool = False,
) -> MessagePlan | None:
    """The plan with valid fields only; None if it sets none.

    kinds: name of each configured broker -> its kind. destination: that of the messages. The
    dead-letter destination must be another one, at a broker of the same kind. to_dead_set: it may
    be empty, which means the dead set. MessageError `bad_retry` names the field at fault, as
    `retry.max_attempts`.
    """
    if plan is None:
        return None
    given = {name: value for name, value in _pairs(plan) if value is not None}
    checked = {name: _checked(name, value) for name, value in given.items()}
    base_ms, max_ms = checked.get("base_ms", 1), checked.get("max_ms", WAIT_LIMIT_MS)
    if base_ms > max_ms:
        raise _bad("base_ms", f"{base_ms} ms is above max_ms, {max_ms} ms")
    if "dead_letter" in checked and not (to_dead_set and checked["dead_letter"] == ""):
        checked["dead_letter"] = _dead_letter(checked["dead_letter"], kinds, destination)
    return MessagePlan(**checked) if checked else None


def _pairs(plan: object) -> list[tuple[str, Any]]:
    if isinstance(plan, MessagePlan):
        return [(name, getattr(plan, name)) for name in _FIELDS]
    if not isinstance(plan, Mapping):
        what = f"got {shown(plan)}; give a MessagePlan or a mapping, as {{'max_attempts': 3}}"
        raise MessageError("bad_retry", "retry", what)
    for name in plan:
        if name not in _FIELDS:
            near = difflib.get_close_matches(str(name)[:80], _FIELDS, n=1)
            hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(_FIELDS)}"
            raise MessageError("bad_retry", "retry", f"{shown(name)} is unknown; {hint}")
    return list(plan.items())


def _checked(name: str, value: Any) -> Any:
    """The value of a field by itself."""
    if name == "dead_letter":
        return value
    if name in _WHOLE:
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= _WHOLE[name]:
            what = "whole milliseconds" if name.endswith("_ms") else "a whole number"
            raise _bad(name, f"got {shown(value)}; give {what} from 1 to {_WHOLE[name]}")
        return int(value)
    number = value if isinstance(value, int | float) and not isinstance(value, bool) else -1
    if name == "factor" and not 1 < number <= FACTOR_LIMIT:
        raise _bad(name, f"got {shown(value)}; give a number above 1, at most {FACTOR_LIMIT:.0f}")
    if name == "jitter" and not 0 <= number <= 1:
        raise _bad(name, f"got {shown(value)}; give a share from 0 to 1")
    return float(number)


def _dead_letter(text: object, kinds: Mapping[str, str], source: Destination | None) -> str:
    try:
        to = parse_destination(text, kinds)
    except MessageError as exc:
        raise _bad("dead_letter", exc.detail) from None
    if to.kind == PULL:
        raise _bad("dead_letter", "a pull topic takes none; name a broker's destination")
    if source is not None and to == source:
        raise _bad("dead_letter", "it is the destination itself; give another one")
    if source is not None and to.kind != source.kind:
        what = f"broker {to.broker!r} is of kind {to.kind}; give one of kind {source.kind}"
        raise _bad("dead_letter", what)
    return str(to)


def _bad(name: str, what: str) -> MessageError:
    return MessageError("bad_retry", f"retry.{name}", what)
