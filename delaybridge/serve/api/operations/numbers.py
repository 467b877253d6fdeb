"""Numbers: stats, series, horizon, and what an autoscaler asks."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from delaybridge.errors import MessageError, StoreError, StoreUnavailable
from delaybridge.operate.views.described import moment, plain, stats_data
from delaybridge.operate.views.destinations_by_due import read_destinations_due
from delaybridge.operate.views.horizon import Horizon
from delaybridge.operate.views.series import Series
from delaybridge.recurring.definitions import Recurring
from delaybridge.serve.api.description.typed import object_of
from delaybridge.serve.http.endpoint import Endpoint, Reply, Scope
from delaybridge.serve.shared.call import Call
from delaybridge.times import YEAR_3000_MS

_FIVE_MINUTES, _MINUTE_CELLS = "5m", 5


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


class HorizonQuery(msgspec.Struct, forbid_unknown_fields=True, rename={"span": "for"}):
    """How far to look ahead, in which steps. from_ms: from then on instead of now."""

    span: str = "1h"
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
    """What an autoscaler needs: messages due now, within a minute and within five.

    due_now: also parked ones and those that workers hold. overdue_seconds: how late the oldest is.
    """

    due_now: int
    due_1m: int
    due_5m: int
    overdue_seconds: float
    workers: int


async def stats(call: Call) -> Reply:
    """Messages by state, rates and lateness, and everything that is wrong."""
    client = call.site.client
    found, recent = await client.stats(), await client.rates()
    return Reply(stats_data(found, await _definitions(call), recent))


async def _definitions(call: Call) -> list[Recurring] | None:
    """None if they cannot be read: `damaged` names the key."""
    try:
        return await call.site.client.recurring.list()
    except StoreUnavailable:
        raise
    except StoreError:
        return None


async def series(call: Call) -> Reply:
    """What the fleet counted in each of the last periods; null where nobody reported."""
    query: SeriesQuery = call.query
    found = await call.site.client.series(query.step)
    low = query.from_ms or 0
    high = found.now_ms if query.to_ms is None else query.to_ms
    within = [p for p in found.points if p is None or low <= p.from_ms <= high]
    return Reply(plain(found._replace(points=within)))


async def horizon(call: Call) -> Reply:
    """How many messages fall due in each part of the coming time."""
    query: HorizonQuery = call.query
    found = await call.site.client.horizon(
        query.span, query.step, destination=query.destination, from_ms=query.from_ms
    )
    return Reply(
        plain(found) | {"estimated": found.is_estimated, "next_due": moment(found.next_due_ms)}
    )


async def due_for(call: Call) -> Reply:
    """Which exchanges and topics the delayed messages of a span are for. Many are estimated."""
    query: SpanQuery = call.query
    if not 0 <= query.from_ms < query.to_ms <= YEAR_3000_MS:
        raise MessageError("bad_time", "to_ms", "give a from_ms and a later to_ms, in epoch ms")
    found = await call.site.client.run(
        lambda calls: read_destinations_due(calls, query.from_ms, query.to_ms)
    )
    items = [DueFor(destination, *tally) for destination, tally in found.destinations]
    return Reply(DueForList(items, sum(each.messages for each in items)))


async def scaling(call: Call) -> Reply:
    """How much falls due soon; for KEDA's metrics-api scaler, with `valueLocation: due_1m`."""
    client = call.site.client
    ahead = await client.horizon(_FIVE_MINUTES, "1m")
    found = await client.stats()
    due_now = ahead.overdue + found.parked + found.in_flight
    first = ahead.cells[:2]  # the first is the rest of this minute
    return Reply(
        Load(
            due_now,
            due_now + sum(cell.messages for cell in first),
            due_now + ahead.messages,
            found.overdue_ms / 1000,
            len(found.workers),
        )
    )


ENDPOINTS = (
    Endpoint(
        method="GET", path="/v1/stats", scope=Scope.READ, handler=stats,
        summary="Count messages by state", answers={200: Numbers},
    ),
    Endpoint(
        method="GET", path="/v1/series", scope=Scope.READ, handler=series,
        summary="Show what was published lately", query=SeriesQuery,
        answers={200: object_of(Series)},
    ),
    Endpoint(
        method="GET", path="/v1/horizon", scope=Scope.READ, handler=horizon,
        summary="Show what falls due", query=HorizonQuery, answers={200: object_of(Horizon)},
    ),
    Endpoint(
        method="GET", path="/v1/horizon:destinations", scope=Scope.READ, handler=due_for,
        summary="Show what a span is due for", query=SpanQuery, answers={200: DueForList},
    ),
    Endpoint(
        method="GET", path="/v1/scaling", scope=Scope.READ, handler=scaling,
        summary="Tell an autoscaler the load", answers={200: Load},
    ),
)  # fmt: skip
