"""Overview: how it goes, on one page."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import msgspec

from delaybridge.operate.views.stats import Stats
from delaybridge.serve.console.page import Pages
from delaybridge.serve.console.snapshot import confirms, snapshots_of, where_late
from delaybridge.serve.shared.call import Call
from delaybridge.settings.urls import redact_text

RANGES = {
    "1m": ("1s", 60), "10m": ("1m", 10), "1h": ("1m", 60), "8h": ("30m", 16), "1d": ("30m", 48),
}  # fmt: skip
"""Name of a range -> the step of the series, and how many of its points."""
pages = Pages()


class OverviewQuery(msgspec.Struct, forbid_unknown_fields=True):
    """range: how far the charts look back."""

    range: Literal["1m", "10m", "1h", "8h", "1d"] = "1m"


class BrokerLine(NamedTuple):
    """A broker as the workers see it. trouble: why it is unavailable; None: it is available or no
    worker has said anything. paused: whether everything for it waits. unconfirmed: messages that it
    has not answered; confirm_ms: within how long 99 % are, at the slowest worker; None: unknown."""

    name: str
    kind: str
    trouble: str | None
    workers: int
    paused: bool
    unconfirmed: int
    confirm_ms: float | None


def broker_lines(call: Call, stats: Stats) -> list[BrokerLine]:
    """The brokers of the settings, and those that only workers know."""
    kinds = dict(call.site.client.kinds)
    said = [each.said.brokers for each in stats.workers if each.said.brokers is not None]
    names = [*kinds, *(name for each in said for name in each if name not in kinds)]
    paused = {each.place for each in stats.paused}
    lines = []
    for name in dict.fromkeys(names):
        reasons = [each[name] for each in said if name in each]
        trouble = next((reason for reason in reasons if reason), None)
        kind, numbers = kinds.get(name, "?"), confirms(stats, name)
        lines.append(BrokerLine(name, kind, trouble, len(reasons), name in paused, *numbers))
    return lines


@pages("/", "Overview", name="overview", query=OverviewQuery)
async def overview(call: Call) -> dict[str, Any]:
    """The numbers of the namespace, its charts and brokers."""
    stats = await snapshots_of(call.site).stats()
    step, points = RANGES[call.query.range]
    return {
        "api": "/v1/stats",
        "ranges": list(RANGES),
        "range": call.query.range,
        "step": step,
        "points": points,
        "brokers": broker_lines(call, stats),
        "redis": redact_text(call.site.settings.redis.url),
        "overdue": where_late(stats),
        "has_messages": bool(stats.delayed + stats.in_flight + stats.parked),
    }
