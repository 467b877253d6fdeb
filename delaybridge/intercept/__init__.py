"""Drop-in producers: the class you use already, with `delay=` and `deliver_at=` added.

One module per client library, with that library's own class names and signatures. A call with
neither of the two, and without a delay in the headers, goes straight to the library. What is
delayed is stored by a `delaybridge.Client`, and published by the workers as the library would have.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from delaybridge.calls import At, Delay
from delaybridge.client import AsyncClient, Client
from delaybridge.errors import ConfigError, MessageError
from delaybridge.instructions import PLUGIN_DELAY, instructions, is_instruction
from delaybridge.message import Destination

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SIGNS = frozenset(
    ("delaybridge-delay", "delaybridge-due", "x-opt-delivery-delay", "x-opt-delivery-time")
).union((PLUGIN_DELAY,))


class Timing(NamedTuple):
    """When one message is to be delivered, as `Message` takes it; id: if the headers give one."""

    delay: Delay
    at: At
    id: str | None


def timing_of(
    headers: Mapping[str, Any] | Iterable[tuple[str, Any]] | None, delay: Delay, deliver_at: At
) -> Timing | None:
    """When the caller wants this message delivered; None: now, so it is none of our business.

    MessageError `time_ambiguous` where more than one time is given, and all that
    `delaybridge.instructions.instructions` raises.
    """
    by_argument = delay is not None or deliver_at is not None
    if not (by_argument or (headers and not _SIGNS.isdisjoint(_names(headers)))):
        return None
    asked = instructions(_pairs(headers))
    if by_argument:
        if asked.is_timed:
            raise MessageError("time_ambiguous", "delay", "the headers give a time, too; give one")
        return Timing(delay, deliver_at, asked.id)
    if asked.delay_ms is not None:
        return Timing(timedelta(milliseconds=asked.delay_ms), None, asked.id)
    if asked.due_ms is not None:
        return Timing(None, _EPOCH + timedelta(milliseconds=asked.due_ms), asked.id)
    return None


def without_instructions(headers: Any) -> list[tuple[str, Any]]:
    """The headers as pairs, without those that only delaybridge reads. `x-delay` stays."""
    return [(name, value) for name, value in _pairs(headers) if not is_instruction(name)]


def broker_of(client: Client | AsyncClient, kind: str, name: str | None) -> str:
    """The name of the configured broker that an intercepted producer's messages go to.

    `name` itself, if it is configured and of that kind; else the only one of that kind.
    ConfigError otherwise.
    """
    of_kind = [known for known, its in client.kinds.items() if its == kind]
    if name is None and len(of_kind) == 1:
        return of_kind[0]
    if name is not None and name in of_kind:
        return name
    known = ", ".join(of_kind) or "none"
    wrong = "give broker=NAME" if name is None else f"broker={name!r} is not one of them"
    raise ConfigError(f"brokers: configured of kind {kind}: {known}; {wrong}")


def destination(kind: str, broker: str, address: str, routing_key: str = "") -> str:
    """The destination as `schedule` takes it."""
    return str(Destination(broker, kind, address, routing_key))


def _names(headers: Any) -> Iterable[str]:
    return headers if isinstance(headers, Mapping) else (pair[0] for pair in headers)


def _pairs(headers: Any) -> list[tuple[str, Any]]:
    return list(headers.items() if isinstance(headers, Mapping) else headers or ())
