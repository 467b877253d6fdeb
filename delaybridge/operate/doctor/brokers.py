"""Checks of the brokers: whether they answer, their limits, their delay exchanges."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from delaybridge import errors
from delaybridge.operate.troubles.finding import Finding, ok
from delaybridge.operate.troubles.listed import trouble
from delaybridge.operate.troubles.sources import sources_of
from delaybridge.store.protocol.record import first_word

if TYPE_CHECKING:
    from delaybridge.ingest.rabbitmq.watch import Survey
    from delaybridge.ingest.routes import Route
    from delaybridge.operate.notices.announcements import SourceInfo
    from delaybridge.operate.views.stats import Stats
    from delaybridge.settings.settings import Settings

CONNECT_TIMEOUT_S = 10.0
_CLOSE_TIMEOUT_S = 1.0
_PROPERTIES_BYTES = 4096  # about the most that properties take in a frame


async def brokers(settings: Settings) -> list[Finding]:
    """Every broker, tried at the same time."""
    tried = [_broker(name, url, settings) for name, url in settings.brokers.items()]
    return [finding for each in await asyncio.gather(*tried) for finding in each]


async def _broker(name: str, url: str, settings: Settings) -> list[Finding]:
    from delaybridge import publish

    options = publish.PublishOptions.from_settings(settings.publish, settings.http)
    nothing: Any = lambda *_: None  # noqa: E731
    try:
        publisher = publish.connect(name, url, report=nothing, on_change=nothing, options=options)
    except errors.ConfigError as exc:
        why = str(exc).removeprefix(f"brokers.{name}: ")
        return [trouble("broker_misconfigured", why, broker=name)]
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            await publisher.connect()
            asked = getattr(publisher, "limits", None)  # not every kind of broker has limits
            limits = {} if asked is None else await asked()
        fact = ok(f"broker {name}", publisher.describe())
        return [fact, *_too_small(limits, settings, name)]
    except TimeoutError:
        why = f"no answer within {CONNECT_TIMEOUT_S:.0f} s"
        return [trouble("broker_unreachable", broker=name, why=why, url=url)]
    except errors.PublishError as exc:
        why = str(exc).removeprefix(f"{name}: ")
        if first_word(why) == "login_refused":
            return [trouble("broker_refuses_login", f"{why} ({url})", broker=name)]
        return [trouble("broker_unreachable", broker=name, why=why, url=url)]
    finally:
        await publisher.close(_CLOSE_TIMEOUT_S)


def _too_small(limits: Mapping[str, int], settings: Settings, name: str) -> Iterator[Finding]:
    """A broker's limits below ours: it would refuse messages that we accept, when they are due."""
    ours = settings.limits
    whole, headers = ours.body_bytes + ours.headers_bytes, ours.headers_bytes + _PROPERTIES_BYTES
    if limits.get("record", whole) < whole:
        what = f"it takes records of up to {limits['record']:,} bytes, limits.body_bytes and "
        what += f"headers_bytes allow {whole:,}"
        remedy = "Lower them, or raise message.max.bytes of the topic"
        yield trouble("broker_limit_low", what, remedy=remedy, broker=name)
    if 0 < limits.get("frame", 0) < headers:
        what = f"its frame_max is {limits['frame']:,} bytes, headers and properties may take "
        what += f"{headers:,}"
        remedy = "Raise frame_max at the broker, or lower limits.headers_bytes"
        yield trouble("broker_limit_low", what, remedy=remedy, broker=name)


def delay_exchanges(settings: Settings, found: Stats | None) -> Iterator[Finding]:
    """Find bindings and policies that harm delay exchanges, or say that they cannot be seen.

    Checks the exchanges that the settings name, those that fronts have made and those that ingest
    processes read. Faults that these have announced are not repeated.
    """
    announced = [source for source, _ in sources_of(found)] if found else []
    try:
        routes = _exchange_routes(settings, announced, getattr(found, "fronted", ()))
    except errors.ConfigError as exc:
        yield trouble("ingest_misconfigured", str(exc))
        return
    if not routes:
        return
    from delaybridge.ingest.process import options_of
    from delaybridge.ingest.rabbitmq.watch import surveyed

    told = {f"{source.source}: {fault}" for source in announced for fault in source.faults}
    for look in asyncio.run(surveyed(options_of(settings, routes).values())):
        for fault in look.faults:
            if f"{look.route}: {fault}" not in told:
                yield trouble("source_fault", source=look.route, fault=fault)
        if not look.faults:
            yield _without_faults(look)


def _without_faults(look: Survey) -> Finding:
    """Why a source has no faults: perhaps they cannot be seen, or it was deleted."""
    route = look.route
    if look.unseen:
        what = f"{route}: whether others are bound to {route.source}, and whether a policy "
        what += f"deletes its queues, cannot be seen: {look.unseen}"
        remedy = "Set ingest.management, or at the broker: rabbitmq-plugins enable "
        remedy += "rabbitmq_management. Or forbid bindings, which need `read` on the exchange: "
        remedy += "give that to ingest alone, as a user of its own, with these "
        remedy += f"rights and no others: {look.rights}"
        return trouble("source_unguarded", what, remedy=remedy)
    if look.left:
        return trouble("source_left", f"{route}: {look.left}")
    what = f"{route}: nothing else is bound to {route.source}, no policy deletes its queues"
    return ok("ingest", what)


def _exchange_routes(
    settings: Settings, announced: list[SourceInfo], fronted: Sequence[Route]
) -> list[Route]:
    """The delay exchanges that the settings name, that fronts have made, and that are read."""
    from delaybridge.ingest.routes import Route, parse_routes
    from delaybridge.settings.urls import kinds_of

    kinds = kinds_of(settings.brokers)
    routes = {str(r): r for r in parse_routes(settings.ingest.exchanges, kinds, "rabbitmq")}
    routes |= {str(r): r for r in fronted if kinds.get(r.broker) == "rabbitmq"}
    for source in announced:
        broker, _, exchange = source.source.partition(":")
        if kinds.get(broker) == "rabbitmq":
            target = source.target.removeprefix(f"{broker}:")
            routes.setdefault(source.source, Route(broker, "rabbitmq", exchange, target))
    return list(routes.values())
