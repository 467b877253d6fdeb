"""Which exchanges and topics are read, and where their messages go."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import NamedTuple

from delaybridge.errors import ConfigError, MessageError
from delaybridge.message import Destination

SUFFIX = ".delay"
EXCHANGE_TYPES = ("topic", "fanout", "headers", "direct")
_FORM = "[BROKER:]NAME.delay, or [BROKER:]NAME=TARGET; for an exchange also ;type=TYPE"


class Route(NamedTuple):
    """One delay exchange or delay topic. target: where its messages go, in the same broker.

    type: with which an exchange is declared that is not there yet. source may be a pattern with
    `*` for topics; then target is empty, and each topic gives its own.
    """

    broker: str
    kind: str
    source: str
    target: str
    type: str = EXCHANGE_TYPES[0]

    def __str__(self) -> str:
        return f"{self.broker}:{self.source}"

    @property
    def is_pattern(self) -> bool:
        """Whether source stands for any number of topics."""
        return self.kind == "kafka" and "*" in self.source

    def of(self, topic: str) -> Route:
        """The route of one topic that the pattern found."""
        return self._replace(source=topic, target=topic.removesuffix(SUFFIX))


def parse_route(text: str, kinds: Mapping[str, str], kind: str) -> Route:
    """A route as the settings and the command line write it; ConfigError says what is accepted.

    kinds: name -> kind of the configured brokers.
    """
    where = "ingest.exchanges" if kind == "rabbitmq" else "ingest.topics"
    main, *options = (part.strip() for part in text.split(";"))
    broker, colon, name = main.partition(":")
    if not colon or broker not in kinds:
        broker, name = _only_broker(kinds, kind, where), main
    elif kinds[broker] != kind:
        raise ConfigError(f"{where}: {text!r}: broker {broker} is of kind {kinds[broker]}")
    source, _, target = (part.strip() for part in name.partition("="))
    if not target and source.endswith(SUFFIX):
        target = source.removesuffix(SUFFIX)
    is_pattern = kind == "kafka" and "*" in source
    if not source or not target or (is_pattern and not source.endswith(SUFFIX)):
        raise ConfigError(f"{where}: {text!r} is not accepted; write {_FORM}")
    if source == target:
        raise ConfigError(f"{where}: {text!r} would go round in a circle; name another target")
    return Route(broker, kind, source, "" if is_pattern else target, _type(options, where, kind))


def _type(options: Iterable[str], where: str, kind: str) -> str:
    chosen = EXCHANGE_TYPES[0]
    for option in options:
        name, _, chosen = (part.strip() for part in option.partition("="))
        if kind != "rabbitmq" or name != "type" or chosen not in EXCHANGE_TYPES:
            raise ConfigError(f"{where}: {option!r}: allowed: type={'|'.join(EXCHANGE_TYPES)}")
    return chosen


def _only_broker(kinds: Mapping[str, str], kind: str, where: str) -> str:
    of_kind = [name for name, its in kinds.items() if its == kind]
    if len(of_kind) == 1:
        return of_kind[0]
    known = ", ".join(of_kind) or "none"
    raise ConfigError(f"{where}: which broker? configured of kind {kind}: {known}; write {_FORM}")


class AllowList:
    """Destinations that a `delaybridge-destination` header may name: labels, `*` for any text."""

    def __init__(self, patterns: Iterable[str]) -> None:
        self._patterns = tuple(patterns)

    def check(self, destination: Destination, route: Route) -> None:
        """Return if a message of this route may go there; MessageError otherwise."""
        if (destination.broker, destination.address) == (route.broker, route.target):
            return
        label = destination.label
        if destination.kind != route.kind:
            why = f"{label} is of kind {destination.kind}; the message came from {route.kind}"
        elif not any(fnmatchcase(label, pattern) for pattern in self._patterns):
            why = f"{label} is not in the settings' ingest.destinations"
        else:
            return
        raise MessageError("destination_not_allowed", "delaybridge-destination", why)


def topics_pattern(source: str) -> str:
    """A pattern as the Kafka consumer takes it: a regular expression that begins with ^."""
    return "^" + re.escape(source).replace(r"\*", ".*") + "$"
