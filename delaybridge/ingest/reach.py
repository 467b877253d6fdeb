"""How far a source reaches: where its messages may go, and which pending ones they may change.

A header may name the source's own target and what `ingest.destinations` allows. A message may
cancel, replace or reschedule one that goes there, or where a rule of `ingest.trust` says. The
scripts check that, in one step with the change.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping

from delaybridge.errors import MessageError
from delaybridge.ingest.globs import fits
from delaybridge.ingest.routes import Route
from delaybridge.message import Destination

_ANY = "*"
_MAGIC = re.compile(r"([!-/:-@\[-`{-~])")  # these may be special in a Lua pattern


class AllowList:
    """Destinations that a `delaybridge-destination` header may name: labels, `*` for any text."""

    def __init__(self, patterns: Iterable[str]) -> None:
        self._patterns = tuple(patterns)

    def check(self, destination: Destination, route: Route) -> None:
        """MessageError unless a message of this route may go there."""
        if (destination.broker, destination.address) == (route.broker, route.target):
            return
        label = destination.label
        if destination.kind != route.kind:
            why = f"{label} is of kind {destination.kind}; the message came from {route.kind}"
        elif not any(fits(label, pattern) for pattern in self._patterns):
            why = f"{label} is not in the settings' ingest.destinations"
        else:
            return
        raise MessageError("destination_not_allowed", "delaybridge-destination", why)


def reach_of(
    route: Route, kinds: Mapping[str, str], destinations: Iterable[str], trust: Iterable[str]
) -> str:
    """A JSON list of the destinations of the messages a source may change: of each the Lua patterns
    of its parts, which follow each other. In one pattern each `*` would multiply the cost.

    kinds: name -> kind of the configured brokers. destinations: labels, `*` for any text, of the
    source's own kind of broker. trust: rules SOURCE=DESTINATION, with `*` too, of any kind.
    """
    own = str(Destination(route.broker, route.kind, route.target))
    patterns = [[f"^{_literal(own)}" + ("" if route.kind == "rabbitmq" else "$")]]
    for label in destinations:
        patterns += _patterns(label, {n: kind for n, kind in kinds.items() if kind == route.kind})
    for rule in trust:
        source, _, label = rule.partition("=")
        if fits(route.source, source) or fits(str(route), source):
            patterns += [[]] if label == _ANY else _patterns(label, kinds)
    return json.dumps(patterns)


def _patterns(label: str, kinds: Mapping[str, str]) -> Iterator[list[str]]:
    """The parts for each broker that a label may mean."""
    named, _, address = label.partition(":")
    for broker, kind in kinds.items():
        if fits(broker, named):
            yield [f"^{_literal(broker)}:", *_addressed(address or _ANY, kind)]


def _addressed(address: str, kind: str) -> Iterator[str]:
    """An exchange means all its routing keys; a queue, after a slash, only itself."""
    is_exchange = kind == "rabbitmq" and "/" not in address
    any_, end = ("[^/]", "/") if is_exchange else (".", "$")
    first, *others = map(_literal, address.split(_ANY))
    yield f"^{first}" + ("" if others else end)
    # The first place will do for each part, but the last one is at the end.
    yield from (f"^{any_}-{part}" for part in others[:-1])
    yield from (f"^{any_}*{part}{end}" for part in others[-1:])


def _literal(text: str) -> str:
    return _MAGIC.sub(r"%\1", text)
