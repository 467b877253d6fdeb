"""Destinations as an operator sees and steers them: what waits for each, and its rule.

A place is a broker (`rabbitmq`), an exchange or topic (`rabbitmq:orders`) or one whole destination
(`rabbitmq:orders/close`). A place covers the narrower ones.
"""

from __future__ import annotations

import difflib
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from delaybridge.accept.destination import unknown_broker
from delaybridge.backoff import RetryPlan
from delaybridge.errors import MessageError, StoreError, quoted
from delaybridge.message import PULL
from delaybridge.operate.notices import announcements
from delaybridge.operate.notices.announcements import WorkerInfo
from delaybridge.operate.views.remote_control import living_workers
from delaybridge.operate.views.retrying import Retrying, retrying_of
from delaybridge.operate.views.tally import MOST_DESTINATIONS, UNREADABLE, Tally, tallied, tally_of
from delaybridge.store.namespace import registry, rules
from delaybridge.store.namespace.announcements import obeyed
from delaybridge.store.namespace.namespace import Namespace
from delaybridge.store.namespace.rules import Rule, Rules, label_of, place_of, places_of
from delaybridge.store.protocol.record import SLOW, Trouble
from delaybridge.store.protocol.replies import Tallied
from delaybridge.store.protocol.verbs import Each, Steps, store_wide_error
from delaybridge.times import roughly

LATE_MS = 5000
_CHARS, _LIKE = 255, 0.6  # of an address: what is compared; from where on two are alike
PAUSED, TROUBLE, RETRYING, LIMITED, FLOWING = "paused", "trouble", "retrying", "limited", "ok"


class Place(NamedTuple):
    """What waits for one place, and how it is steered.

    delayed, in_flight, parked, dead: its messages, also those of narrower places. next_due_ms: when
    the first delayed one is due, in epoch milliseconds; of those read, if they are estimates.
    levels: the rules in force, each with its place, from the broadest to its own. trouble: why
    workers park its messages, why it refuses them, or that they are late; None if none of it, or
    only because of a rule.
    retrying: messages to it, or to its exchange or topic, whose last publish failed.
    """

    place: str
    delayed: Tally
    in_flight: Tally
    parked: Tally
    dead: Tally
    next_due_ms: int | None
    levels: Sequence[tuple[str, Rule]]
    trouble: str | None
    retrying: Sequence[Retrying] = ()

    @property
    def rule(self) -> Rule:
        """Its own rule, without those of broader places."""
        return dict(self.levels).get(self.place, Rule())

    @property
    def paused_by(self) -> tuple[str, int | None] | None:
        """The place whose rule pauses it, and since when; None: it is not paused."""
        paused = (level for level in self.levels if level[1].paused)
        return next(((place, rule.paused_ms) for place, rule in paused), None)

    @property
    def is_seen(self) -> bool:
        """Whether there are messages among those that were read, or trouble."""
        return any(tally.messages for tally in self[1:5]) or bool(self.trouble or self.retrying)

    @property
    def state(self) -> str:
        """`paused`, `trouble`, `retrying`, `limited` or `ok`."""
        if self.paused_by:
            return PAUSED
        if self.trouble:
            return TROUBLE
        if self.retrying:
            return RETRYING
        return LIMITED if "rate" in self.in_force else FLOWING

    @property
    def in_force(self) -> dict[str, tuple[Any, str]]:
        """Each setting in force but the pause: its value, and the place whose rule sets it.

        Of all rates the lowest; of other fields, and of each field of the retry plan
        (`retry.max_attempts`), the value at the narrowest place.
        """
        found: dict[str, tuple[Any, str]] = {}
        for place, rule in self.levels:
            lowest = found.get("rate", (math.inf,))[0]
            if rule.rate is not None and rule.rate < lowest:
                found["rate"] = rule.rate, place
            for field in ("spread_ms", "dead_letter"):
                if (value := getattr(rule, field)) is not None:
                    found[field] = value, place
            for field in RetryPlan.__struct_fields__:
                if (value := getattr(rule.retry, field, None)) is not None:
                    found[f"retry.{field}"] = value, place
        return found


