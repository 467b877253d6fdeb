"""Publishing: the port between the scanner and the brokers, and a room for each kind of broker.

A publisher takes deliveries in batches, hands them to its broker without waiting in between, and
reports the outcome of each exactly once, in the order in which the broker answers:

- CONFIRMED: the broker has it, with the durability that was asked for.
- REFUSED: certainly not delivered, with the reason.
- UNKNOWN: everything else (nack, time-out, lost connection, closed channel). It is never treated as
  one of the other two.

docs/delivery.md lists which client error gives which outcome, with the sources.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol, Self

from delaybridge import extensions
from delaybridge.errors import ConfigError, nearest, printable
from delaybridge.message import Delivery, Destination
from delaybridge.settings import urls
from delaybridge.settings.password_file import PasswordFile
from delaybridge.settings.urls import KINDS

if TYPE_CHECKING:
    from delaybridge.settings.sections import HttpSettings, PublishSettings


class Verdict(StrEnum):
    """How one publish ended."""

    CONFIRMED = "confirmed"
    REFUSED = "refused"  # certainly not delivered
    UNKNOWN = "unknown"  # may have been delivered


class Fault(StrEnum):
    """Where the fault is if a delivery was not confirmed. The scanner acts on it."""

    MESSAGE = "message"  # this message: count an attempt, back off
    DESTINATION = "destination"  # its exchange or topic refuses everything now: open its circuit
    BROKER = "broker"  # the broker cannot be reached or takes nothing now: park, wait for it


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one publish ended.

    reason: its first word names the kind of failure, as in `unroutable: 312 NO_ROUTE`. fault: what
    the scanner should hold back; without meaning if the verdict is CONFIRMED. wait_ms: the receiver
    asks not to try this message again earlier. answered: the destination itself found fault with
    this message alone, so it takes others: its circuit closes.
    """

    verdict: Verdict
    reason: str = ""
    fault: Fault = Fault.MESSAGE
    wait_ms: int = 0
    answered: bool = False


CONFIRMED = Outcome(Verdict.CONFIRMED)
Report = Callable[[Sequence[Delivery], Outcome], None]


class Publisher(Protocol):
    """One connection to one configured broker, on the worker's event loop.

    A publisher reconnects by itself, with back-off, and never stops trying; each change of
    `unavailable` calls `on_change`.

    While `unavailable` is set, and after `close` was called, deliveries are reported REFUSED with
    Fault.BROKER: they were never written. No other refusal has that fault. UNKNOWN has Fault.BROKER
    after a lost connection, and Fault.DESTINATION if the destination refuses everything.
    """

    @property
    def name(self) -> str:
        """The broker's name in the settings."""

    @property
    def unavailable(self) -> str | None:
        """The reason why the broker takes nothing now; None while it does."""

    async def connect(self) -> None:
        """Try once to connect and warm up.

        PublishUnavailable: it failed. The publisher keeps trying.
        """

    def publish(self, deliveries: Sequence[Delivery]) -> None:
        """Hand a batch to the broker, in this order.

        Does not block, and raises nothing because of a message. Outcomes are reported in a later
        turn of the loop, never from inside this call; one report may cover many deliveries.
        """

    async def check(self, destination: Destination) -> str | None:
        """The reason why this destination would refuse a message now; None if none is known."""

    def describe(self) -> str:
        """One line for people: broker, version, encryption. Without secrets."""

    async def close(self, timeout_s: float) -> None:
        """Wait at most `timeout_s` seconds for confirms, report the rest UNKNOWN, disconnect."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpOptions:
    """Settings of the publisher for HTTP, as the section [http] has them."""

    allow_private: bool = False
    secret_file: str = ""
    timeout_s: float = 10.0
    connections: int = 64
    proxy: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishOptions:
    """Settings common to all publishers.

    confirm_timeout_s: seconds until a delivery without an answer is UNKNOWN. heartbeat_s,
    blocked_connection_timeout_s: for RabbitMQ. linger_ms: how long a Kafka producer waits
    for more records. http: for HTTP.
    """

    confirm_timeout_s: float = 20.0
    heartbeat_s: int = 15
    blocked_connection_timeout_s: float = 20.0
    linger_ms: int = 0
    http: HttpOptions = HttpOptions()

    @classmethod
    def from_settings(cls, settings: PublishSettings, http: HttpSettings) -> Self:
        """The options that the sections [publish] and [http] set."""
        return cls(
            confirm_timeout_s=settings.confirm_timeout_s,
            heartbeat_s=settings.heartbeat_s,
            blocked_connection_timeout_s=settings.blocked_connection_timeout_s,
            linger_ms=settings.linger_ms,
            http=HttpOptions(**http.model_dump()),
        )


_SHOWN_CHARS, _LISTED = 40, 20  # of an option; most known options that an error lists
_OWN = frozenset({"rabbitmq", "kafka", "memory"})  # all others plug in by an entry point


def kind_of(url: str) -> str:
    """The kind of broker that a URL's scheme names; ConfigError if no publisher provides it."""
    try:
        return urls.kind_of(url)
    except ValueError as exc:
        raise ConfigError(f"brokers: give {exc}") from None


def connect(
    name: str, url: str, *, report: Report, on_change: Callable[[], None], options: PublishOptions
) -> Publisher:
    """A publisher for the broker at `url`, not connected yet. Imports its module on demand.

    One of another package is guarded: whatever it does, each delivery gets an outcome.

    name: of the broker in the settings. report: gets the outcomes. on_change: called when
    `unavailable` changes. ConfigError if the URL cannot be used.
    """
    kind = kind_of(url)

    def make(factory: Any, report: Report) -> Publisher:
        made: Publisher = factory(name, url, report=report, on_change=on_change, options=options)
        return made

    if kind in _OWN:
        return make(import_module(f"delaybridge.publish.{kind}").publisher, report)
    try:
        factory = extensions.load(extensions.PUBLISHERS, kind)
    except LookupError as exc:
        what = f"{exc}; install delaybridge with its part delaybridge.publishers"
        raise ConfigError(f"brokers.{name}: {what}") from None
    if kind in KINDS.values():
        return make(factory, report)
    guarded = import_module("delaybridge.publish.guarded")  # it needs this module
    found: Publisher = guarded.GuardedPublisher(
        partial(make, factory), report, options.confirm_timeout_s
    )
    return found


def check_brokers(
    brokers: Mapping[str, str], options: PublishOptions, kinds: Iterable[str] | None = None
) -> None:
    """ConfigError, with a line per fault, if a worker could not use a broker's URL.

    Connects to nothing. kinds: check only these. A third party's publisher is looked up, not made.
    """
    faults = []
    for name, url in brokers.items():
        try:
            kind = kind_of(url)
            if kind in KINDS.values() and (kinds is None or kind in kinds):
                connect(name, url, report=_nowhere, on_change=_nowhere, options=options)
        except ConfigError as exc:
            faults.append(str(exc))
    if faults:
        raise ConfigError("\n".join(faults))


def check_options(name: str, given: Iterable[str], known: Iterable[str], what: str) -> None:
    """ConfigError if the broker's URL has an unknown option; names the nearest known one."""
    for option in given:
        if option not in (names := sorted(known)):
            near = nearest(option, names)
            few = f"; known are {', '.join(names)}" if len(names) < _LISTED else ""
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
    """For a publisher that is never connected, and so reports nothing."""
