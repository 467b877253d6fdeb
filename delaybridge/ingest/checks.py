"""The checks of ingest's settings that need more than one of them: one line for each fault."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from delaybridge.errors import ConfigError
from delaybridge.ingest.globs import fits
from delaybridge.ingest.routes import SETTINGS as ROUTE_SETTINGS
from delaybridge.ingest.routes import Route, parse_routes
from delaybridge.message import PULL
from delaybridge.settings.urls import kinds_of

if TYPE_CHECKING:
    from delaybridge.settings.settings import Settings


def contradictions(settings: Settings) -> Iterator[str]:
    """Every fault among settings whose values are valid by themselves."""
    kinds = kinds_of(settings.brokers)
    yield from _routes(settings, kinds)
    yield from _destinations(settings, kinds)


def _routes(settings: Settings, kinds: dict[str, str]) -> Iterator[str]:
    """Routes that ingest would refuse; a kind without a broker here may have one elsewhere."""
    for kind, path in ROUTE_SETTINGS.items():
        try:
            _sources(settings, kinds, kind)
        except ConfigError as exc:
            yield f"{settings.sources()[path]}: {exc}"


def _sources(settings: Settings, kinds: dict[str, str], kind: str) -> list[Route]:
    known = kinds if kind in kinds.values() else {kind: kind, **kinds}
    texts = dict(settings.items())[ROUTE_SETTINGS[kind]]
    return parse_routes(texts, known, kind, settings.brokers)


def idle_tenant_rules(settings: Settings) -> Iterator[str]:
    """A warning for each rule of `ingest.tenants` that fits no source, if the settings name any."""
    kinds = kinds_of(settings.brokers)
    routes = [route for kind in ROUTE_SETTINGS for route in _sources(settings, kinds, kind)]
    for rule in settings.ingest.tenants if routes else ():
        named = rule.partition("=")[0]
        if not any(_may_mean(named, route) for route in routes):
            yield f"ingest.tenants: {rule!r} fits no source in ingest.exchanges or ingest.topics"


def _may_mean(named: str, route: Route) -> bool:
    """Whether a rule fits a source, or one that its pattern may find."""
    return any(
        fits(text, named) or (route.is_pattern and ("*" in named or fits(named, text)))
        for text in (route.source, str(route))
    )


def _destinations(settings: Settings, kinds: dict[str, str]) -> Iterator[str]:
    """Destinations that no message can name, or of a kind of broker that no source is of."""
    values, path = dict(settings.items()), "ingest.destinations"
    read = [kind for kind, sources in ROUTE_SETTINGS.items() if values[sources]]
    for text in settings.ingest.destinations:
        named, colon, address = text.partition(":")
        known = {**kinds, PULL: PULL}
        meant = {kind for name, kind in known.items() if colon and fits(name, named)}
        where = f"{settings.sources()[path]}: {path}: got {text!r}"
        if colon and not address:
            yield f"{where}, which names no exchange, queue or topic; * is any"
        elif "rabbitmq" in meant and "/" in address[1:]:
            yield f"{where}; of RabbitMQ write EXCHANGE, which has all its routing keys, or /QUEUE"
        elif read and meant and meant.isdisjoint(read):
            yield (
                f"{where}, of kind {', '.join(sorted(meant))}; a message that is read from "
                f"{' or '.join(read)} goes to brokers of that kind only; leave it out"
            )
