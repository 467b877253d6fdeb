"""What is wrong in a namespace now: every trouble that its numbers show, the worst first."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote

from delaybridge.operate.notices import repairs
from delaybridge.operate.troubles.addressed import addressed
from delaybridge.operate.troubles.finding import SEVERITIES, WARN, Finding
from delaybridge.operate.troubles.fronts import front_faults
from delaybridge.operate.troubles.listed import trouble
from delaybridge.operate.troubles.sources import ingest_faults
from delaybridge.operate.views.described import size_text, tally_text, unowned
from delaybridge.operate.views.destinations import LATE_MS
from delaybridge.operate.views.facts import Fullness
from delaybridge.operate.views.retrying import Retrying
from delaybridge.operate.views.stats import Stats
from delaybridge.operate.views.waiting_on_purpose import Paused
from delaybridge.publish.link import NOT_YET
from delaybridge.store.namespace import history_alarm
from delaybridge.store.namespace.damage import Damage
from delaybridge.store.namespace.translatable import Sentence, some
from delaybridge.store.protocol.record import LACKING, SLOW, UNRECEIVED, Trouble, first_word
from delaybridge.times import roughly

if TYPE_CHECKING:
    from delaybridge.settings.settings import Settings

_SKEW_MS = 50  # workers go by Redis' clock; their logs and their hosts' other programs do not
_TOLD_MS = 60_000  # who was killed on purpose is told for so long
_FULL, _NEARLY_FULL = 95, 80  # percent of Redis' memory
_FORGOTTEN_MS = 86_400_000  # a pause
_NAMED = 3  # paused places, workers
_SERIES = "}:series"
# First word of a reason -> the trouble; of other words the messages are `retrying`, or `parked`.
_WORDS = "exchange_missing topic_missing queue_missing unroutable access_refused".split()
_KEY = re.compile(r"no queue is (?:named|bound with key) '(.*)'")
_PARTS = {  # of the pulse -> the trouble if it fails
    "recurring": "recurring messages are not made",
    "series": "no rates are recorded",
    "destinations": "rules of destinations are not read",
    "resize": "not all messages go to their new buckets",
}


class Thresholds(NamedTuple):
    """From when on something is wrong. overdue_ms: a message is late. retrying_ms: one keeps
    failing. alone: the buckets that lack a worker; None: those that have none now."""

    overdue_ms: int = LATE_MS
    retrying_ms: int = 15_000
    alone: Collection[int] | None = None


_USUAL = Thresholds()


def troubles(
    stats: Stats,
    memory: Fullness | None = None,
    *,
    settings: Settings | None = None,
    thresholds: Thresholds = _USUAL,
) -> list[Finding]:
    """Everything that is wrong, the worst first.

    memory: of the fullest Redis. settings: adds the sources that they name and that are not read,
    and says in commands which servers they mean.
    """
    found = [
        *_of_store(stats, memory),
        *_of_ledger(stats),
        *_of_time(stats, thresholds),
        *_of_destinations(stats, thresholds),
        *_of_workers(stats),
        *front_faults(stats),
        *ingest_faults(stats, settings),
        *_of_rules(stats),
    ]
    found = [addressed(each, settings) for each in found] if settings else found
    return sorted(found, key=severity)


def severity(found: Finding) -> int:
    """0: the worst; troubles are sorted by it."""
    return SEVERITIES.index(found.trouble.severity) if found.trouble else len(SEVERITIES)


def _of_store(stats: Stats, memory: Fullness | None) -> Iterator[Finding]:
    for one in stats.all_damage:
        yield damaged("series_damaged" if one.key.endswith(_SERIES) else "key_damaged", one)
    if lost := {each.bucket: each.unlisted for each in stats.buckets if each.unlisted}:
        count, buckets = f"{sum(lost.values()):,}", some([*lost], _NAMED)
        yield trouble("messages_unlisted", count=count, buckets=buckets)
    fresh_ms = stats.now_ms - history_alarm.FRESH_MS
    for said in history_alarm.sentences(stats.setbacks):
        is_fresh = max(each.at_ms for each in stats.setbacks) > fresh_ms
        yield trouble("store_went_back", said, is_red=is_fresh)
    if stats.held_back:
        yield trouble("messages_held_back", repairs.held(stats.held_back))
    if stats.mended:
        is_fresh = repairs.summed(stats.mended).at_ms > fresh_ms
        yield trouble("keys_lost", repairs.sentence(stats.mended), is_red=is_fresh)
    for each in stats.unseen:
        yield trouble("server_silent", each.sentence)
    for refused in stats.refused:
        yield trouble("store_refuses_writes", server=refused.node or "Redis", why=refused.why)
    if memory is not None and memory.percent >= _NEARLY_FULL:
        yield _nearly_full(memory)


def _nearly_full(memory: Fullness) -> Finding:
    code = "store_full" if memory.percent >= _FULL else "store_nearly_full"
    used, limit = memory.used_bytes, memory.limit_bytes
    return trouble(
        "store_drops" if memory.drops else code, server=memory.node or "Redis",
        percent=memory.percent, used=size_text(used), limit=size_text(limit),
        twice=2 * max(used, limit),
    )  # fmt: skip


def damaged(code: str, one: Damage) -> Finding:
    """A key with contents that delaybridge never wrote, and how to mend it by hand."""
    values: dict[str, Any] = {"key": one.key, "what": one.what, "effect": one.effect}
    return trouble(code, **values, remedy=f"Repair it: {one.remedy}")


def _of_ledger(stats: Stats) -> Iterator[Finding]:
    """The ledger does not answer, or it and Redis differed."""
    if (drift := stats.ledger) is None:
        return
    if drift.waiting:
        told: dict[str, Any] = {"waiting": drift.waiting, "why": drift.silent}
        said = Sentence("{waiting} buckets wait to be compared with the ledger", told)
        yield trouble("ledger_comparing", None if drift.silent else said, **told)
    elif drift.silent:
        yield trouble("ledger_silent", why=drift.silent.removeprefix("ledger: "))
    if drift.restored or drift.dropped or drift.mended:
        counts: dict[str, Any] = {
            name: f"{getattr(drift, name):,}" for name in ("restored", "dropped", "mended")
        }
        yield trouble("ledger_differs", **counts)
    if drift.without_row:
        yield trouble("ledger_lacks_messages", count=f"{drift.without_row:,}")


def _of_time(stats: Stats, thresholds: Thresholds) -> Iterator[Finding]:
    alone = unowned(stats.buckets) if thresholds.alone is None else thresholds.alone
    if alone:
        start = "" if stats.refused else None
        of: dict[str, Any] = {"alone": len(alone), "all": len(stats.buckets)}
        found = trouble("bucket_without_worker", remedy=start, **of)
        yield found if stats.delayed + stats.in_flight else found._replace(level=WARN)
    if stats.overdue_ms > thresholds.overdue_ms:
        yield trouble("messages_late", late=roughly(stats.overdue_ms))
    if stats.recurring_late_ms:
        yield trouble("recurring_late", late=roughly(stats.recurring_late_ms))


def _of_destinations(stats: Stats, thresholds: Thresholds) -> Iterator[Finding]:
    """What a broker or a destination refuses, and what waits for it."""
    parked: dict[tuple[str, str], list[str]] = {}
    refused: dict[str, Trouble] = {}
    for each in stats.troubles:
        if each.is_refusal:
            refused.setdefault(each.destination, each)
        elif not each.is_by_rule and each.reason != NOT_YET:
            parked.setdefault((each.destination, each.reason), []).append(each.worker)
    for (destination, reason), names in parked.items():
        yield _parked(destination, reason, names)
    named = {retrying.destination for retrying in stats.retrying}
    for retrying in stats.retrying:
        age_ms = max(0, stats.now_ms - retrying.since_ms)
        yield _failing(retrying, stats, is_red=age_ms > thresholds.retrying_ms)
    for destination, each in refused.items():
        if destination not in named:
            why = each.reason.partition(": ")[2]
            values: dict[str, Any] = {"reason": why, "workers": each.worker}
            code, parts = _code_of(why, destination, "destination_refuses")
            # Nothing that failed is left: it may be over.
            yield trouble(code, is_red=None if stats.dead else False, **parts, **values)


def _parked(destination: str, reason: str, names: Sequence[str]) -> Finding:
    """The workers that park the messages of a destination, or of a whole broker, for a reason."""
    broker, _, rest = destination.partition(":")
    values: dict[str, Any] = {"destination": destination, "reason": reason, "broker": broker}
    values["workers"] = some(names, _NAMED)
    if first_word(reason) == LACKING:
        return trouble("broker_unknown", **values)
    if reason in (SLOW, UNRECEIVED):
        return trouble("destination_slow", **values)
    if not rest:
        is_login = first_word(reason) == "login_refused"
        return trouble("broker_refuses_login" if is_login else "broker_unavailable", **values)
    code, parts = _code_of(reason, destination, "destination_parked")
    return trouble(code, **{**parts, **values})


def _failing(each: Retrying, stats: Stats, *, is_red: bool) -> Finding:
    """`12 messages to rabbitmq:orders failing for 5m: unroutable: 312 NO_ROUTE`."""
    told: dict[str, Any] = {
        "count": f"{each.messages:,}{'+' if stats.retrying_sampled else ''}",
        "destination": each.destination,
        "time": roughly(max(0, stats.now_ms - each.since_ms)),
        "error": each.example,
    }
    said = Sentence("{count} messages to {destination} failing for {time}: {error}", told)
    if each.messages == 1 and not stats.retrying_sampled:
        said = Sentence("{count} message to {destination} failing for {time}: {error}", told)
    code, parts = _code_of(each.example, each.destination, "messages_retrying")
    return trouble(code, said, is_red=is_red, **{**parts, **told})


def _code_of(reason: str, destination: str, other: str) -> tuple[str, dict[str, Any]]:
    """The trouble that a reason is, and what its remedy names; `other` if it is not listed."""
    word = first_word(reason)
    broker, _, rest = destination.partition(":")
    exchange, _, key = rest.partition("/")
    exchange = unquote(exchange)
    if found := _KEY.search(reason):
        key = found[1]
    queue = f"{exchange}.{key or '#'}" if exchange else key
    parts: dict[str, Any] = {"broker": broker, "destination": destination, "queue": queue}
    if word == "unroutable" and not exchange:
        word = "queue_missing"
    return (word if word in _WORDS else other), parts | {"exchange": exchange, "key": key or "#"}


def _of_parts(stats: Stats) -> Iterator[Finding]:
    """Tasks of each second at which workers fail, unless damage that is named explains it."""
    named = [one.key for one in [*stats.all_damage, *stats.odd_rules]]
    failing: dict[tuple[str, str], list[str]] = {}
    for worker in stats.workers:
        for part, reason in worker.failing.items():
            if not any(key in reason for key in named):
                failing.setdefault((part, str(reason)), []).append(worker.name)
    for (part, reason), names in failing.items():
        effect = _PARTS.get(part, f"{part} fails")
        code = "rules_unread" if part == "destinations" else "worker_part_fails"
        yield trouble(code, effect=effect, reason=reason, workers=some(names, _NAMED))


def _of_workers(stats: Stats) -> Iterator[Finding]:
    for worker in stats.workers:
        if abs(ahead_ms := worker.pace.ahead_ms or 0) > _SKEW_MS:
            told: dict[str, Any] = {"worker": worker.name, "time": roughly(abs(ahead_ms))}
            ahead = Sentence("the clock of {worker} is {time} ahead of Redis'", told)
            yield trouble("worker_clock_off", ahead if ahead_ms > 0 else None, **told)
        if worker.was_ousted:
            yield trouble("worker_taken_for_dead", worker=worker.name)
    if not stats.refused:  # a Redis that takes no writes explains both
        yield from _of_parts(stats)
        yield from _of_gone(stats)
    if len(versions := {each.version for each in stats.workers}) > 1:
        yield trouble("worker_versions_differ", versions=", ".join(sorted(versions)))


def _of_gone(stats: Stats) -> Iterator[Finding]:
    for each in [one for one in stats.gone if not one.killed_by][:_NAMED]:
        age = roughly(max(0, stats.now_ms - each.announced_ms))
        values: dict[str, Any] = {"kind": each.kind, "name": each.name, "host": each.host}
        values |= {"time": age, "by": each.ousted_by}
        ended = Sentence(
            "{kind} {name} on {host} stopped announcing itself {time} ago: "
            "it ended, {by} freed its buckets",
            values,
        )
        yield trouble("worker_silent", ended if each.ousted_by else None, **values)
    for each in stats.gone:
        if each.killed_by and stats.now_ms - each.announced_ms < _TOLD_MS:
            by = {"by": each.killed_by, "name": each.name}
            said = Sentence("{by}: {name} was killed on purpose", by)
            yield trouble("worker_silent", said, remedy="")


def _of_rules(stats: Stats) -> Iterator[Finding]:
    for one in stats.odd_rules:
        yield damaged("rule_damaged", one)
    if stats.rules.by_place and stats.ignoring:
        yield trouble("rules_ignored", workers=some(stats.ignoring, _NAMED))
    for each in stats.paused[:_NAMED]:
        yield _paused(each, stats.now_ms)
    if (more := len(stats.paused) - _NAMED) > 0:
        said = Sentence("also paused: {more} more", {"more": more})
        remedy = "List them: delaybridge destination ls"
        yield trouble("destination_paused", said, place="", remedy=remedy)


def _paused(each: Paused, now_ms: int) -> Finding:
    """`rabbitmq:orders is paused for 2h05m, 1,234 messages wait`."""
    told: dict[str, Any] = {"place": each.place, "messages": tally_text(each.waiting)}
    if each.since_ms is None:
        return trouble("destination_paused", **told)
    age_ms = max(0, now_ms - each.since_ms)
    told["time"] = roughly(age_ms)
    said = Sentence("{place} is paused for {time}, {messages} messages wait", told)
    # Whoever paused it just now needs no reminder.
    remedy = "" if age_ms < _FORGOTTEN_MS else None
    return trouble("destination_paused", said, remedy=remedy, **told)
