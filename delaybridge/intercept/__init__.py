"""Drop-in producers: the class you use already, with `delay=` and `deliver_at=` added.

One module per client library, with that library's own class names and signatures. A call without a
delay, as an argument or in the headers, goes straight to the library. A delayed message is stored
by a `delaybridge.Client`; the workers publish it exactly as the library would have.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any, NamedTuple

from delaybridge import times
from delaybridge.client import AsyncClient, Client
from delaybridge.errors import ConfigError, MessageError
from delaybridge.gathering import Later
from delaybridge.ingest.instructions import PLUGIN_DELAY, Instructions, instructions, is_instruction
from delaybridge.message import Destination, MessagePlan
from delaybridge.times import At

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
TIME_HEADERS = frozenset(
    ("delaybridge-delay", "delaybridge-due", "x-opt-delivery-delay", "x-opt-delivery-time")
) | {PLUGIN_DELAY, "delaybridge-debounce", "delaybridge-throttle"}
_NOTHING = Instructions()
_INGEST_ONLY = {  # field of `Instructions` -> the header, which only ingest supports
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
    """When to deliver one message, as `Message` takes it. id, retry: of the headers, if any."""

    delay: Later
    at: At
    id: str | None
    retry: MessagePlan | None = None


def timing_of(
    headers: Mapping[str, Any] | Iterable[tuple[str, Any]] | None, delay: Later, deliver_at: At
) -> Timing | None:
    """When the caller wants this message delivered; None: now, by the library itself.

    MessageError names the argument or header at fault: `time_ambiguous` if more than one time is
    given, `reserved_header` for a header that only ingest supports, such as another destination or
    a cancel, and every error of `delaybridge.ingest.instructions.instructions`.
    """
    by_argument = delay is not None or deliver_at is not None
    if not (by_argument or (headers and is_timed(headers))):
        return None
    asked = instructions(pairs(headers))
    if by_argument:
        _check_arguments(delay, deliver_at, asked.is_timed)
        timing = Timing(delay, deliver_at, asked.id, asked.retry)
    elif asked.gathering is not None:
        timing = Timing(asked.gathering, None, None, asked.retry)
    elif asked.delay_ms is not None:
        timing = Timing(timedelta(milliseconds=asked.delay_ms), None, asked.id, asked.retry)
    elif asked.due_ms is not None:
        due = _EPOCH + timedelta(milliseconds=asked.due_ms)
        timing = Timing(None, due, asked.id, asked.retry)
    else:
        return None
    for field, name in _INGEST_ONLY.items():
        if getattr(asked, field) != getattr(_NOTHING, field):
            raise MessageError("reserved_header", name, "not supported by drop-in producers")
    return timing


def is_timed(headers: Mapping[str, Any] | Iterable[tuple[str, Any]]) -> bool:
    """Whether a header gives a time."""
    # Every publish that is not delayed comes here. The check for Mapping is slow, so it comes last;
    # a loop is quicker than a generator.
    if isinstance(headers, dict) or (
        not isinstance(headers, list) and isinstance(headers, Mapping)
    ):
        return not TIME_HEADERS.isdisjoint(headers)
    for pair in headers:
        if pair[0] in TIME_HEADERS:
            return True
    return False


def _check_arguments(delay: Later, deliver_at: At, timed_by_header: bool) -> None:
    """Check the times under the names that the caller used: `schedule` would call it `at`."""
    if delay is not None and deliver_at is not None:
        raise MessageError("time_ambiguous", "delay", "both delay and deliver_at; give one")
    if timed_by_header:
        raise MessageError("time_ambiguous", "delay", "the headers give a time, too; give one")
    if deliver_at is not None:
        times.at_ms(deliver_at, field="deliver_at")


def without_instructions(headers: Any) -> list[tuple[str, Any]]:
    """The headers as pairs, without those for delaybridge alone. `x-delay` stays."""
    return [(name, value) for name, value in pairs(headers) if not is_instruction(name)]


def broker_of(client: Client | AsyncClient, kind: str, name: str | None) -> str:
    """The configured broker of this kind that a producer's delayed messages go to.

    That is `name`, or the only broker of the kind if `name` is None. ConfigError if there is none,
    or if `name` is needed or wrong.
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
    """The client that all producers without `client=` share, made at the first delayed message.

    ConfigError if the settings are wrong; the next call reads them again.
    """
    return Client.from_settings()


class LazyClient:
    """The AsyncClient of one producer: the one given, or one made from the settings when needed.

    broker: the configured broker that delayed messages go to, if there are several of its kind.
    """

    def __init__(self, client: AsyncClient | None, broker: str | None) -> None:
        self._client, self.broker = client, broker
        self._is_given = client is not None

    def open(self) -> AsyncClient:
        """The client, made now if there is none yet. ConfigError if the settings are wrong."""
        if self._client is None:
            self._client = AsyncClient.from_settings()
        return self._client

    async def close(self) -> None:
        """Close the client, unless it was given."""
        if not self._is_given and self._client is not None:
            client, self._client = self._client, None
            await client.close()


def destination(kind: str, broker: str, address: str, routing_key: str = "") -> str:
    """The destination as text, as `schedule` takes it."""
    return str(Destination(broker, kind, address, routing_key))


def pairs(headers: Any) -> list[tuple[str, Any]]:
    """The headers of a mapping, of pairs, or of None as pairs."""
    return list(headers.items() if isinstance(headers, Mapping) else headers or ())
