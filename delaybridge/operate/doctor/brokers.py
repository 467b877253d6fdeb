"""Checks of the brokers: whether they answer, their limits, their delay exchanges."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from delaybridge import errors
from delaybridge.operate.doctor.finding import FAIL, OK, WARN, Finding
from delaybridge.operate.doctor.sources import sources_of

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

    options, about = (
        publish.PublishOptions.from_settings(settings.publish, settings.http),
        f"broker {name}",
    )
    nothing: Any = lambda *_: None  # noqa: E731
    try:
        publisher = publish.connect(name, url, report=nothing, on_change=nothing, options=options)
    except errors.ConfigError as exc:
        return [Finding(FAIL, about, str(exc).removeprefix(f"brokers.{name}: "))]
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            await publisher.connect()
            asked = getattr(publisher, "limits", None)  # not every kind of broker has limits
            limits = {} if asked is None else await asked()
        return [Finding(OK, about, publisher.describe()), *_too_small(limits, settings, about)]
    except TimeoutError:
        what = f"no answer within {CONNECT_TIMEOUT_S:.0f} s ({url})"
        return [Finding(FAIL, about, what, "Check host, port and firewall")]
    except errors.PublishError as exc:
        return [Finding(FAIL, about, f"{str(exc).removeprefix(f'{name}: ')} ({url})")]
    finally:
        await publisher.close(_CLOSE_TIMEOUT_S)


def _too_small(limits: Mapping[str, int], settings: Settings, about: str) -> Iterator[Finding]:
    """A broker's limits below ours: it would refuse messages that we accept, when they are due."""
    ours = settings.limits
    whole, headers = ours.body_bytes + ours.headers_bytes, ours.headers_bytes + _PROPERTIES_BYTES
    if limits.get("record", whole) < whole:
        what = f"it takes records of up to {limits['record']:,} bytes, limits.body_bytes and "
        what += f"headers_bytes allow {whole:,}"
        yield Finding(WARN, about, what, "Lower them, or raise message.max.bytes")
    if 0 < limits.get("frame", 0) < headers:
        what = f"its frame_max is {limits['frame']:,} bytes, headers and properties may take "
        what += f"{headers:,}"
        yield Finding(WARN, about, what, "Raise frame_max, or lower limits.headers_bytes")


def delay_exchanges(settings: Settings, found: Stats | None) -> Iterator[Finding]:
    """Find bindings and policies that harm delay exchanges, or say that they cannot be seen.

    Checks the exchanges that the settings name, those that fronts have made and those that ingest
    processes read. Faults that these have announced are not repeated.
    """
    announced = [source for source, _ in sources_of(found)] if found else []
    try:
        routes = _exchange_routes(settings, announced, getattr(found, "fronted", ()))
    except errors.ConfigError as exc:
        yield Finding(FAIL, "ingest", str(exc))
        return
    if not routes:
        return
    from delaybridge.ingest.process import options_of
    from delaybridge.ingest.rabbitmq.watch import surveyed

    told = {f"{source.source}: {fault}" for source in announced for fault in source.faults}
    for look in asyncio.run(surveyed(options_of(settings, routes).values())):
        faults = [f"{look.route}: {fault}" for fault in look.faults]
        yield from (Finding(FAIL, "ingest", fault) for fault in faults if fault not in told)
        if not faults:
            yield _without_faults(look)


def _without_faults(look: Survey) -> Finding:
    """Why a source has no faults: perhaps they cannot be seen, or it was deleted."""
    route = look.route
    if look.unseen:
        what = f"{route}: whether others are bound to {route.source}, and whether a policy "
        what += f"deletes its queues, cannot be seen: {look.unseen}"
        remedy = "Set ingest.management. Or forbid bindings, which need `read` on the exchange: "
        remedy += "give that to ingest alone, as a user of its own, with these "
        remedy += f"rights and no others: {look.rights}"
        return Finding(WARN, "ingest", what, remedy)
    if look.left:
        return Finding(WARN, "ingest", f"{route}: {look.left}")
    what = f"{route}: nothing else is bound to {route.source}, no policy deletes its queues"
    return Finding(OK, "ingest", what)


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
