"""Snapshots of the whole namespace: what the frame of every page shows, and what pages are sent.

However many pages are open, a process reads one a second.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, cast

import msgspec

from delaybridge.client.async_client import AsyncClient
from delaybridge.errors import DelayBridgeError, StoreUnavailable, printable
from delaybridge.operate.troubles.finding import Finding
from delaybridge.operate.troubles.found import troubles
from delaybridge.operate.views.described import plain, unowned
from delaybridge.operate.views.facts import Fullness, fullest
from delaybridge.operate.views.horizon import Horizon, read_horizon
from delaybridge.operate.views.series import Point, Recent, Series, read_rates, read_series
from delaybridge.operate.views.stats import Stats, read_stats
from delaybridge.serve.console.rendering import in_words, segment, spark
from delaybridge.serve.http.disconnect import end_all
from delaybridge.serve.shared.site import Site
from delaybridge.settings.settings import Settings
from delaybridge.settings.urls import redact_text
from delaybridge.store.calls import Calls
from delaybridge.store.protocol.together import together
from delaybridge.store.protocol.verbs import Steps

_FRESH_S = 0.9
_PATIENCE_S = 0.5  # a page waits so long for a snapshot, if there is an older one
KEPT_S = 15.0  # so long an older one stands in for one that takes longer, or fails
_OLD_S = 3.0  # and then pages say so
_SLOW = StoreUnavailable("redis: it has not answered yet")
_SPAN_MS = 60_000
_STEPS_S = (1, 2, 3, 5, 10, 15, 30, 60)  # bars of the coming minute
_COUNTS = 4096  # of all buckets in a snapshot: about 5 ms of Redis' time
_POINTS = 5  # seconds that a tick repeats, for one that came late
_ALERTS = 8
_TICKING = "now_ms delayed in_flight parked dead overdue_ms next_due_ms".split()
_LATE_MS = 1000
_STORED_S = 2.0


class Snapshot(NamedTuple):
    """What was seen last. error: why this is not as it is now, or why nothing was seen; then the
    rest is None. age_s: how long ago it was seen."""

    stats: Stats | None = None
    recent: Recent | None = None
    series: Series | None = None
    minute: Horizon | None = None
    memory: Fullness | None = None
    error: str = ""
    age_s: float = 0.0
    took_ms: float = 0.0
    settings: Settings | None = None

    @property
    def is_old(self) -> bool:
        """Whether pages have to say so."""
        return self.age_s > _OLD_S

    @property
    def alerts(self) -> list[Finding]:
        """What is wrong, the worst first."""
        if self.stats is None:
            return []
        return troubles(self.stats, self.memory, settings=self.settings)

    def tick(self, language: str) -> dict[str, Any]:
        """The numbers that change, and the alerts, for the open pages of this language."""
        s = self.stats
        if s is None or self.is_old:
            return {"error": self.error, "age_s": round(self.age_s)}
        alone = len(unowned(s.buckets))
        rate = self.recent.rates[0] if self.recent else None
        per_s: Mapping[str, float] = rate.per_s if rate and rate.covered_s else {}
        return {
            **{name: getattr(s, name) for name in _TICKING},
            "due_1m": self.minute.messages if self.minute else None,
            "minute": _bars(self.minute) if self.minute else None,
            "published": per_s.get("published", 0.0),
            "scheduled": per_s.get("scheduled", 0.0),
            "workers": len(s.workers),
            "owned": len(s.buckets) - alone,
            "buckets": len(s.buckets),
            "owners": [each.owner for each in s.buckets],
            "sizes": [each.delayed + each.in_flight + each.parked for each in s.buckets],
            "late": [each.bucket for each in s.buckets if each.overdue_ms > _LATE_MS],
            "points": plain(_latest(self.series)) if self.series else [],
            "alerts": self.banners(language),
            "took_ms": round(self.took_ms, 1),
        }

    def banners(self, language: str) -> list[dict[str, str]]:
        """The worst of what is wrong: its level, its text, the first command of its remedy, and the
        page that shows it."""
        return [
            {
                "level": alert.trouble.severity if alert.trouble else "",
                "code": alert.code,
                "text": printable(redact_text(in_words(language, alert.said))),
                "command": printable(redact_text(next(iter(alert.commands), ""))),
                "path": page_of(alert, self.stats),
            }
            for alert in self.alerts[:_ALERTS]
        ]


class Snapshots:
    """The snapshots of one process: all who ask within a second share one. Close it at the end.

    sparks: of the fleet; store_sparks: of Redis.
    """

    def __init__(self, client: AsyncClient, settings: Settings | None = None) -> None:
        """client: it may wait for Redis longer than those of programs: people rather wait than see
        an error. settings: remedies have the addresses of their servers."""
        self.client, self._settings = client, settings
        self._last, self._at_s = Snapshot(), -1e9
        self._began_s = self._changed_s = -1e9  # the last snapshot; the last change by a page
        self._under_way: asyncio.Task[Snapshot] | None = None
        self._running: set[asyncio.Task[Snapshot]] = set()
        self._old: Snapshot | None = None
        self._error: Exception = _SLOW  # of the last snapshot, if it failed
        self.sparks, self.store_sparks = Sparks(), Sparks(_STORED_S)
        self._ticks: dict[str, tuple[Snapshot, bytes]] = {}  # the latest, by language

    async def latest(self) -> Snapshot:
        """How it is now, at most a second ago; or as it was a few seconds ago, if Redis is slow.

        DelayBridgeError: Redis does not answer.
        """
        age_s = time.monotonic() - self._at_s
        if age_s <= _FRESH_S and self._began_s >= self._changed_s:
            return self._last
        if self._under_way is None or self._under_way.done():
            self._under_way = asyncio.create_task(self._again())
            self._running.add(self._under_way)
            self._under_way.add_done_callback(self._ended)
        under_way, is_kept = self._under_way, age_s <= KEPT_S
        # After a change, wait longer rather than show the state before it.
        patience_s = _PATIENCE_S if self._began_s >= self._changed_s else _OLD_S
        # One that gives up does not end it for the others.
        await asyncio.wait([under_way], timeout=patience_s if is_kept else None)
        error = under_way.exception() if under_way.done() else self._error
        if error is None:
            return under_way.result()
        if is_kept and isinstance(error, DelayBridgeError):
            return self._aged(_told(error))
        raise error

    def _aged(self, error: str) -> Snapshot:
        """The last snapshot with its age and the error; the same for all callers of a second."""
        age_s = time.monotonic() - self._at_s
        old = self._old
        if old is None or old.error != error or not 0 <= age_s - old.age_s < _FRESH_S:
            self._old = old = self._last._replace(error=error, age_s=age_s)
        return old

    async def stats(self) -> Stats:
        """The numbers of the latest one. DelayBridgeError: Redis does not answer."""
        found = (await self.latest()).stats
        assert found is not None
        return found

    async def tick(self, language: str) -> bytes:
        """The same as a server-sent event; also that Redis does not answer.

        Made once for all pages of a language.
        """
        try:
            snapshot = await self.latest()
        except DelayBridgeError as exc:
            snapshot = Snapshot(error=_told(exc))
        known, text = self._ticks.get(language, (None, b""))
        if snapshot is not known:
            text = b"event: tick\ndata: %s\n\n" % msgspec.json.encode(snapshot.tick(language))
            self._ticks[language] = snapshot, text
        return text

    def renew(self) -> None:
        """A page changed something: the next snapshot that is shown begins after this, unless Redis
        takes longer than three seconds."""
        self._changed_s, self._under_way = time.monotonic(), None

    def _ended(self, task: asyncio.Task[Snapshot]) -> None:
        self._running.discard(task)
        if not task.cancelled():
            task.exception()  # if all callers gave up, asyncio would log it as never retrieved

    async def close(self) -> None:
        """End a snapshot that is under way, and close the client."""
        await end_all(self._running)
        await self.client.close()

    def _note(self, stats: Stats) -> None:
        values: dict[str, float | None] = {
            f"published {w.name}": w.pace.published_s or 0.0 for w in stats.workers
        }
        for broker in {name for w in stats.workers for name in w.pace.unconfirmed}:
            unconfirmed, confirm_ms = confirms(stats, broker)
            values |= {f"unconfirmed {broker}": unconfirmed, f"confirm {broker}": confirm_ms}
        self.sparks.note(values)

    async def _again(self) -> Snapshot:
        began_s = time.monotonic()
        try:
            found = await self.client.run(_read)
        except DelayBridgeError as exc:
            self._error = exc
            raise
        self._error = _SLOW
        now_s = time.monotonic()
        found = found._replace(took_ms=(now_s - began_s) * 1e3, settings=self._settings)
        if began_s >= self._began_s:  # else another one began later, and ended before
            self._at_s, self._began_s, self._last = now_s, began_s, found
            if found.stats is not None:
                self._note(found.stats)
        return found


def snapshots_of(site: Site) -> Snapshots:
    """Those of the process, with all that the console knows of them."""
    return cast(Snapshots, site.snapshots)


def confirms(stats: Stats, broker: str) -> tuple[int, float | None]:
    """Messages that a broker has not answered, of all workers; within how many ms 99 % are
    confirmed, at the slowest of them. None: unknown."""
    paces = [each.pace for each in stats.workers]
    took_ms = [pace.confirm_ms[broker] for pace in paces if broker in pace.confirm_ms]
    return sum(pace.unconfirmed.get(broker, 0) for pace in paces), max(took_ms, default=None)


def page_of(alert: Finding, stats: Stats | None) -> str:
    """The path of the page that shows what an alert is about."""
    page = alert.trouble.page if alert.trouble else ""
    if page == "late" and stats is not None:
        return where_late(stats)
    if page in ("{destination}", "{place}"):
        place = str(alert.values.get(page[1:-1], ""))
        return f"/destinations/{segment(place.removesuffix(':'))}" if place else "/destinations"
    return f"/{page}"


def where_late(stats: Stats) -> str:
    """The path of the page with the messages that are late; parked ones may be the only ones."""
    if stats.next_due_ms is not None and stats.next_due_ms < stats.now_ms:
        return "/messages"
    return "/messages?state=parked" if stats.parked else "/in-flight"


def _told(error: DelayBridgeError) -> str:
    return printable(redact_text(str(error)))[:500]


def _read(calls: Calls) -> Steps[Snapshot]:
    """Everything at once: the parts travel together. What fails beside the counts is left out."""
    buckets = yield from calls.open()
    step_s = next(each for each in _STEPS_S if 60 // each * len(buckets) <= _COUNTS or each == 60)
    parts: list[Steps[Any]] = [
        read_stats(calls),
        read_rates(calls),
        read_series(calls, "1s"),
        read_horizon(calls, _SPAN_MS, 1000 * step_s, None),
        fullest(calls.placement),
    ]
    stats, *others = yield from together(parts)
    if isinstance(stats, Exception):
        raise stats
    seen: list[Any] = [None if isinstance(each, Exception) else each for each in others]
    return Snapshot(stats, *seen)


def _latest(series: Series) -> Sequence[Point]:
    return [point for point in series.points[-_POINTS:] if point is not None]


def _bars(minute: Horizon) -> list[int]:
    """The messages of each part of the coming minute; all parts are equally long."""
    longest_ms = max(cell.to_ms - cell.from_ms for cell in minute.cells)
    counts = [0] * (_SPAN_MS // longest_ms)
    for number, cell in enumerate(minute.cells):
        counts[min(number, len(counts) - 1)] += cell.messages
    return counts


_VALUES = 60
_GAP_S = 60.0  # after a gap this long, older values are dropped
_LEAST = 4  # fewer make no line


class Sparks:
    """The last values of some names, which are read together. least_s: the shortest time between
    two that are kept: however many pages read them, a line spans a minute and more."""

    def __init__(self, least_s: float = 0.9) -> None:
        self._least_s, self._noted_s = least_s, -1e9
        self._values: dict[str, deque[float]] = {}

    def note(self, values: Mapping[str, float | None]) -> None:
        """The values of now; None: it has none. The line of a name that is missing ends."""
        now_s = time.monotonic()
        passed_s = now_s - self._noted_s
        if passed_s < self._least_s:
            return
        if passed_s > _GAP_S:
            self._values = {}
        self._noted_s = now_s
        self._values = {n: self._values.get(n, deque(maxlen=_VALUES)) for n in values}
        for name, value in values.items():
            if value is not None:
                self._values[name].append(value)

    def line(self, name: str) -> str:
        """The points of a polyline, as `spark` makes it; empty while there are few values."""
        found = self._values.get(name, ())
        return spark(found) if len(found) >= _LEAST else ""
