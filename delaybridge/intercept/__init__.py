"""Drop-in producers: the class you use already, with `delay=` and `deliver_at=` added.

One module per client library, with that library's own class names and signatures. A call with
neither of the two, and without a delay in the headers, goes straight to the library. What is
delayed is stored by a `delaybridge.Client`, and published by the workers as the library would have.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any, NamedTuple

from delaybridge import times
from delaybridge.accept.instructions import (
    PLUGIN_DELAY,
    Instructions,
    instructions,
    is_instruction,
)
from delaybridge.client import AsyncClient, Client
from delaybridge.errors import ConfigError, MessageError
from delaybridge.message import Destination
from delaybridge.times import At, Delay

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
SIGNS = frozenset(
    ("delaybridge-delay", "delaybridge-due", "x-opt-delivery-delay", "x-opt-delivery-time")
).union((PLUGIN_DELAY,))
"""The headers that give a time."""
_NOTHING = Instructions()
_INGESTS = {  # what only ingest understands: part of the instructions -> header
    "cancel": "delaybridge-cancel",
    "reschedule": "delaybridge-reschedule",
    "destination": "delaybridge-destination",
    "key": "delaybridge-key",
    "rank": "delaybridge-priority",
    "ttl_ms": "delaybridge-ttl",
    "at_most_once": "delaybridge-at-most-once",
    "policy": "delaybridge-on-conflict",
}


class Timing(NamedTuple):
    """When one message is to be delivered, as `Message` takes it; id: if the headers give one."""

    delay: Delay
    at: At
    id: str | None


def timing_of(
    headers: Mapping[str, Any] | Iterable[tuple[str, Any]] | None, delay: Delay, deliver_at: At
) -> Timing | None:
    """When the caller wants this message delivered; None: now, so it is none of our business.

    MessageError names the argument or header at fault: `time_ambiguous` where more than one time is
    given, `reserved_header` for another destination or a cancel, which only ingest understands,
    and all that `delaybridge.accept.instructions.instructions` raises.
    """
    by_argument = delay is not None or deliver_at is not None
    if not (by_argument or (headers and not SIGNS.isdisjoint(_names(headers)))):
        return None
    asked = instructions(_pairs(headers))
    if by_argument:
        _check_arguments(delay, deliver_at, asked.is_timed)
        timing = Timing(delay, deliver_at, asked.id)
    elif asked.delay_ms is not None:
        timing = Timing(timedelta(milliseconds=asked.delay_ms), None, asked.id)
    elif asked.due_ms is not None:
        timing = Timing(None, _EPOCH + timedelta(milliseconds=asked.due_ms), asked.id)
    else:
        return None
    for part, name in _INGESTS.items():
        if getattr(asked, part) != getattr(_NOTHING, part):
            raise MessageError("reserved_header", name, "not understood of a message with a delay")
    return timing


def _check_arguments(delay: Delay, deliver_at: At, timed_by_header: bool) -> None:
    """Under the names that the caller knows: `schedule` would speak of `at`."""
    if delay is not None and deliver_at is not None:
        raise MessageError("time_ambiguous", "delay", "both delay and deliver_at; give one")
    if timed_by_header:
        raise MessageError("time_ambiguous", "delay", "the headers give a time, too; give one")
    if deliver_at is not None:
        times.at_ms(deliver_at, field="deliver_at")


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
    if not of_kind:
        raise ConfigError(
            f"brokers: none is configured of kind {kind}; "
            f"set DELAYBRIDGE_BROKERS__{kind.upper()}=URL, or client=Client(..., brokers=...)"
        )
    wrong = "give broker=NAME" if name is None else f"broker={name!r} is not one of them"
    raise ConfigError(f"brokers: configured of kind {kind}: {', '.join(of_kind)}; {wrong}")


@cache
def client_of_settings() -> Client:
    """The client of every producer in this process that was given none, made when one delays.

    ConfigError if the settings are wrong; asked again, they are read again.
    """
    return Client.from_settings()


def destination(kind: str, broker: str, address: str, routing_key: str = "") -> str:
    """The destination as `schedule` takes it."""
    return str(Destination(broker, kind, address, routing_key))


def _names(headers: Any) -> Iterable[str]:
    # A dict before the rest: every publish that is not delayed comes by here.
    if isinstance(headers, dict) or isinstance(headers, Mapping):
        return headers
    return [pair[0] for pair in headers]


def _pairs(headers: Any) -> list[tuple[str, Any]]:
    return list(headers.items() if isinstance(headers, Mapping) else headers or ())
