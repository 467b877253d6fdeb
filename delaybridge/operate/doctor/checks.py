"""Checks that `doctor`, `health` and `stats` share, and measurements of a Redis."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from delaybridge.errors import StoreError, StoreUnavailable
from delaybridge.operate.doctor.finding import FAIL, OK, WARN, Finding
from delaybridge.operate.doctor.fronts import front_faults
from delaybridge.operate.doctor.sources import ingest_faults
from delaybridge.operate.notices import repairs
from delaybridge.operate.notices.announcements import waiting_text
from delaybridge.operate.views.alerts import failing_text
from delaybridge.store.namespace import history_alarm, registry
from delaybridge.times import MOST_SKEW_MS, roughly

if TYPE_CHECKING:
    from delaybridge import Client, Recurring, Stats
    from delaybridge.operate.notices.announcements import LedgerDrift
    from delaybridge.settings.settings import Settings
    from delaybridge.store.protocol.record import Trouble
    from delaybridge.store.redis.store import Store

_PINGS = 5
_NAMED = 5  # failing definitions that are shown one by one
# What a finding may be about: no reason to restart a worker, which knows the rules.
RULES = "rules"
STORE = "store"
_CLEAR = "Once you know of it: delaybridge alarm clear"
_EFFECTS = {  # of a failing part of the pulse
    "recurring": "recurring messages are not made",
    "series": "no rates are recorded",
    "destinations": "rules of destinations are not read",
}


def problems(
    found: Stats, settings: Settings, *, alone: Collection[int], max_overdue_ms: int
) -> Iterator[Finding]:
    """Reasons why messages are late, keep failing or are not read. alone: unowned buckets."""
    yield from _unseen(found)
    if found.overdue_ms > max_overdue_ms:
        what = f"the oldest waiting message is {roughly(found.overdue_ms)} overdue"
        what += f", over {roughly(max_overdue_ms)}"
        yield Finding(WARN, "lateness", what, "See: delaybridge bucket ls")
    yield from _unlisted(found)
    yield from (_troubled(each) for each in found.troubles if not each.is_by_rule)
    if alone:
        pending = found.delayed + found.in_flight
        what = f"{len(alone)} of {len(found.buckets)} buckets have no worker"
        yield Finding(FAIL if pending else WARN, "workers", what, "Start one: delaybridge scan")
    for each in found.retrying:
        remedy = "See: delaybridge message ls, delaybridge stats"
        yield Finding(WARN, "retrying", failing_text(each, found), remedy)
    yield from ingest_faults(found, settings)
    yield from front_faults(found)
    for one in found.all_damage:
        level = WARN if one.key.endswith("}:series") else FAIL
        yield Finding(level, "damage", f"{one}: {one.effect}", f"Repair it: {one.remedy}")
    for one in found.odd_rules:
        yield Finding(FAIL, RULES, f"{one}: {one.effect}", f"Repair it: {one.remedy}")
    if found.recurring_late_ms:
        what = f"recurring messages have not been made for {roughly(found.recurring_late_ms)}"
        yield Finding(WARN, "recurring", what, "Start a worker of this version: delaybridge scan")
    yield from _failing_parts(found)
    yield from _ledger(found.ledger)
    yield from _alarm(found)
    yield from _orphans(found)


def _unlisted(found: Stats) -> Iterator[Finding]:
    """A key has lost messages, and no owner has mended its bucket yet: they cannot be late."""
    if lost := {each.bucket: each.unlisted for each in found.buckets if each.unlisted}:
        buckets = ", ".join(map(str, [*lost][:_NAMED])) + (", …" if len(lost) > _NAMED else "")
        what = f"{sum(lost.values()):,} messages of buckets {buckets} are in no set"
        yield Finding(FAIL, "damage", what, "Their workers find them within a minute or so")


def _troubled(trouble: Trouble) -> Finding:
    """Messages that are parked, or whose destination refuses them."""
    if trouble.is_refusal:
        what = f"{trouble.destination} {trouble.reason} ({trouble.worker})"
        return Finding(WARN, "destinations", what, "See: delaybridge stats")
    what = f"{trouble.worker} parks messages to {trouble.destination} {trouble.reason}"
    return Finding(FAIL, "workers", what)


def clocks(found: Stats) -> Iterator[Finding]:
    """Workers whose hosts have another time than Redis."""
    for worker in found.workers:
        if abs(ahead_ms := worker.pace.ahead_ms or 0) > MOST_SKEW_MS:
            side = "ahead of" if ahead_ms > 0 else "behind"
            what = f"the clock of {worker.name} is {roughly(abs(ahead_ms))} {side} that of Redis"
            yield Finding(
                WARN, "clock", what, "Times in its log are wrong by as much. Fix NTP there"
            )


def _ledger(drift: LedgerDrift | None) -> Iterator[Finding]:
    """The ledger does not answer, or it and Redis differed."""
    if drift is None:
        return
    if drift.waiting:
        remedy = "Nothing of them goes out before; workers go on by themselves"
        yield Finding(FAIL, "ledger", waiting_text(drift.waiting, drift.silent), remedy)
    elif drift.silent:
        yield Finding(FAIL, "ledger", f"the ledger does not answer: {drift.silent}")
    if drift.restored or drift.dropped or drift.mended:
        numbers = f"{drift.restored:,} restored, {drift.dropped:,} dropped, {drift.mended:,} mended"
        what = f"ledger and Redis differed when they were compared last: {numbers}"
        yield Finding(WARN, "ledger", what, "See the workers' log: ledger_differs")
    if drift.without_row:
        what = f"{drift.without_row:,} messages in Redis are not in the ledger"
        remedy = "Set durability to ledger wherever messages are scheduled"
        yield Finding(WARN, "ledger", what, remedy)


def _alarm(found: Stats) -> Iterator[Finding]:
    """Redis came back with an older past, or empty; no fault any more after a while."""
    if found.setbacks:
        age_ms = found.now_ms - max(each.at_ms for each in found.setbacks)
        level = FAIL if age_ms < history_alarm.FRESH_MS else WARN
        yield Finding(level, STORE, history_alarm.setbacks_text(found.setbacks), _CLEAR)


def _orphans(found: Stats) -> Iterator[Finding]:
    """Keys of buckets had lost messages, which were found; some may wait for the operator."""
    if held := found.held_back:
        yield Finding(FAIL, STORE, str(repairs.held(held)), f"Send them: {repairs.RELEASE}")
    if mended := found.mended:
        age_ms = found.now_ms - repairs.summed(mended).at_ms
        level = FAIL if age_ms < history_alarm.FRESH_MS else WARN
        yield Finding(level, STORE, repairs.mended_text(mended), _CLEAR)


def _unseen(found: Stats) -> Iterator[Finding]:
    """The servers of a Cluster that do not answer."""
    remedy = "Start it again; a replica would have taken its place"
    for each in found.unseen:
        yield Finding(FAIL, "redis", str(each), remedy)


def _failing_parts(found: Stats) -> Iterator[Finding]:
    """Tasks of each second at which workers fail, unless damage that is named explains it."""
    named = [one.key for one in [*found.all_damage, *found.odd_rules]]
    failing: dict[tuple[str, str], list[str]] = {}
    for worker in found.workers:
        for part, reason in worker.failing.items():
            if not any(key in reason for key in named):
                failing.setdefault((part, str(reason)), []).append(worker.name)
    for (part, reason), names in failing.items():
        what = f"{_EFFECTS.get(part, f'{part} fails')}: {reason} ({', '.join(names[:_NAMED])})"
        yield Finding(WARN, RULES if part == "destinations" else "workers", what)


def measured(store: Store) -> tuple[float, float]:
    """Round trip, and by how much this host's clock is ahead of the store's, both in ms.

    Both are of the quickest of five round trips; the clock is exact to half a round trip.
    """
    trips = []
    for _ in range(_PINGS):
        sent_s, sent_ns = time.perf_counter(), time.time_ns()
        (store_us,) = store.run([registry.store_time()])
        trip_ms = (time.perf_counter() - sent_s) * 1000
        trips.append((trip_ms, sent_ns / 1e6 + trip_ms / 2 - store_us / 1000))
    return min(trips)


def server_name(info: Mapping[str, str]) -> str:
    """`redis 7.0.15` or `valkey 9.1.2`, from INFO server."""
    if "valkey_version" in info:
        return f"valkey {info['valkey_version']}"
    return f"redis {info.get('redis_version', '?')}"


def definitions_of(client: Client) -> list[Recurring] | None:
    """Every recurring definition; None if they cannot be read: `stats` names a damaged key."""
    try:
        return client.recurring.list()
    except StoreUnavailable:
        raise
    except StoreError:
        return None


def recurring_definitions(found: Sequence[Recurring]) -> Iterator[Finding]:
    """The recurring definitions that fail, a few by name."""
    failing = [each for each in found if each.state == "failing"]
    for each in failing[:_NAMED]:
        yield Finding(WARN, "recurring", f"{each.name}: {each.error}")
    if len(failing) > _NAMED:
        what = f"{len(failing) - _NAMED} more definitions fail"
        yield Finding(WARN, "recurring", what, "See: delaybridge recurring ls")
    if found and not failing:
        yield Finding(OK, "recurring", f"{len(found)} definitions, none fails")
