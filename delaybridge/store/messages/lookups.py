"""Lookups: one message by its id, in any state, with the reason why it waits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from delaybridge.message import State
from delaybridge.store.messages.changes import asked_for
from delaybridge.store.namespace import announcements, registry, rules
from delaybridge.store.namespace.namespace import Namespace
from delaybridge.store.namespace.rules import Rules, places_of
from delaybridge.store.protocol.ids import quarantine_ids
from delaybridge.store.protocol.record import ORPHANED, WorkerTroubles, first_word
from delaybridge.store.protocol.replies import Row
from delaybridge.store.protocol.stored import Stored, stored
from delaybridge.store.protocol.verbs import Each, Steps, store_wide_error


class Lookups(Namespace):
    """The calls that look up messages; they change nothing."""

    def get(self, id: str, key: bytes | None) -> Steps[Stored | None]:
        """The message with this id in any state; None if there is none."""
        yield from self.open()
        asked = asked_for(self, id, key)
        rows = yield Each(bucket.get(id) for bucket in asked)
        for bucket, row in zip(asked, rows, strict=True):
            if isinstance(row, Row):
                (found,) = yield from with_reasons(self, [stored(row, bucket.number)])
                return found
        yield from self.check(asked, rows)
        return None

    def quarantined(self, id: str) -> Steps[list[Stored]]:
        """The messages that ingest quarantined with this id; they are in the dead set."""
        yield from self.open()
        bucket = asked_for(self, id, None)[0]
        rows = yield [bucket.get(name) for name in quarantine_ids(id)]
        return [stored(row, bucket.number) for row in rows if row is not None]


def with_reasons(calls: Namespace, items: list[Stored]) -> Steps[list[Stored]]:
    """The same items; parked ones with the reason, as their bucket's worker announced it."""
    numbers = sorted({item.bucket for item in items if item.state is State.PARKED})
    if not numbers:
        return items
    asked = [calls.bucket(number).holder() for number in numbers]
    fleet = [*registry.fleet(calls.namespace), rules.read(calls.namespace)]
    replies = yield Each([*asked, *fleet, calls.clock()])
    if (error := store_wide_error(replies)) is not None:
        raise error
    *holders, info, expiries, stored, now_us = replies
    holder_of = dict(zip(numbers, holders, strict=True))
    troubles = announcements.troubles_of([info, expiries], now_us // 1000)
    known = announcements.obeyed(stored, troubles.values())

    def why(item: Stored) -> str:
        holder = holder_of[item.bucket]
        obeys = holder in troubles and troubles[holder].paused is not None
        paused = _why_paused(places_of(item.destination, calls.kinds), known) if obeys else ""
        return _why_held(item) or paused or _why_parked(item.destination, holder, troubles)

    return [
        replace(item, reason=why(item)) if item.state is State.PARKED else item for item in items
    ]


def _why_held(item: Stored) -> str:
    error = item.last_error or ""
    return error if first_word(error) == ORPHANED else ""


def _why_paused(places: Iterable[str], known: Rules) -> str:
    for place, rule in known.levels(*places):
        if rule.paused:
            return f"paused: {place}; see: delaybridge destination show {place}"
    return ""


def _why_parked(
    destination: str, holder: str | None, troubles: Mapping[str, WorkerTroubles]
) -> str:
    if holder is None:
        return "no_worker: its bucket has none"
    return troubles.get(holder, WorkerTroubles()).why(destination)
