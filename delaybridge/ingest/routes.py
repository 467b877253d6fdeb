"""Routes: which delay exchanges and delay topics are read, and where their messages go.

Settings, `config check` and ingest all parse them here.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from delaybridge.errors import ConfigError, printable
from delaybridge.settings.urls import server_of

SUFFIX = ".delay"
INTAKE = ".intake"
SETTINGS = {"rabbitmq": "ingest.exchanges", "kafka": "ingest.topics"}
_FORM = "[BROKER:]NAME.delay, or [BROKER:]NAME=TARGET"
_SEVERAL = (
    'each by itself: in a file ["a.delay", "b.delay"], in the environment a.delay,b.delay, on the '
    "command line an option for each"
)
_NO_NAME = re.compile(r"[\s,'\"\[\]{}]")
_TOPIC = re.compile(r"[A-Za-z0-9._*-]+")
_TOPIC_CHARS = 249
_STARS = 2  # of a pattern: each multiplies what a topic that does not fit costs the consumer
_EXCHANGE_BYTES = 255
_SOURCE_BYTES = _EXCHANGE_BYTES - len(".expired")
_SHOWN_CHARS = 100


class Route(NamedTuple):
    """One delay exchange or delay topic. target: where its messages go, on the same broker.

    For topics, source may be a pattern with `*`; target is then empty and follows from each topic's
    name. intake: the queue that is read for an exchange that a front made, which is not named as
    the exchange.
    """

    broker: str
    kind: str
    source: str
    target: str
    intake: str = ""

    def __str__(self) -> str:
        return f"{self.broker}:{self.source}"

    @property
    def queue(self) -> str:
        """The intake queue. The names of all that belongs to it begin with this."""
        return self.intake or self.source

    @property
    def is_fronted(self) -> bool:
        """Whether a front made the exchange, as a client declared it."""
        return bool(self.intake)

    @property
    def is_pattern(self) -> bool:
        """Whether source matches any number of topics."""
        return self.kind == "kafka" and "*" in self.source

    def for_topic(self, topic: str) -> Route:
        """The route of one topic that the pattern found."""
        return self._replace(source=topic, target=topic.removesuffix(SUFFIX))

    def matches(self, name: str) -> bool:
        """Whether an exchange or topic of its broker is read by this route."""
        if not self.is_pattern:
            return name == self.source
        return re.match(topics_pattern(self.source), name) is not None


def fronted(broker: str, exchange: str, suffix: str) -> Route:
    """The route of an exchange that a front makes. suffix: of the exchange that has its bindings;
    ConfigError if no exchange can have such a name."""
    target = exchange + suffix
    route = Route(broker, "rabbitmq", exchange, target, target + INTAKE)
    if not suffix or len(f"{route.queue}.expired".encode()) > _EXCHANGE_BYTES:
        most = _EXCHANGE_BYTES - len(f"{suffix}{INTAKE}.expired".encode())
        raise ConfigError(f"a delayed exchange's name has at most {most} bytes here")
    return route


def topics_pattern(source: str) -> str:
    """A pattern as the Kafka consumer takes it: a regular expression that begins with ^."""
    return "^" + re.escape(source).replace(r"\*", ".*") + "$"


def parse_routes(
    texts: Iterable[str], kinds: Mapping[str, str], kind: str, brokers: Mapping[str, str] = {}
) -> list[Route]:
    """Parse the routes of all delay exchanges, or of all delay topics; ConfigError.

    kinds: name -> kind of the configured brokers. A pattern without a broker's name is for every
    broker of the kind. No name may be given twice, and no message may go in a loop, even
    if two of the `brokers` (name -> URL) are one server.
    """
    routes = [
        parse_route(each, kinds, kind) for text in texts for each in _expanded(text, kinds, kind)
    ]
    times = Counter(map(str, routes))
    servers = {name: server_of(url) for name, url in brokers.items()}
    near = defaultdict[str, list[Route]](list)
    for route in routes:
        near[servers.get(route.broker, route.broker)].append(route)
    for route in routes:
        if times[str(route)] > 1:
            raise ConfigError(f"{SETTINGS[kind]}: {str(route)!r} is given twice; remove one")
    for here in near.values():
        if way := " -> ".join(_circle(here)):
            raise ConfigError(
                f"{SETTINGS[kind]}: {way}: messages would loop forever; change a target"
            )
    return routes


def _expanded(text: str, kinds: Mapping[str, str], kind: str) -> list[str]:
    """A pattern without a broker's name, once for each broker of the kind; else the text itself."""
    if kind != "kafka" or "*" not in text or ":" in text:
        return [text]
    return [f"{name}:{text}" for name, found in kinds.items() if found == kind]


