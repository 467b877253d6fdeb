"""Alerts: everything that is wrong in a namespace, in words for people."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from delaybridge.operate.notices import repairs
from delaybridge.operate.views.described import size_text, tally_text, unowned
from delaybridge.operate.views.destinations import Places
from delaybridge.operate.views.facts import Fullness
from delaybridge.operate.views.retrying import Retrying
from delaybridge.operate.views.stats import Stats
from delaybridge.operate.views.waiting_on_purpose import Paused
from delaybridge.store.namespace import history_alarm
from delaybridge.store.namespace.translatable import Sentence
from delaybridge.store.protocol.record import Trouble
from delaybridge.times import roughly

SEVERE, ERROR, WARNING = "severe", "error", "warning"  # the worst first
ABOUT_ONE = "destination"
_FLEET = "workers"
_LATE_MS = 5000
_SKEW_MS = 50  # workers go by Redis' clock; their logs and their hosts' other programs do not
_FULL, _NEARLY_FULL = 95, 80  # percent of Redis' memory
_NAMED = 3  # paused places


class Alert(NamedTuple):
    """level: SEVERE (messages are not going out, or data is damaged), ERROR or WARNING.

    template, values: as of a `Sentence`. about: where an operator looks next. ABOUT_ONE: at the
    destination among the values; `late`: at the late messages; else a page of the console.
    """

    level: str
    template: str
    values: Mapping[str, object]
    about: str = "store"

    @property
    def text(self) -> str:
        """The whole alert in English."""
        return self.template.format(**self.values)


def alerts(
    stats: Stats,
    places: Places | None = None,
    memory: Fullness | None = None,
) -> list[Alert]:
    """Everything that is wrong, the worst first.

    places: adds what is wrong with the rules of destinations; it names what is paused in fewer
    words. memory: adds that Redis is nearly full.
    """
    found = [
        *_severe(stats),
        *_errors(stats),
        *_of_memory(memory),
        *_warnings(stats),
        *_of_gone(stats),
        *(_of_paused(stats) if places is None else _of_rules(places)),
    ]
    return sorted(found, key=lambda each: (SEVERE, ERROR, WARNING).index(each.level))


def _severe(stats: Stats) -> Iterator[Alert]:
    for one in stats.all_damage:
        yield Alert(SEVERE, "damaged: {what}", {"what": str(one)}, "buckets")
    for one in stats.odd_rules:
        yield Alert(SEVERE, "damaged: {what}", {"what": str(one)}, "destinations")
    for said in history_alarm.sentences(stats.setbacks):
        yield Alert(SEVERE, *said)
    if stats.held_back:
        yield Alert(SEVERE, *repairs.held(stats.held_back))
    if stats.mended:
        yield Alert(SEVERE, *repairs.sentence(stats.mended))
    for each in stats.unseen:
        yield Alert(SEVERE, *each.sentence)
    if alone := unowned(stats.buckets):
        counts = {"alone": len(alone), "all": len(stats.buckets)}
        yield Alert(SEVERE, "{alone} of {all} buckets have no worker", counts, "buckets")
    if stats.ledger is not None and (waiting := stats.ledger.waiting):
        wait = {"waiting": waiting}
        yield Alert(SEVERE, "{waiting} buckets wait to be compared with the ledger", wait)
    for front in stats.fronts:
        if front.is_cut_off:
            cut_off: dict[str, object] = {"front": front.name, "why": front.unreached}
            said = Sentence("front {front} reaches no node of the broker: {why}", cut_off)
            yield Alert(SEVERE, *said, "connections")
    if stats.overdue_ms > _LATE_MS:
        late = {"late": roughly(stats.overdue_ms)}
        yield Alert(SEVERE, "the oldest waiting message is {late} overdue", late, "late")


def _errors(stats: Stats) -> Iterator[Alert]:
    if stats.recurring_late_ms:
        late = {"late": roughly(stats.recurring_late_ms)}
        yield Alert(ERROR, "no recurring message was made for {late}", late, "recurring")
    for (destination, reason), workers in _by_trouble(stats.troubles).items():
        told = {"destination": destination, "reason": reason}
        if len(workers) == 1:
            told["worker"] = workers[0]
            yield Alert(ERROR, "{worker} parks messages to {destination} {reason}", told, ABOUT_ONE)
        else:
            told["workers"] = str(len(workers))
            said = Sentence("{workers} workers park messages to {destination} {reason}", told)
            yield Alert(ERROR, *said, ABOUT_ONE)
    if stats.ledger is not None and stats.ledger.silent:
        yield Alert(ERROR, "the ledger does not answer: {why}", {"why": stats.ledger.silent})


def _warnings(stats: Stats) -> Iterator[Alert]:
    for retrying in stats.retrying:
        yield Alert(WARNING, *_failing(retrying, stats), ABOUT_ONE)
    named = {retrying.destination for retrying in stats.retrying}
    refusing = {each.destination: each.reason for each in stats.troubles if each.is_refusal}
    for destination, reason in refusing.items():
        if destination not in named:
            why: dict[str, object] = {"destination": destination, "reason": reason}
            yield Alert(WARNING, "{destination} {reason}", why, ABOUT_ONE)
    for each in stats.workers:
        if abs(ahead_ms := each.pace.ahead_ms or 0) > _SKEW_MS:
            told = {"worker": each.name, "ms": abs(ahead_ms)}
            ahead = Sentence("the clock of {worker} is {ms} ms ahead of Redis'", told)
            behind = Sentence("the clock of {worker} is {ms} ms behind Redis'", told)
            yield Alert(WARNING, *(ahead if ahead_ms > 0 else behind), _FLEET)
    if len(versions := {each.version for each in stats.workers}) > 1:
        several = {"versions": ", ".join(sorted(versions))}
        yield Alert(WARNING, "workers of different versions: {versions}", several, _FLEET)


def _of_gone(stats: Stats) -> Iterator[Alert]:
    for each in stats.gone[:_NAMED]:
        told = {
            "kind": each.kind,
            "name": each.name,
            "host": each.host,
            "time": roughly(max(0, stats.now_ms - each.announced_ms)),
        }
        said = Sentence(
            "{kind} {name} on {host} stopped announcing itself {time} ago: killed, or hung", told
        )
        yield Alert(WARNING, *said, _FLEET)


def failing_text(each: Retrying, found: Stats) -> str:
    """`12 messages to rabbitmq:orders failing for 5m: unroutable: 312 NO_ROUTE`."""
    return str(_failing(each, found))


def _failing(each: Retrying, found: Stats) -> Sentence:
    told = {
        "count": f"{each.messages:,}{'+' if found.retrying_sampled else ''}",
        "destination": each.destination,
        "time": roughly(max(0, found.now_ms - each.since_ms)),
        "error": each.example,
    }
    if each.messages == 1 and not found.retrying_sampled:
        return Sentence("{count} message to {destination} failing for {time}: {error}", told)
    return Sentence("{count} messages to {destination} failing for {time}: {error}", told)


def paused_text(each: Paused, now_ms: int) -> str:
    """`rabbitmq:orders is paused for 2h05m, 1,234 messages wait`."""
    return str(_paused(each, now_ms))


def _paused(each: Paused, now_ms: int) -> Sentence:
    told = {"place": each.place, "messages": tally_text(each.waiting)}
    if each.since_ms is None:
        return Sentence("{place} is paused, {messages} messages wait", told)
    told["time"] = roughly(max(0, now_ms - each.since_ms))
    return Sentence("{place} is paused for {time}, {messages} messages wait", told)


def _of_paused(stats: Stats) -> Iterator[Alert]:
    for each in stats.paused[:_NAMED]:
        yield Alert(WARNING, *_paused(each, stats.now_ms), ABOUT_ONE)
    if (more := len(stats.paused) - _NAMED) > 0:
        yield Alert(WARNING, "also paused: {more} more", {"more": more}, "destinations")


def _of_memory(memory: Fullness | None) -> Iterator[Alert]:
    if memory is None or memory.percent < _NEARLY_FULL:
        return
    level = ERROR if memory.percent >= _FULL else WARNING
    told = {
        "server": memory.node or "Redis",
        "percent": memory.percent,
        "used": size_text(memory.used_bytes),
        "limit": size_text(memory.limit_bytes),
    }
    said = Sentence(
        "{server} uses {percent} % of maxmemory ({used} of {limit}); "
        "when it is full, new messages are refused",
        told,
    )
    if memory.drops:
        said = Sentence(
            "{server} uses {percent} % of maxmemory ({used} of {limit}); "
            "when it is full, it drops messages",
            told,
        )
    yield Alert(level, *said)


def _of_rules(places: Places) -> Iterator[Alert]:
    for place in places.places:
        if place.rule.paused:
            yield Alert(WARNING, "paused: {place}", {"place": place.place}, ABOUT_ONE)
    for odd, what in places.odd.items():
        yield Alert(WARNING, "rule of {place}: {what}", {"place": odd, "what": what}, ABOUT_ONE)
    for name in places.ignoring:
        old = {"worker": name}
        yield Alert(WARNING, "{worker} is too old to obey rules of destinations", old, _FLEET)


def _by_trouble(troubles: Iterable[Trouble]) -> dict[tuple[str, str], list[str]]:
    """Without destinations that refuse messages: those are retried, or dead."""
    found: dict[tuple[str, str], list[str]] = {}
    for each in troubles:
        if not each.is_refusal:
            found.setdefault((each.destination, each.reason), []).append(each.worker)
    return found