class Places(NamedTuple):
    """Every place that has messages, a rule, or trouble at a worker.

    now_ms: Redis' clock. more: how many others have messages, and fewer of them. odd: place -> what
    of its rule is ignored, and why. ignoring: the workers of a version that knows no rules.
    damaged: whether a bucket could not be counted: see doctor. near: of one place without a message
    among those read, a name that is like it and has messages or a rule.
    """

    now_ms: int
    places: list[Place]
    more: int
    odd: Mapping[str, str]
    ignoring: list[str]
    damaged: bool = False
    near: str | None = None

    def is_empty(self, place: Place) -> bool:
        """Whether no message to a place is there. Estimates and damage may hide some: False."""
        return not (self.damaged or place.is_seen or any(tally.error for tally in place[1:5]))

    @property
    def is_unused(self) -> bool:
        """Whether its one place has no message, rule or trouble."""
        (place,) = self.places
        return self.is_empty(place) and place.rule == Rule()

    @property
    def unused_text(self) -> str:
        """Says so, as `kafka:ordres: no message and no rule there; did you mean 'kafka:orders'?`"""
        name, near = self.places[0].place, self.near
        meant = f"did you mean {quoted(near)}?" if near else "see: delaybridge destination ls"
        what = "no message and no rule there" if self.is_unused else "no message seen there"
        return f"{name}: {what}; {meant}"


