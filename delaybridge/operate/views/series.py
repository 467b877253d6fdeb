"""Series: what workers counted, by second, minute and half hour; kept in Redis, in rings.

Each worker adds a sample once a second (`lua/record.lua`). A slot of a ring holds one period of
Redis' clock; the next period that falls on it overwrites it, so memory is bounded.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

import msgspec

from delaybridge.errors import StoreError
from delaybridge.events import LATENESS_BOUNDS_MS
from delaybridge.operate.notices import announcements
from delaybridge.store.namespace import registry
from delaybridge.store.namespace.namespace import Namespace
from delaybridge.store.protocol import keys
from delaybridge.store.protocol.verbs import Each, Steps, plain, store_wide_error

BURIED = "buried "  # with the reason's first word
LATE = "late_"  # names of the histogram's counts: late_0 to late_15, by index of the bound
_STATE = "state_"  # names of counts: by how many more, or fewer, messages are in a state
_STATES = ("delayed", "in_flight", "parked", "dead")
_OF_BUCKET, _OF_OLDER_BUCKET = 1 + 3 + len(_STATES), 1 + 3  # numbers that are stored of a bucket
_WATCHED_S = 60
_STEPS = {"1s": ("s", 1), "1m": ("m", 60), "30m": ("h", 1800)}  # field of a slot, seconds
_SLOTS = {"s": 61, "m": 61, "h": 49}  # one more than points: the period under way has its own
STEPS = tuple(_STEPS)
_PART = "series"  # of a worker's pulse, as it announces failures
_SILENT_S = 3  # a worker without a sample for longer does not report


class Lateness(NamedTuple):
    """How late messages were confirmed, in ms. p50 and p99 are estimated from a histogram."""

    p50_ms: float
    p99_ms: float
    max_ms: int


class Point(NamedTuple):
    """What the fleet counted from `from_ms` on and before `to_ms` (Redis' clock, epoch ms).

    workers: how many reported, on average over the time that their reports span. counts: name ->
    number: scheduled, cancelled, rescheduled, published, retried, buried, dead_lettered, dropped,
    and of the buried `buried REASON` for each reason; a name that is missing is 0. destinations:
    destination -> the same, as far as the worker knows it, without reasons; at most 50 in a period,
    further ones are counted as `other`. states: how many messages were delayed, in_flight, parked,
    dead at its end, as the buckets' owners saw them in Redis, so without those of the cold tier;
    None: a worker of an older version owns some.
    """

    from_ms: int
    to_ms: int
    workers: float
    counts: Mapping[str, int]
    lateness: Lateness | None
    destinations: Mapping[str, Mapping[str, int]]
    states: Mapping[str, int] | None = None


class Series(NamedTuple):
    """Points in order of time, the last one the latest whole period. None: no worker reported then.

    silent: living workers that report nothing, each with the reason, empty if it is of an older
    version or has just started; what they publish is not in the points. missing: why there is no
    series at all, else empty.
    """

    now_ms: int
    step_ms: int
    points: list[Point | None]
    silent: Mapping[str, str] = {}
    missing: str = ""


class Rates(NamedTuple):
    """Messages per second over the last `window_s` seconds, by name as in `Point`.

    covered_s: the time since the first report within the window; the rates are over that time. 0:
    there was none. lateness: of what was published in the window.
    """

    window_s: int
    covered_s: float
    per_s: Mapping[str, float]
    lateness: Lateness | None
    destinations: Mapping[str, Mapping[str, float]]


class Recent(NamedTuple):
    """Rates over the last second, minute and quarter of an hour; the rest as in `Series`."""

    now_ms: int
    rates: list[Rates]
    silent: Mapping[str, str] = {}
    missing: str = ""


class _Slot(msgspec.Struct, array_like=True, frozen=True):
    """One period as `lua/record.lua` stores it."""

    period: int
    samples: int
    first_s: int
    last_s: int
    late_ms: int
    counts: dict[str, int]
    destinations: dict[str, dict[str, int]]


def read_series(calls: Namespace, step: str) -> Steps[Series]:
    """The points of one ring; step: one of STEPS. One round trip."""
    yield from calls.open()
    ring, seconds = _STEPS[step]
    now_ms, (slots,), told, *others = yield from _look(calls, [ring], len(calls.buckets))
    under_way = now_ms // 1000 // seconds
    states = _told(told, now_ms // 1000)
    points: list[Point | None] = []
    for period in range(under_way, under_way - _SLOTS[ring], -1):  # back from the states of now
        slot = slots.get(period)
        points.append(slot and _point(slot, seconds, states))
        states = slot and states and _before(states, slot) or states
    return Series(now_ms, seconds * 1000, points[:0:-1], *others)


def read_rates(calls: Namespace) -> Steps[Recent]:
    """The rates of the last second, minute and quarter of an hour. One round trip."""
    yield from calls.open()
    now_ms, (seconds, minutes), _, *others = yield from _look(calls, ["s", "m"])
    now_s = now_ms // 1000
    minute = now_s // 60
    rates = [
        _rates(1, _between(seconds, now_s - 1, now_s), now_s),
        _rates(60, _between(seconds, now_s - 60, now_s), now_s),
        # 14 whole minutes, and the one under way.
        _rates(900, _between(minutes, minute - 14, minute + 1), now_s),
    ]
    return Recent(now_ms, rates, *others)


def _look(calls: Namespace, asked: Sequence[str], buckets: int = 0) -> Steps[Any]:
    """Redis' clock, the slots of each ring by period, the numbers told of this many buckets, silent
    workers, why all is missing."""
    rings = [f"{ring}{n}" for ring in asked for n in range(_SLOTS[ring])]
    # In one command: between two a sample could come.
    fields = ["workers", *rings, *(f"b{n}" for n in range(buckets))]
    found, now_us, info, expiries = yield Each(
        [
            plain("HMGET", keys.series(calls.namespace), *fields),
            calls.clock(),
            *registry.fleet(calls.namespace),
        ]
    )
    if (error := store_wide_error([found, now_us])) is not None:
        raise error
    if isinstance(found, StoreError):
        return now_us // 1000, [{} for _ in asked], [], {}, str(found)
    texts = iter(found)
    workers = next(texts)
    now_ms = now_us // 1000
    living = announcements.workers([info, expiries], now_ms)
    reporting = set(_reporting(workers, now_ms // 1000))
    silent = {
        each.name: str(each.failing.get(_PART) or "")
        for each in living
        if each.name not in reporting
    }
    missing = "" if workers else "no worker has reported yet"
    slots = [_by_period([*islice(texts, _SLOTS[ring])]) for ring in asked]
    return now_ms, slots, [*texts], silent, missing


def percentile(counts: Mapping[int, int], share: float, max_ms: int) -> float:
    """The lateness that this share of messages does not exceed, interpolated within its bound."""
    wanted, below = share * sum(counts.values()), 0
    for index in sorted(counts):
        if below + counts[index] >= wanted:
            low = LATENESS_BOUNDS_MS[index - 1] if index else 0
            high = min([*LATENESS_BOUNDS_MS[index : index + 1], max_ms])
            return min(low + max(0, high - low) * (wanted - below) / counts[index], max_ms)
        below += counts[index]
    return float(max_ms)


def _by_period(texts: Sequence[bytes | None]) -> dict[int, _Slot]:
    found = (read_slot(text) for text in texts if text is not None)
    return {slot.period: slot for slot in found if slot is not None}


def read_slot(text: bytes) -> _Slot | None:
    """A slot; None if it is damaged. Lua writes an empty map as an empty list."""
    try:
        *numbers, counts, destinations = msgspec.msgpack.decode(text)
        of_each = {name: each or {} for name, each in (destinations or {}).items()}
        return msgspec.convert([*numbers, counts or {}, of_each], _Slot)
    except (msgspec.DecodeError, ValueError, TypeError, AttributeError):
        return None


def _told(buckets: Sequence[bytes | None], now_s: int) -> dict[str, int] | None:
    """How many messages are in each state, as workers told last; None if one told only an older
    version's numbers, not long ago."""
    sums = [0] * len(_STATES)
    for text in filter(None, buckets):
        numbers = [int(word) for word in text.split() if word.isdigit()]
        if len(numbers) == _OF_BUCKET:
            sums = [*map(operator.add, sums, numbers[-len(_STATES) :])]
        elif len(numbers) == _OF_OLDER_BUCKET and abs(now_s - numbers[0]) <= _WATCHED_S:
            return None
    return dict(zip(_STATES, sums, strict=True))


def _before(states: Mapping[str, int], slot: _Slot) -> dict[str, int]:
    """The states before the period of a slot."""
    return {n: max(0, count - slot.counts.get(_STATE + n, 0)) for n, count in states.items()}


def _reporting(text: bytes | None, now_s: int) -> Iterable[str]:
    try:
        seen = msgspec.msgpack.decode(text or b"\x90", type=dict[str, tuple[str, int, int]] | list)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return []
    # A clock that was set back must not make a dead worker report for as long.
    return [name for name, _, last_s in dict(seen).values() if abs(now_s - last_s) <= _SILENT_S]


def _between(slots: Mapping[int, _Slot], start: int, end: int) -> list[_Slot]:
    return [slots[n] for n in range(start, end) if n in slots]


def _lateness(slots: Sequence[_Slot]) -> Lateness | None:
    counts: Counter[int] = Counter()
    for slot in slots:
        for name, count in slot.counts.items():
            if name.startswith(LATE) and name[len(LATE) :].isdigit():
                counts[min(int(name[len(LATE) :]), len(LATENESS_BOUNDS_MS))] += count
    if not counts.total():
        return None
    max_ms = max(slot.late_ms for slot in slots)
    return Lateness(percentile(counts, 0.5, max_ms), percentile(counts, 0.99, max_ms), max_ms)


def _counts(slots: Iterable[_Slot]) -> dict[str, int]:
    sums: Counter[str] = Counter()
    for slot in slots:
        sums.update({n: c for n, c in slot.counts.items() if not n.startswith((LATE, _STATE))})
    return dict(sums)


def _destinations(slots: Iterable[_Slot]) -> dict[str, dict[str, int]]:
    sums: dict[str, Counter[str]] = {}
    for slot in slots:
        for destination, counts in slot.destinations.items():
            sums.setdefault(destination, Counter()).update(counts)
    return {destination: dict(counts) for destination, counts in sums.items()}


def _point(slot: _Slot, seconds: int, states: Mapping[str, int] | None) -> Point:
    from_ms = slot.period * seconds * 1000
    return Point(
        from_ms,
        from_ms + seconds * 1000,
        slot.samples / (slot.last_s - slot.first_s + 1),
        _counts([slot]),
        _lateness([slot]),
        slot.destinations,
        states,
    )


def _rates(window_s: int, slots: Sequence[_Slot], end_s: int) -> Rates:
    covered_s = min(window_s, end_s - min((slot.first_s for slot in slots), default=end_s))
    if covered_s <= 0:
        return Rates(window_s, 0, {}, None, {})
    return Rates(
        window_s,
        covered_s,
        {name: count / covered_s for name, count in _counts(slots).items()},
        _lateness(slots),
        {
            destination: {name: count / covered_s for name, count in counts.items()}
            for destination, counts in _destinations(slots).items()
        },
    )
