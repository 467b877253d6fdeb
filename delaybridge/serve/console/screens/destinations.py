"""Destinations and brokers: what waits for each, how fast it goes, how it is steered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from delaybridge.operate.views.described import place_data
from delaybridge.operate.views.series import Recent, Series
from delaybridge.serve.console.page import Pages
from delaybridge.serve.console.rendering import link, segment, spark
from delaybridge.serve.console.screens.overview import broker_lines
from delaybridge.serve.console.snapshot import Snapshot, snapshots_of
from delaybridge.serve.shared.call import Call
from delaybridge.settings.sections import RetrySettings
from delaybridge.settings.urls import redact_text
from delaybridge.store.namespace.rules import label_of, places_of

_POINTS = 60
_SHOWN_RETRIES = 8
pages = Pages()


class PlaceRates(NamedTuple):
    """Messages a second over the last minute. hour: how many were published in the last hour;
    spark: their polyline's points. What is scheduled is not counted by destination.
    """

    published: float = 0.0
    retried: float = 0.0
    hour: int = 0
    spark: str = ""


@pages("/destinations", "Destinations")
async def destinations(call: Call) -> dict[str, Any]:
    """Every destination that has messages, a rule, or trouble."""
    snapshot = await snapshots_of(call.site).latest()
    found = await call.site.client.destinations()
    minutes = await call.site.client.series("1m")
    return {
        "api": "/v1/destinations",
        "places": [place_data(place, found) for place in found.places],
        "more": found.more,
        "rates": rates_by_place(snapshot.recent, minutes),
        "still": PlaceRates(),
        "late_ms": lateness(snapshot),
        "now": found.now_ms,
    }


@pages("/destinations/{destination}", "Destination", name="destination")
async def destination(call: Call) -> dict[str, Any]:
    """One destination: its numbers, its rule, what is wrong with it."""
    name, kinds = call.path["destination"], call.site.client.kinds
    snapshot = await snapshots_of(call.site).latest()
    assert snapshot.stats is not None
    found = await call.site.client.destinations(name)
    place = place_data(found.places[0], found)
    rates = rates_by_place(snapshot.recent, await call.site.client.series("1m"))
    at = place["destination"]
    counted = label_of(places_of(at, kinds))
    in_force = _with_settings(place["in_force"], call.site.settings.retry)
    waits = _waits({key: each["value"] for key, each in in_force.items()})
    return {
        "api": f"/v1/destinations/{segment(name)}",
        "name": name,
        "place": place,
        "counted": counted,
        "rates": _sum([each for of, each in rates.items() if counted in places_of(of, kinds)]),
        "late_ms": max(
            (ms for of, ms in lateness(snapshot).items() if counted in places_of(of, kinds)),
            default=None,
        ),
        "errors": [e for e in snapshot.stats.retrying if at in places_of(e.destination, kinds)],
        "troubles": [e for e in snapshot.stats.troubles if at in places_of(e.destination, kinds)],
        "in_force": in_force,
        "waits": waits[:_SHOWN_RETRIES],
        "further_waits": len(waits) > _SHOWN_RETRIES,
        "links": {
            "messages": link("/messages", destination=name),
            "export": link("/v1/messages:export", destination=name),
            "dead": link("/dead", destination=name),
            "publish": link("/publish", destination=name),
            "horizon": link("/horizon", destination=name),
        },
    }


def lateness(snapshot: Snapshot) -> dict[str, float]:
    """By exchange or topic, as workers count: how late 99 % of its messages were at most, in the
    last minute, at the worker where it was most."""
    found: dict[str, float] = {}
    for worker in snapshot.stats.workers if snapshot.stats else ():
        for place, late_ms in worker.pace.late_ms.items():
            found[place] = max(late_ms, found.get(place, 0.0))
    return found


@pages("/brokers", "Brokers")
async def brokers(call: Call) -> dict[str, Any]:
    """What the workers say of each broker, and how much goes to it."""
    snapshot = await snapshots_of(call.site).latest()
    assert snapshot.stats is not None
    urls = {name: redact_text(url) for name, url in call.site.settings.brokers.items()}
    return {
        "api": "/v1/workers",
        "lines": broker_lines(call, snapshot.stats),
        "line_of": snapshots_of(call.site).sparks.line,
        "urls": urls,
        "rates": _by_broker(snapshot),
        "said": [(each.name, each.said.brokers or {}) for each in snapshot.stats.workers],
        "troubles": snapshot.stats.troubles,
    }


def rates_by_place(recent: Recent | None, minutes: Series) -> dict[str, PlaceRates]:
    """By exchange or topic, as workers count."""
    found: Mapping[str, Mapping[str, float]] = {}
    if recent is not None and recent.rates[1].covered_s:
        found = recent.rates[1].destinations
    names = {*found, *(name for point in minutes.points if point for name in point.destinations)}
    return {name: _rates(found.get(name, {}), _published(minutes, name)) for name in names}


def _rates(per_s: Mapping[str, float], published: Sequence[int]) -> PlaceRates:
    hour = sum(published)
    sent, retried = (per_s.get(name, 0.0) for name in ("published", "retried"))
    return PlaceRates(sent, retried, hour, spark(published) if hour else "")


def _sum(rates: Sequence[PlaceRates]) -> PlaceRates:
    return PlaceRates(sum(r.published for r in rates), sum(r.retried for r in rates))


def _published(minutes: Series, name: str) -> list[int]:
    points = minutes.points[-_POINTS:]
    return [p.destinations.get(name, {}).get("published", 0) if p else 0 for p in points]


def _by_broker(snapshot: Snapshot) -> dict[str, dict[str, float]]:
    """Broker -> count -> messages a second over the last minute."""
    sums: dict[str, dict[str, float]] = {}
    if snapshot.recent is None or not snapshot.recent.rates[1].covered_s:
        return sums
    for place, counts in snapshot.recent.rates[1].destinations.items():
        of = sums.setdefault(place.partition(":")[0], {})
        for name, value in counts.items():
            of[name] = of.get(name, 0.0) + value
    return sums


def _with_settings(in_force: Mapping[str, Any], retry: RetrySettings) -> dict[str, Any]:
    """What is in force; what no rule says of retries is as in the settings of this server."""
    plan = {f"retry.{name}": value for name, value in retry.model_dump().items()}
    return {**{name: {"value": value, "set_by": None} for name, value in plan.items()}, **in_force}


def _waits(values: Mapping[str, Any]) -> list[int]:
    """How long each attempt waits for the next, in ms, without the jitter; not many."""
    base, factor, most = (values[f"retry.{name}"] for name in ("base_ms", "factor", "max_ms"))
    count = min(int(values["retry.max_attempts"]) - 1, _SHOWN_RETRIES + 1)
    return [int(min(most, base * factor**number)) for number in range(count)]