def list_destinations(calls: Namespace, only: str | None = None) -> Steps[Places]:
    """All places, or one. Counts as `count_by_destination`; a damaged bucket counts as empty.

    Lists the 200 exchanges and topics with the most messages, and whatever has a rule.
    MessageError: `only` is no place; or nothing is there, and its broker is neither one of this
    caller nor of a living worker.
    """
    if only is not None:
        only = place_of(only, calls.kinds)
    buckets = yield from calls.every_bucket()
    by_state = yield from tallied(buckets)
    fleet = [*registry.fleet(calls.namespace), rules.read(calls.namespace)]
    replies = yield Each([*fleet, calls.clock()])
    everything = [reply for part in (*by_state, replies) for reply in part]
    if (error := store_wide_error(everything)) is not None:
        raise error
    info, expiries, stored, now_us = replies
    retrying, _ = yield from retrying_of(buckets)
    living = announcements.workers([info, expiries], now_us // 1000)
    known = obeyed(stored, (each.said for each in living))
    counts = PlaceCounts(calls.kinds, by_state)
    listed = counts.largest()
    troubles = [trouble for each in living for trouble in each.said.troubles(each.name)]
    troubled = (each.destination.removesuffix(":") for each in troubles)
    failing = (each.destination for each in retrying)
    names = [only] if only else sorted({*listed, *known.by_place, *troubled, *failing})
    seen = counts, known, troubles, retrying
    found = Places(
        now_us // 1000,
        [_place(calls, name, now_us // 1000, *seen) for name in names],
        len(counts.labels) - len(listed),
        known.odd,
        [each.name for each in living if not each.obeys_rules],
        damaged=any(isinstance(reply, StoreError) for reply in everything),
    )
    names_used = {*counts.names(), *known.by_place}
    return found if only is None else _with_near(found, calls.kinds, living, names_used)


def _with_near(
    found: Places, kinds: Iterable[str], living: Sequence[WorkerInfo], used: set[str]
) -> Places:
    """One place, if nothing is seen there with a name like it; MessageError if it cannot exist."""
    (place,) = found.places
    if place.is_seen:
        return found
    near = nearest(place.place, used - {place.place})
    if place.rule == Rule():
        _check_broker(place.place, kinds, living, near)
    return found._replace(near=near)


def known_place(calls: Namespace, text: object) -> Steps[str]:
    """A place as it is named everywhere; MessageError if it cannot be one, or has no broker."""
    place = place_of(text, calls.kinds)
    yield from check_broker(calls, place)
    return place


def check_broker(calls: Namespace, place: str | None) -> Steps[None]:
    """For a list without a message: MessageError if no worker has the broker of its place."""
    if place is not None and place.partition(":")[0] not in (PULL, *calls.kinds):
        _check_broker(place, calls.kinds, (yield from living_workers(calls)))


def _check_broker(
    place: str, kinds: Iterable[str], living: Sequence[WorkerInfo], near: str | None = None
) -> None:
    known = {*kinds, *(name for each in living for name in each.said.brokers or ())}
    if place.partition(":")[0] not in {*known, PULL}:
        detail = unknown_broker(place, known, near)
        raise MessageError("unknown_destination", "destination", detail)


def nearest(place: str, names: Iterable[str]) -> str | None:
    """The name whose address is most like that of a place, if one is; first of its own broker."""
    broker = place.partition(":")[0]
    own_last = sorted(names, key=lambda name: (name.partition(":")[0] == broker, name))
    by_address = {_address(name): name for name in own_last}
    found = difflib.get_close_matches(_address(place), by_address, n=1, cutoff=_LIKE)
    return by_address[found[0]] if found else None


def _address(place: str) -> str:
    return (place.partition(":")[2] or place).casefold()[:_CHARS]


def _place(
    calls: Namespace,
    place: str,
    now_ms: int,
    counts: PlaceCounts,
    known: Rules,
    troubles: Sequence[Trouble],
    retrying: Sequence[Retrying],
) -> Place:
    delayed, in_flight, parked, dead = counts.tallies(place)
    levels = known.levels(*places_of(place, calls.kinds))
    if not parked.messages:  # announced while the last ones went out, as after a pause
        troubles = [each for each in troubles if each.reason != SLOW]
    why = (_why(each, place) for each in troubles if touches(each, place, calls.kinds))
    return Place(
        place, delayed, in_flight, parked, dead,
        next_due_ms=counts.next_due_ms.get(place),
        levels=levels,
        trouble=next(why, None) or _lateness(counts.next_due_ms.get(place), levels, now_ms),
        retrying=[each for each in retrying if overlaps(each.destination, place, calls.kinds)],
    )  # fmt: skip


def _lateness(due_ms: int | None, levels: Sequence[tuple[str, Rule]], now_ms: int) -> str | None:
    """That no worker takes what is due there; None if it is on time, or a rule holds it back."""
    is_held = any(rule.paused or rule.rate is not None for _, rule in levels)
    if due_ms is None or is_held or now_ms - due_ms <= LATE_MS:
        return None
    return f"late: the first was due {roughly(now_ms - due_ms)} ago"


class PlaceCounts:
    """The messages of each place. by_state: the tallies of all buckets, as `tallied` has them."""

    def __init__(
        self, kinds: Mapping[str, str], by_state: Sequence[Sequence[Tallied | StoreError]]
    ) -> None:
        self.next_due_ms: dict[str, int] = {}
        self.labels = Counter[str]()  # messages of each exchange, topic or queue
        self._by_state = [
            [self._by_place(one, kinds) for one in tallies if not isinstance(one, StoreError)]
            for tallies in by_state
        ]
        for one in self._by_state[0]:  # of delayed messages
            for place, score in one.firsts.items():
                first_ms = self.next_due_ms.get(place, int(score))
                self.next_due_ms[place] = min(first_ms, int(score))

    def tallies(self, place: str) -> list[Tally]:
        """How many messages of a place are in each state."""
        return [tally_of(place, strata) for strata in self._by_state]

    def names(self) -> set[str]:
        """Every place that has messages."""
        return {name for state in self._by_state for one in state for name in one.counts}

    def largest(self) -> list[str]:
        """The labels with the most messages."""
        return [label for label, _ in self.labels.most_common(MOST_DESTINATIONS)]

    def _by_place(self, one: Tallied, kinds: Mapping[str, str]) -> Tallied:
        """The same by place: each message counts for every place that covers it."""
        counts, firsts = Counter[str](), dict[str, float]()
        for destination, messages in one.counts.items():
            covering = places_of(destination or UNREADABLE, kinds)
            self.labels[label_of(covering)] += messages
            for place in covering:
                counts[place] += messages
                score = one.firsts[destination]
                firsts[place] = min(firsts.get(place, score), score)
        return one._replace(counts=counts, firsts=firsts)


def touches(trouble: Trouble, place: str, kinds: Mapping[str, str]) -> bool:
    """Whether a trouble, and not a rule, stops messages of a place or of a part of it."""
    where = trouble.destination.removesuffix(":")
    return not trouble.is_by_rule and overlaps(where, place, kinds)


def overlaps(a: str, b: str, kinds: Mapping[str, str]) -> bool:
    """Whether one place covers the other."""
    return a in places_of(b, kinds) or b in places_of(a, kinds)


def _why(trouble: Trouble, place: str) -> str:
    where = trouble.destination.removesuffix(":")
    return f"{'' if where == place else f'{where}: '}{trouble.reason} ({trouble.worker})"
