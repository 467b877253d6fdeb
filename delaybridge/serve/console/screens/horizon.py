"""Horizon: what is coming, in bars."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import msgspec

from delaybridge.errors import MessageError
from delaybridge.operate.views.destinations_by_due import read_destinations_due
from delaybridge.operate.views.horizon import Cell, read_horizon
from delaybridge.serve.console.page import Pages
from delaybridge.serve.console.rendering import link
from delaybridge.serve.console.snapshot import snapshots_of
from delaybridge.serve.shared.call import Call
from delaybridge.store.calls import Calls
from delaybridge.store.protocol.together import together
from delaybridge.store.protocol.verbs import Steps
from delaybridge.times import YEAR_3000_MS, format_time

_S, _M, _H, _D = 1000, 60_000, 3_600_000, 86_400_000
RANGES = {"1m": (_M, _S), "1h": (_H, _M), "1d": (_D, 15 * _M), "30d": (30 * _D, _D)}
# Each at most three times the one before: a chosen span has between a third of _BARS and _BARS.
_STEPS_MS = (
    *(10, 20, 50, 100, 200, 500, _S, 2 * _S, 5 * _S, 15 * _S, 30 * _S),
    *(_M, 2 * _M, 5 * _M, 15 * _M, 30 * _M, _H, 3 * _H, 6 * _H, 12 * _H, _D, 3 * _D, 7 * _D),
)
_BARS, _LEAST_MS, _DAYS = 190, 1000, 91  # as many bars of 1024 buckets as may be counted
_TOP, _COLORED = 12, 3  # destinations: in the table, in the bars
pages = Pages()


class HorizonPageQuery(msgspec.Struct, forbid_unknown_fields=True):
    """range: from now on; or from_ms and to_ms: this span, its end not included. scale: of the
    bars; `log`: by powers of ten."""

    range: Literal["1m", "1h", "1d", "30d"] = "1h"
    from_ms: int | None = None
    to_ms: int | None = None
    destination: str = ""
    scale: Literal["", "log"] = ""


class Zoom(NamedTuple):
    """A span that is shown. is_now: it begins now."""

    from_ms: int
    to_ms: int
    step_ms: int
    is_now: bool


class Day(NamedTuple):
    """A day of the calendar. level: 0, nothing, to 4."""

    from_ms: int
    to_ms: int
    messages: int
    level: int


@pages("/horizon", "Horizon", query=HorizonPageQuery)
async def horizon(call: Call) -> dict[str, Any]:
    """The bars, what they are for, the calendar."""
    query: HorizonPageQuery = call.query
    stats = await snapshots_of(call.site).stats()
    shown = _zoom(query, stats.now_ms)
    found, mix, days = await call.site.client.run(lambda calls: _seen(calls, query, shown))
    due_for = mix.destinations
    # One colour each; all others have one together. By name: of two that are nearly equal now one
    # has more and now the other.
    # Parts of a bar have no lengths on a logarithmic scale.
    is_one = query.destination or query.scale or len(due_for) < 2
    named = [] if is_one else due_for[:_COLORED]
    names = sorted(name for name, _ in named)
    cells = [[c.from_ms, c.to_ms, c.messages, c.error, mix.split(c, names)] for c in found.cells]
    span = {"for": f"{shown.to_ms - shown.from_ms}ms", "step": f"{shown.step_ms}ms"}
    return {
        "api": link(
            "/v1/horizon", **span, from_ms=None if shown.is_now else shown.from_ms,
            destination=query.destination,
        ),
        "query": query,
        "ranges": list(RANGES),
        "shown": shown,
        "found": found,
        "cells": cells,
        "is_shared_out": mix.is_estimated,
        "names": [*names, ""] if names and len(due_for) > len(names) else names,
        "due_for": due_for[:_TOP],
        "due": sum(tally.messages for _, tally in due_for),
        "places": [name for name, _ in due_for],
        "weeks": (weeks := _weeks(days.cells)),
        "months": _months(weeks),
        "most_a_day": max(cell.messages for cell in days.cells),
        "filter": _filter(query, shown),
        "zooms": _zooms(call, query, shown),
    }  # fmt: skip


def _seen(calls: Calls, query: HorizonPageQuery, shown: Zoom) -> Steps[Any]:
    """Everything of the page in a few round trips."""
    length_ms = shown.to_ms - shown.from_ms
    from_ms = None if shown.is_now else shown.from_ms
    parts: list[Steps[Any]] = [
        read_horizon(calls, length_ms, shown.step_ms, query.destination or None, from_ms),
        read_destinations_due(calls, shown.from_ms, shown.to_ms),
        read_horizon(calls, _DAYS * _D, _D, None),
    ]
    found = yield from together(parts)
    for each in found:
        if isinstance(each, Exception):
            raise each
    return found


def _zoom(query: HorizonPageQuery, now_ms: int) -> Zoom:
    if query.from_ms is None and query.to_ms is None:
        length_ms, step_ms = RANGES[query.range]
        return Zoom(now_ms, now_ms + length_ms, step_ms, is_now=True)
    low = now_ms if query.from_ms is None else query.from_ms
    high = query.to_ms if query.to_ms is not None else low + RANGES[query.range][0]
    if not 0 <= low <= high - _LEAST_MS <= YEAR_3000_MS:
        what = "give epoch ms, to_ms at least a second after from_ms"
        raise MessageError("bad_time", "to_ms", what)
    fitting = (step for step in _STEPS_MS if (high - low) / step <= _BARS)
    return Zoom(low, high, next(fitting, (high - low) // _BARS), is_now=False)


def _zooms(call: Call, query: HorizonPageQuery, shown: Zoom) -> dict[str, str]:
    """Where the buttons lead: nearer, farther, earlier, later."""
    length_ms = shown.to_ms - shown.from_ms
    middle, quarter = (shown.from_ms + shown.to_ms) // 2, max(length_ms // 4, _LEAST_MS // 2)

    def to(low: int, high: int) -> str:
        low = max(low, 0)
        to_ms = max(high, low + _LEAST_MS)
        return link("", from_ms=low, to_ms=to_ms, destination=query.destination, scale=query.scale)

    return {
        "in": to(middle - quarter, middle + quarter),
        "out": to(middle - length_ms, middle + length_ms),
        "earlier": to(shown.from_ms - length_ms // 2, shown.to_ms - length_ms // 2),
        "later": to(shown.from_ms + length_ms // 2, shown.to_ms + length_ms // 2),
    }


def _filter(query: HorizonPageQuery, shown: Zoom) -> dict[str, Any]:
    """The messages of the span, as the API's filter; ends are included there."""
    place = {"destination": query.destination} if query.destination else {}
    return {"due_from_ms": shown.from_ms, "due_to_ms": shown.to_ms - 1, **place}


def _weeks(cells: Sequence[Cell]) -> list[list[Day | None]]:
    """The days in columns of a week, Monday on top; None before today."""
    most = max((cell.messages for cell in cells), default=0)
    days: list[Day | None] = [
        Day(c.from_ms, c.to_ms, c.messages, _level(c.messages, most)) for c in cells
    ]
    weekday = (cells[0].from_ms // _D + 3) % 7 if cells else 0  # 1970 began on a Thursday
    padded = [None] * weekday + days
    return [padded[at : at + 7] for at in range(0, len(padded), 7)]


def _months(weeks: Sequence[Sequence[Day | None]]) -> dict[int, str]:
    """Column -> the month that begins in it, as 2026-12; the first column always has one."""
    firsts = [next(format_time(day.from_ms)[:7] for day in week if day) for week in weeks]
    return {n: month for n, month in enumerate(firsts) if not n or month != firsts[n - 1]}


def _level(messages: int, most: int) -> int:
    """1 to 4 by orders of magnitude, 0 for nothing."""
    return 1 + int(3 * math.log(messages) / math.log(max(most, 2))) if messages else 0
