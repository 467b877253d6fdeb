"""Alerts: everything that is wrong in a namespace, in words for people."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from delaybridge.store.described import tally_text, unowned
from delaybridge.store.destinations import Places
from delaybridge.store.held import Paused
from delaybridge.store.setbacks import told
from delaybridge.store.stats import Stats
from delaybridge.store.troubles import Retrying
from delaybridge.times import roughly

SEVERE, ERROR, WARNING = "severe", "error", "warning"  # the worst first
_LATE_MS = 5000
_SKEW_MS = 50  # workers go by Redis' clock; their logs and their hosts' other programs do not


class Alert(NamedTuple):
    """level: SEVERE (messages are not going out, or data is damaged), ERROR or WARNING."""

    level: str
    text: str


def alerts(stats: Stats, places: Places | None = None) -> Iterator[Alert]:
    """What is wrong. places: adds what is wrong with the rules of destinations."""
    for one in [*stats.all_damage, *stats.odd_rules]:
        yield Alert(SEVERE, f"damaged: {one}")
    if stats.setbacks:
        yield Alert(SEVERE, told(stats.setbacks))
    for each in stats.unseen:
        yield Alert(SEVERE, str(each))
    if alone := unowned(stats.buckets):
        yield Alert(SEVERE, f"{len(alone)} of {len(stats.buckets)} buckets have no worker")
    if stats.overdue_ms > _LATE_MS:
        yield Alert(SEVERE, f"the oldest waiting message is {roughly(stats.overdue_ms)} overdue")
    if stats.recurring_late_ms:
        late = roughly(stats.recurring_late_ms)
        yield Alert(ERROR, f"no recurring message was made for {late}")
    for (destination, reason), workers in _by_trouble(stats).items():
        who = f"{workers[0]} parks" if len(workers) == 1 else f"{len(workers)} workers park"
        yield Alert(ERROR, f"{who} messages to {destination} {reason}")
    if stats.ledger is not None and stats.ledger.silent:
        yield Alert(ERROR, f"the ledger does not answer: {stats.ledger.silent}")
    for retrying in stats.retrying:
        yield Alert(WARNING, failing_text(retrying, stats))
    yield from _of_clocks(stats)
    if len(versions := {each.version for each in stats.workers}) > 1:
        yield Alert(WARNING, f"workers of different versions: {', '.join(sorted(versions))}")
    if places is not None:
        yield from _of_rules(places)


def failing_text(each: Retrying, found: Stats) -> str:
    """`12 messages to rabbitmq:orders failing for 5m: unroutable: 312 NO_ROUTE`."""
    noun = "message" if each.messages == 1 and not found.retrying_sampled else "messages"
    count = f"{each.messages:,}{'+' if found.retrying_sampled else ''}"
    lasting = f"failing for {roughly(max(0, found.now_ms - each.since_ms))}"
    return f"{count} {noun} to {each.destination} {lasting}: {each.example}"


def _of_clocks(stats: Stats) -> Iterator[Alert]:
    for each in stats.workers:
        if abs(ahead_ms := each.pace.ahead_ms or 0) > _SKEW_MS:
            side = "ahead of" if ahead_ms > 0 else "behind"
            yield Alert(WARNING, f"the clock of {each.name} is {abs(ahead_ms)} ms {side} Redis'")


def paused_text(each: Paused, now_ms: int) -> str:
    """`rabbitmq:orders is paused since 2h05m, 1,234 messages wait`."""
    since = "" if each.since_ms is None else f" for {roughly(max(0, now_ms - each.since_ms))}"
    return f"{each.place} is paused{since}, {tally_text(each.waiting)} messages wait"


def _of_rules(places: Places) -> Iterator[Alert]:
    for place in places.places:
        if place.rule.paused:
            yield Alert(WARNING, f"paused: {place.place}")
    for odd, what in places.odd.items():
        yield Alert(WARNING, f"rule of {odd}: {what}")
    for name in places.ignoring:
        yield Alert(WARNING, f"{name} is too old to obey rules of destinations")


def _by_trouble(stats: Stats) -> dict[tuple[str, str], list[str]]:
    found: dict[tuple[str, str], list[str]] = {}
    for each in stats.troubles:
        found.setdefault((each.destination, each.reason), []).append(each.worker)
    return found