def parse_route(text: str, kinds: Mapping[str, str], kind: str) -> Route:
    """Parse one route as the settings and the command line write it; ConfigError."""
    where = f"{SETTINGS[kind]}: '{printable(text[:_SHOWN_CHARS])}'"
    if ";" in text:
        raise ConfigError(f"{where}: nothing follows a ';'; write {_FORM}")
    named, _, target = (part.strip() for part in text.partition("="))
    broker, source = _broker_of(named, kinds, kind, where)
    if not target and source.endswith(SUFFIX):
        target = source.removesuffix(SUFFIX)
    is_pattern = kind == "kafka" and "*" in source
    for name, most in ((source, _SOURCE_BYTES), (target, _EXCHANGE_BYTES)):
        if fault := _fault(name, kind, most):
            raise ConfigError(f"{where}: {fault}")
    if not source or not target or (is_pattern and not source.endswith(SUFFIX)):
        raise ConfigError(f"{where} is not accepted; write {_FORM}")
    if kind == "kafka" and "*" in (target if not is_pattern else target.replace("*", "")):
        raise ConfigError(f"{where}: a target is one topic; write {_FORM}")
    return Route(broker, kind, source, "" if is_pattern else target)


def _fault(name: str, kind: str, most: int) -> str:
    """Why no exchange or topic can have this name; '' if it can."""
    if _NO_NAME.search(name):
        return f"a name has no blanks, commas, quotes or brackets; write {_SEVERAL}"
    if kind == "kafka":
        if name and (not _TOPIC.fullmatch(name) or name in (".", "..")):
            return "a topic's name has letters, digits, '.', '_' and '-'"
        if name.count("*") > _STARS:
            return f"a pattern has at most {_STARS} '*'; write several patterns"
        return f"a topic's name has at most {_TOPIC_CHARS} characters" * (len(name) > _TOPIC_CHARS)
    if not name.isprintable():
        return "a name is printable UTF-8"
    if len(name.encode()) > most:
        return f"a name has at most {most} bytes here"
    if name.startswith("amq.") and most == _SOURCE_BYTES:
        return "names that begin with amq. are RabbitMQ's own; choose another"
    return ""


def _broker_of(named: str, kinds: Mapping[str, str], kind: str, where: str) -> tuple[str, str]:
    """The broker that `[BROKER:]NAME` means, and the name."""
    known = [name for name, found in kinds.items() if found == kind]
    listed = f"configured of kind {kind}: {', '.join(known) or 'none'}"
    broker, colon, name = named.partition(":")
    if not colon:
        if len(known) != 1:
            raise ConfigError(f"{where}: which broker? {listed}; write {_FORM}")
        return known[0], named
    if broker not in kinds:
        hint = f". If the colon belongs to the name: {known[0]}:{printable(named)}" if known else ""
        raise ConfigError(f"{where}: no broker is named {printable(broker)!r}; {listed}{hint}")
    if kinds[broker] != kind:
        raise ConfigError(f"{where}: broker {broker} is of kind {kinds[broker]}")
    return broker, name


def _circle(routes: Sequence[Route]) -> list[str]:
    """The stops of a message of one of these routes that comes back to a stop; else empty.

    routes: all of one server. A pattern only makes names shorter, so every circle holds a route
    that is not a pattern.
    """
    named = {route.source: route for route in reversed(routes) if not route.is_pattern}
    patterns = [route for route in routes if route.is_pattern]
    for route in routes:
        way = dict.fromkeys([route.source])
        for name in () if route.is_pattern else _way(route, named, patterns):
            if name in way:
                return [*way, name]
            way[name] = None
    return []


def _way(route: Route, named: Mapping[str, Route], patterns: Sequence[Route]) -> Iterator[str]:
    while True:
        yield route.target
        at = route.target
        found = named.get(at) or next((each for each in patterns if each.matches(at)), None)
        if found is None:
            return
        route = found.for_topic(at) if found.is_pattern else found
