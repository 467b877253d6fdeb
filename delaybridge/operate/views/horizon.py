"""Horizon: how many messages fall due in each coming span of time."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

from delaybridge.errors import MessageError, StoreError
from delaybridge.message import State, destination_text
from delaybridge.operate.notices import announcements
from delaybridge.operate.views.bucket_counts import late_from_ms
from delaybridge.operate.views.destinations import check_broker, overlaps
from delaybridge.operate.views.retrying import Retrying, retrying_of
from delaybridge.store.namespace import registry
from delaybridge.store.namespace.namespace import Namespace
from delaybridge.store.namespace.rules import covers
from delaybridge.store.protocol.bucket import Bucket
from delaybridge.store.protocol.replies import Sample, read_first_score
from delaybridge.store.protocol.verbs import Each, RedisCommand, Steps, grouped, plain

_MAX_CELLS = 1000
_MAX_COUNTS = 200_000  # cells of all buckets: about 0.2 s of Redis' time
_COMING_MS = (60_000, 300_000)
_FINER = 60  # parts of the fullest cell, to find its busiest
_SAMPLED, _LEAST_SAMPLED = 4000, 64  # messages of all buckets, of each
_Z = 1.96  # standard errors: 95 of 100 estimates are off by less


class Cell(NamedTuple):
    """How many messages fall due from `from_ms` on and before `to_ms`, in epoch milliseconds.

    error: 0 if they were counted. Else `messages` is an estimate, and is wrong by at most this
    much in 95 of 100 cases.
    """

    from_ms: int
    to_ms: int
    messages: int
    error: int = 0


class Horizon(NamedTuple):
    """What falls due from now on.

    now_ms: Redis' clock. cells: each begins at a multiple of the step (UTC), the first one now;
    the last one ends with the span. messages: those of all cells. overdue, later: messages due
    before and after. next_due_ms: when the first falls due; None if none does, or if unknown.
    busiest: the fullest sixtieth of the fullest cell; None if nothing falls due, or if unknown.
    in_flight, parked: of all destinations, and not counted above. A worker claims messages shortly
    before they are due: they are in flight. retrying: messages that were due before, and whose last
    publish failed; they are counted where they are tried again. About a thousand of each bucket.
    """

    now_ms: int
    cells: list[Cell]
    messages: int
    overdue: int
    later: int
    next_due_ms: int | None
    busiest: Cell | None
    in_flight: int
    parked: int
    retrying: Sequence[Retrying] = ()

    @property
    def is_estimated(self) -> bool:
        """Whether the numbers of some cells are estimates."""
        return any(cell.error for cell in self.cells)

    @property
    def fullest(self) -> Cell | None:
        """The cell with the most messages, the first of several; None if none has any."""
        found = max(self.cells, key=lambda cell: cell.messages)
        return found if found.messages else None


def read_horizon(
    calls: Namespace,
    span_ms: int,
    step_ms: int,
    destination: str | None,
    from_ms: int | None = None,
) -> Steps[Horizon]:
    """The cells of the coming `span_ms`. Takes four round trips, five if messages fail.

    from_ms: where they begin instead of now; `overdue` and `later` are then before and after.

    destination: also a broker or an exchange (`rabbitmq:orders`); then the numbers are
    estimated from a sample, unless few messages are pending. MessageError: too many cells.
    """
    buckets = yield from calls.every_bucket()
    check_cells(span_ms, step_ms, len(buckets))
    now_ms = yield from calls.now_ms()
    starts = list(_starts(now_ms if from_ms is None else from_ms, span_ms, step_ms))
    found = (yield from _counted(calls, buckets, starts))._replace(now_ms=now_ms)
    retrying, _ = yield from retrying_of(buckets)
    found = found._replace(retrying=_of(calls, retrying, destination))
    if destination is not None:
        found = yield from _estimated(calls, buckets, found, destination)
        if not (found.messages or found.overdue or found.later):
            yield from check_broker(calls, destination)
        return found
    if found.fullest is None:
        return found
    parts, size = list(_parts(found.fullest)), len(buckets)
    counts = yield [count_due(b, *part) for part in parts for b in buckets]
    sums = (sum(counts[at : at + size]) for at in range(0, len(counts), size))
    cells = map(Cell, *zip(*parts, strict=True), sums)
    return found._replace(busiest=max(cells, key=lambda cell: cell.messages))


def read_coming(calls: Namespace) -> Steps[tuple[Horizon, int, int]]:
    """What an autoscaler asks every few seconds, all day: a few counts of each bucket.

    What falls due in exactly 60 seconds from now, and in 240 more, as two cells; how late in ms the
    oldest is that no worker has taken; and how many workers live.
    """
    buckets = yield from calls.every_bucket()
    now_ms = yield from calls.now_ms()
    ahead = yield from _counted(calls, buckets, [now_ms, *(now_ms + ms for ms in _COMING_MS)])
    oldest = (bucket.page(State.DELAYED, limit=1) for bucket in buckets if ahead.overdue)
    *pages, processes, ends = yield [*oldest, *registry.fleet(calls.namespace)]
    dues_ms = (late_from_ms(row) for rows, *_ in pages for row in rows)
    late_ms = now_ms - min((ms for ms in dues_ms if ms is not None), default=now_ms)
    return ahead, max(0, late_ms), len(announcements.workers([processes, ends], now_ms))


def _of(calls: Namespace, retrying: Sequence[Retrying], place: str | None) -> Sequence[Retrying]:
    """Those of a place, or of its exchange or topic."""
    if place is None:
        return retrying
    return [each for each in retrying if overlaps(each.destination, place, calls.kinds)]


def _counted(calls: Namespace, buckets: Sequence[Bucket], starts: list[int]) -> Steps[Horizon]:
    looks = yield from grouped([_look(bucket, starts) for bucket in buckets])
    failures = [next((e for e in look if isinstance(e, StoreError)), None) for look in looks]
    yield from calls.check(buckets, failures)
    firsts, overdue, *within, later, in_flight, parked = zip(*looks, strict=True)
    cells = map(Cell, starts, starts[1:], map(sum, within))
    return Horizon(
        now_ms=starts[0],
        cells=list(cells),
        messages=sum(map(sum, within)),
        overdue=sum(overdue),
        later=sum(later),
        next_due_ms=min((int(score) for score in firsts if score is not None), default=None),
        busiest=None,
        in_flight=sum(in_flight),
        parked=sum(parked),
    )


def _estimated(
    calls: Namespace, buckets: Sequence[Bucket], counted: Horizon, destination: str
) -> Steps[Horizon]:
    """The share of a destination in each of the counts."""
    most = max(_LEAST_SAMPLED, _SAMPLED // len(buckets))
    samples = yield Each(bucket.sample(most) for bucket in buckets)
    yield from calls.check(buckets, samples)
    cells = counted.cells
    starts = [*(cell.from_ms for cell in cells), cells[-1].to_ms]
    shares, overall = [_Share() for _ in range(len(starts) + 1)], _Share()
    firsts: list[float] = []
    for stands_for, beginning, score in _sampled(samples):
        fits = covers(destination, destination_text(beginning), calls.kinds)
        for share in (shares[bisect_right(starts, int(score))], overall):
            share.add(stands_for, fits)
        if fits and score >= starts[0]:
            firsts.append(score)
    is_whole = all(len(each.records) == each.messages for each in samples)
    overdue, *within, later = (
        share.applied_to(count, overall, is_whole=is_whole)
        for share, count in zip(
            shares,
            [counted.overdue, *(cell.messages for cell in cells), counted.later],
            strict=True,
        )
    )
    estimated = [
        cell._replace(messages=messages, error=error)
        for cell, (messages, error) in zip(cells, within, strict=True)
    ]
    return counted._replace(
        cells=estimated,
        messages=sum(cell.messages for cell in estimated),
        overdue=overdue[0],
        later=later[0],
        next_due_ms=int(min(firsts)) if is_whole and firsts else None,
    )


@dataclass(slots=True)
class _Share:
    """The share of one destination among sampled messages, each of which stands for several."""

    fitting: float = 0.0
    weights: float = 0.0
    squares: float = 0.0

    def add(self, weight: float, fits: bool) -> None:
        self.fitting += weight * fits
        self.weights += weight
        self.squares += weight * weight

    def applied_to(self, count: int, overall: _Share, *, is_whole: bool) -> tuple[int, int]:
        """This share of `count`, and by how much it may be wrong.

        overall: stands in where nothing was sampled. The error is the farther end of Wilson's
        interval, which says something also if none of the sampled messages fits.
        """
        if is_whole:
            return round(self.fitting), 0
        if not self.weights:
            whole = overall.fitting / overall.weights if overall.weights else 0.0
            return round(count * whole), count
        share, size = self.fitting / self.weights, self.weights**2 / self.squares
        middle = (share + _Z**2 / (2 * size)) / (1 + _Z**2 / size)
        spread = share * (1 - share) / size + _Z**2 / (4 * size**2)
        reach = _Z * math.sqrt(spread) / (1 + _Z**2 / size)
        return round(count * share), math.ceil(count * (abs(middle - share) + reach))


def check_cells(span_ms: int, step_ms: int, buckets: int = 1) -> None:
    """MessageError if a horizon would have too many cells for this number of buckets."""
    cells, most = math.ceil(span_ms / step_ms), min(_MAX_CELLS, _MAX_COUNTS // buckets)
    if cells > most:
        of = f" of {buckets:,} buckets" if buckets > 1 else ""
        what = f"{cells:,} cells are too many; at most {most:,}{of} are counted"
        raise MessageError("too_many_cells", "step", f"{what}: give a longer step")


def _starts(now_ms: int, span_ms: int, step_ms: int) -> Iterator[int]:
    """Where each cell begins, and where the last one ends."""
    yield now_ms
    yield from range(now_ms // step_ms * step_ms + step_ms, now_ms + span_ms, step_ms)
    yield now_ms + span_ms


def _parts(cell: Cell) -> Iterator[tuple[int, int]]:
    step_ms = math.ceil((cell.to_ms - cell.from_ms) / _FINER)
    return pairwise([*range(cell.from_ms, cell.to_ms, step_ms), cell.to_ms])


def _look(bucket: Bucket, starts: Sequence[int]) -> list[RedisCommand[Any]]:
    """The first score, the counts between all bounds, the sizes of mirror and parked.

    In this order: a message that is claimed meanwhile may be counted twice, but not missed.
    """
    bounds: list[int | str] = ["-inf", *starts, "+inf"]
    due, first = bucket.key("due"), (starts[0], "+inf", "BYSCORE", "LIMIT", 0, 1, "WITHSCORES")
    return [
        plain("ZRANGE", due, *first, parse=read_first_score),
        *(count_due(bucket, low, high) for low, high in pairwise(bounds)),
        *(plain("ZCARD", bucket.key(name), parse=int) for name in ("mirror", "parked")),
    ]


def count_due(bucket: Bucket, low: int | str, high: int | str) -> RedisCommand[int]:
    """Messages due from `low` on and before `high`; a score is at most a millisecond above."""
    return plain("ZCOUNT", bucket.key("due"), low, f"({high}", parse=int)


def highest_below(score: int) -> float:
    """The highest score of a message that is due before."""
    return math.nextafter(float(score), -math.inf)


def _sampled(samples: Sequence[Sample]) -> Iterator[tuple[float, bytes, float]]:
    """Reads of each delayed message how many it stands for, its record's beginning, its score."""
    for sample in samples:
        for beginning, _, score, _ in sample.records:
            if score is not None:
                yield sample.messages / len(sample.records), beginning, score
