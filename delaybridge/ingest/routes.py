"""Routes (from `settings.routes`), and the destinations that a header may name instead."""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase

from delaybridge.errors import MessageError
from delaybridge.message import Destination
from delaybridge.settings.routes import EXCHANGE_TYPES, SUFFIX, Route, parse_route, topics_pattern

__all__ = ["EXCHANGE_TYPES", "SUFFIX", "AllowList", "Route", "parse_route", "topics_pattern"]


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
        elif not any(fnmatchcase(label, pattern) for pattern in self._patterns):
            why = f"{label} is not in the settings' ingest.destinations"
        else:
            return
        raise MessageError("destination_not_allowed", "delaybridge-destination", why)
