"""Numbers: stats, series, horizon, and what an autoscaler asks."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from delaybridge.errors import MessageError
from delaybridge.operate.views.described import moment, plain, stats_data
from delaybridge.operate.views.destinations_by_due import read_destinations_due
from delaybridge.operate.views.horizon import Horizon, read_coming
from delaybridge.operate.views.series import Series
from delaybridge.recurring.summary import count_definitions
from delaybridge.serve.api.description.openapi import object_of
from delaybridge.serve.http.endpoint import Routes
from delaybridge.serve.shared.call import Call
from delaybridge.times import YEAR_3000_MS

routes = Routes()


class Numbers(msgspec.Struct):
    """The messages in each state, and more; as `delaybridge stats --json`."""

    now_ms: int
    delayed: int
    in_flight: int
    parked: int
    dead: int
    overdue_ms: int
    next_due_ms: int | None
    workers: int
    buckets: int
    buckets_unowned: int
    buckets_unseen: int
    damaged: list[str]
    rates: dict[str, Any]


class SeriesQuery(msgspec.Struct, forbid_unknown_fields=True):
    """step: 60 points of 1s or 1m, 48 of 30m. from_ms, to_ms: only points within."""

    step: Literal["1s", "1m", "30m"] = "1m"
    from_ms: int | None = None
    to_ms: int | None = None


class HorizonQuery(msgspec.Struct, forbid_unknown_fields=True, rename={"earlier": "for"}):
    """How far to look ahead, in which steps. from_ms: from then on instead of now.

    for: the earlier name of span.
    """

    span: str | None = None
    earlier: str | None = None
    step: str | None = None
    destination: str | None = None
    from_ms: int | None = None


class SpanQuery(msgspec.Struct, forbid_unknown_fields=True):
    """A span of due times, in epoch ms; the end is not included."""

    from_ms: int
    to_ms: int


class DueFor(msgspec.Struct):
    """error: by how much the number may be wrong; 0 if the messages were counted."""

    destination: str
    messages: int
    error: int


class DueForList(msgspec.Struct):
    """Exchanges and topics, the one with the most messages first. messages: of all together."""

    items: list[DueFor]
    messages: int


class Load(msgspec.Struct):
    """What an autoscaler needs: messages due now, within 60 seconds and within 300.

    due_now: also those that workers hold. parked: due, and in none of the others, since more
    workers would change nothing: their destination is paused, limited or away, or a pull topic.
    overdue_seconds: how late the oldest is that no worker has taken yet.
    """

    due_now: int
    due_1m: int
    due_5m: int
    parked: int
    overdue_seconds: float
    workers: int


@routes("GET /v1/stats", "Count messages by state", answer=Numbers)
async def stats(call: Call) -> Any:
    """Messages by state, rates and lateness, and everything that is wrong."""
    client = call.site.client
    found, recent = await client.stats(), await client.rates()
    return stats_data(found, await client.run(count_definitions), recent)


@routes(
    "GET /v1/series", "Show what was published lately", query=SeriesQuery,
    answer=object_of(Series),
)  # fmt: skip
async def series(call: Call) -> Any:
    """What the fleet counted in each of the last periods; null where no worker reported."""
    query: SeriesQuery = call.query
    found = await call.site.client.series(query.step)
    low = query.from_ms or 0
    high = found.now_ms if query.to_ms is None else query.to_ms
    within = [p for p in found.points if p is None or low <= p.from_ms <= high]
    return plain(found._replace(points=within))


@routes("GET /v1/horizon", "Show what falls due", query=HorizonQuery, answer=object_of(Horizon))
async def horizon(call: Call) -> Any:
    """How many messages fall due in each part of the coming time."""
    query: HorizonQuery = call.query
    if query.span is not None and query.earlier is not None:
        raise MessageError("bad_query", "for", "the earlier name of span; leave it out")
    span, to = query.span or query.earlier or "1h", query.destination
    found = await call.site.client.horizon(span, query.step, destination=to, from_ms=query.from_ms)
    return plain(found) | {"estimated": found.is_estimated, "next_due": moment(found.next_due_ms)}


@routes("GET /v1/horizon:destinations", "Show what a span is due for", query=SpanQuery)
async def due_for(call: Call) -> DueForList:
    """Which exchanges and topics the delayed messages of a span are for. Many are estimated."""
    query: SpanQuery = call.query
    if not 0 <= query.from_ms < query.to_ms <= YEAR_3000_MS:
        raise MessageError("bad_time", "to_ms", "give a from_ms and a later to_ms, in epoch ms")
    found = await call.site.client.run(
        lambda calls: read_destinations_due(calls, query.from_ms, query.to_ms)
    )
    items = [DueFor(destination, *tally) for destination, tally in found.destinations]
    return DueForList(items, sum(each.messages for each in items))


@routes("GET /v1/scaling", "Tell an autoscaler the load")
async def scaling(call: Call) -> Load:
    """How much falls due soon; for KEDA's metrics-api scaler, with `valueLocation: due_1m`."""
    ahead, overdue_ms, workers = await call.site.client.run(read_coming)
    due_now = ahead.overdue + ahead.in_flight
    return Load(
        due_now,
        due_now + ahead.cells[0].messages,
        due_now + ahead.messages,
        ahead.parked,
        overdue_ms / 1000,
        workers,
    )
