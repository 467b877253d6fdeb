"""Numbers: stats, series, horizon, and what an autoscaler asks."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from delaybridge.errors import StoreError, StoreUnavailable
from delaybridge.store.definitions import Recurring
from delaybridge.store.described import moment, plain, stats_data
from delaybridge.store.horizon import Horizon
from delaybridge.store.series import Series
from delaybridge.web.endpoint import Call, Endpoint, Reply, Scope
from delaybridge.web.typed import object_of

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
    """How far to look ahead, in which steps."""

    span: str = "1h"
    step: str | None = None
    destination: str | None = None


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
    found = await call.site.client.horizon(query.span, query.step, destination=query.destination)
    return Reply(
        plain(found) | {"estimated": found.is_estimated, "next_due": moment(found.next_due_ms)}
    )


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
        method="GET", path="/v1/scaling", scope=Scope.READ, handler=scaling,
        summary="Tell an autoscaler the load", answers={200: Load},
    ),
)  # fmt: skip
