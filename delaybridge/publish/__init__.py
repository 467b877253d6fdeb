"""What a publisher is: the port between the scanner and the brokers, and `connect`.

A publisher takes deliveries in batches, hands them to its broker pipelined, and reports how each
one ended, exactly once, in whatever order the broker answers:

- CONFIRMED: the broker has it, with the durability it was asked for.
- REFUSED: certainly not delivered, with the reason.
- UNKNOWN: everything else (nack, time-out, lost connection, closed channel). It is never taken
  for either of the two others.

Which client error is which: docs/delivery.md, from the clients' and brokers' own sources.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from importlib import import_module
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any, Protocol, Self

from delaybridge.errors import ConfigError, printable
from delaybridge.message import Delivery, Destination
from delaybridge.settings import urls
from delaybridge.settings.password_file import PasswordFile
from delaybridge.settings.urls import ENTRY_POINTS, KINDS

if TYPE_CHECKING:
    from delaybridge.settings.sections import PublishSettings
    from delaybridge.settings.settings import Settings


class Verdict(StrEnum):
    """How one publish ended."""

    CONFIRMED = "confirmed"
    REFUSED = "refused"  # certainly not delivered
    UNKNOWN = "unknown"  # may have been delivered


class Fault(StrEnum):
    """Who is at fault when it was not confirmed: what the scanner does next depends on it."""

    MESSAGE = "message"  # this message: count an attempt, back off
    DESTINATION = "destination"  # its exchange or topic refuses everything now: open its circuit
    BROKER = "broker"  # the broker cannot be reached or takes nothing now: park, wait for it


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one publish ended. reason: one word first, as `unroutable: 312 NO_ROUTE`."""

    verdict: Verdict
    reason: str = ""
    fault: Fault = Fault.MESSAGE


CONFIRMED = Outcome(Verdict.CONFIRMED)
Report = Callable[[Sequence[Delivery], Outcome], None]


class Publisher(Protocol):
    """One connection to one configured broker. Lives on the worker's event loop.

    `unavailable` is the reason why the broker takes nothing now, None while it does. It changes by
    itself (the publisher reconnects with back-off, for ever); `on_change` is called then.
    `publish` never blocks and never raises for a message: whatever happens is reported, in a later
    turn of the loop, never from inside `publish`, and many deliveries of one outcome in one call.
    While `unavailable`, and once `close` was called, deliveries are reported REFUSED with
    Fault.BROKER: they were never written. No other refusal carries that fault. UNKNOWN carries a
    fault too: the broker's after a lost connection, the destination's where it refuses everything.
    """

    name: str
    unavailable: str | None

    async def connect(self) -> None:
        """Try once to connect and warm up; PublishUnavailable if it failed (it goes on trying)."""

    def publish(self, deliveries: Sequence[Delivery]) -> None:
        """Hand a batch to the broker in this order; outcomes arrive through `report`."""

    async def check(self, destination: Destination) -> str | None:
        """Why this destination would be refused as things stand, None if nothing is known."""

    def describe(self) -> str:
        """One line for people: broker and version, what is on. No secrets."""

    async def close(self, timeout_s: float) -> None:
        """Wait at most `timeout_s` for what is unconfirmed, report the rest UNKNOWN, disconnect."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishOptions:
    """What every publisher is told; times in seconds."""

    confirm_timeout_s: float = 20.0
    heartbeat_s: int = 15
    blocked_connection_timeout_s: float = 20.0
    linger_ms: int = 0

    @classmethod
    def of(cls, settings: PublishSettings) -> Self:
        """As the settings say."""
        return cls(
            confirm_timeout_s=settings.confirm_timeout_s,
            heartbeat_s=settings.heartbeat_s,
            blocked_connection_timeout_s=settings.blocked_connection_timeout_s,
            linger_ms=settings.linger_ms,
        )


_SHOWN_CHARS, _FEW = 40, 20
_ROOMS = {"redis": "redis_streams"}  # where the room is not named after the kind


def kind_of(url: str) -> str:
    """The kind of broker behind a URL, from its scheme; ConfigError if nobody provides it."""
    try:
        return urls.kind_of(url)
    except ValueError as exc:
        raise ConfigError(f"brokers: give {exc}") from None


def connect(
    name: str,
    url: str,
    *,
    report: Report,
    on_change: Callable[[], None],
    options: PublishOptions,
    **extra: Any,
) -> Publisher:
    """A publisher for the broker at `url`, not yet connected. Its module is imported only now."""
    kind = kind_of(url)
    if kind in KINDS.values():
        factory = import_module(f"delaybridge.publish.{_ROOMS.get(kind, kind)}").publisher
    else:
        (entry,) = entry_points(group=ENTRY_POINTS, name=kind)
        factory = entry.load()
    made: Publisher = factory(
        name, url, report=report, on_change=on_change, options=options, **extra
    )
    return made


def check_brokers(settings: Settings, kinds: Iterable[str] | None = None) -> None:
    """ConfigError, a line for each fault, if a worker could not use a broker's URL.

    Connects to nothing. kinds: only these. A third party's publisher is found, but not made.
    """
    options = PublishOptions.of(settings.publish)
    faults = []
    for name, url in settings.brokers.items():
        try:
            kind = kind_of(url)
            if kind in KINDS.values() and (kinds is None or kind in kinds):
                connect(name, url, report=_nowhere, on_change=_nowhere, options=options)
        except ConfigError as exc:
            faults.append(str(exc))
    if faults:
        raise ConfigError("\n".join(faults))


def check_options(name: str, given: Iterable[str], known: Iterable[str], what: str) -> None:
    """ConfigError if the broker's URL has an option that is not among those known."""
    for option in given:
        if option not in (names := sorted(known)):
            near = difflib.get_close_matches(option, names, n=1)
            few = f"; known are {', '.join(names)}" if len(names) < _FEW else ""
            remedy = f"did you mean {near[0]}?" if near else f"leave it out{few}"
            text = f"{printable(option)[:_SHOWN_CHARS]!r} is not an option of {what}; {remedy}"
            raise ConfigError(f"brokers.{name}: {text}")


def read_password(name: str, file: PasswordFile) -> str:
    """The broker's password; ConfigError if the file cannot be read."""
    try:
        return file.read()
    except ValueError as exc:
        raise ConfigError(f"brokers.{name}: {exc}; correct the path or its rights") from None


def _nowhere(*_: object) -> None:
    """A publisher that is never connected reports nothing."""
