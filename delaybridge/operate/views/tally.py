"""How many messages of each destination wait: counted if they are few, else estimated.

No script keeps such counts. A counter for each destination would cost every schedule and every
settle more than it is worth, and a client or worker of an older version, which does not know the
counters, would make them wrong for good.
"""

from __future__ import annotations

import math
import random
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from delaybridge.message import State
from delaybridge.store.namespace.namespace import Namespace
from delaybridge.store.namespace.rules import label_of, places_of
from delaybridge.store.protocol.bucket import Bucket
from delaybridge.store.protocol.replies import Tallied
from delaybridge.store.protocol.verbs import Each, RedisCommand, Steps, plain, store_wide_error

MOST_READ, LEAST_READ = 2000, 64  # messages in one state: of all buckets, of each
_AT_ONCE, _MOST_PIPELINES = 300, 128  # messages in a pipeline; pipelines
_OF_A_CALL = 4  # a call costs as much as reading this number of messages
_KEYS = ("due", "mirror", "parked", "dead")  # of STATES
_Z = 1.96  # standard errors: 95 of 100 estimates are off by less
MOST_DESTINATIONS = 200
OTHER, UNREADABLE = "other", "(unreadable)"
STATES = (State.DELAYED, State.IN_FLIGHT, State.PARKED, State.DEAD)


class Tally(NamedTuple):
    """A number of messages. error: 0 if they were counted.

    Else it is an estimate, and is wrong by at most `error` in 95 of 100 cases.
    """

    messages: int
    error: int = 0


class DestinationCounts(NamedTuple):
    """How many messages of one destination are in each state.

    destination: as workers count it, an exchange or topic such as `rabbitmq:orders`, a queue such
    as `rabbitmq:/mails`. From the 201st destination on they are counted together, as `other`.
    `(unreadable)`: messages whose records are damaged.
    """

    destination: str
    delayed: Tally = Tally(0)
    in_flight: Tally = Tally(0)
    parked: Tally = Tally(0)
    dead: Tally = Tally(0)

    @property
    def messages(self) -> int:
        """The messages in all states."""
        return sum(tally.messages for tally in self[1:])


def count_by_destination(calls: Namespace) -> Steps[list[DestinationCounts]]:
    """The destinations that have messages, the one with the most first.

    Of each state up to 2000 messages are read (64 of each bucket, if there are many buckets):
    if there are more, a destination that has very few may be missing.
    """
    buckets = yield from calls.every_bucket()
    by_state = yield from tallied(buckets)
    for replies in by_state:
        yield from calls.check(buckets, replies)
    return by_destination(by_state, calls.kinds)


def tallied(buckets: Sequence[Bucket]) -> Steps[list[list[Any]]]:
    """The tallies, or errors, of all buckets, by state in the order of STATES.

    Redis answers others between two pipelines, of about two milliseconds each. Raises an error
    that concerns the whole store.
    """
    if not buckets:
        return [[] for _ in STATES]
    found: list[Any] = []
    sizes = yield Each([plain("ZCARD", b.key(k), parse=int) for k in _KEYS for b in buckets])
    if (error := store_wide_error(sizes)) is not None:
        raise error  # each of the others might wait as long
    commands = [command for state in STATES for command in tallies_of(buckets, state)]
    for some in _pipelines(commands, sizes, _limit(buckets)):
        found += yield Each(some)
        if (error := store_wide_error(found)) is not None:
            raise error
    count = len(buckets)
    return [found[first : first + count] for first in range(0, len(found), count)]


def _pipelines(
    commands: Sequence[RedisCommand[Any]], sizes: Sequence[Any], limit: int
) -> Iterator[Sequence[RedisCommand[Any]]]:
    """The commands in parts that keep Redis equally busy. sizes: of what each reads, or errors."""
    costs = [_OF_A_CALL + (min(limit, n) if isinstance(n, int) else limit) for n in sizes]
    most, first, sum_ = max(_AT_ONCE, sum(costs) // _MOST_PIPELINES), 0, 0
    for number, cost in enumerate(costs):
        if sum_ and sum_ + cost > most:
            yield commands[first:number]
            first, sum_ = number, 0
        sum_ += cost
    yield commands[first:]


def by_destination(
    by_state: Sequence[Sequence[Tallied]], kinds: Mapping[str, str]
) -> list[DestinationCounts]:
    """The tallies by destination; the one with the most messages first."""
    found: defaultdict[str, dict[str, Tally]] = defaultdict(dict)
    for state, strata in zip(STATES, by_state, strict=True):
        for label, tally in estimated([_labelled(each, kinds) for each in strata]):
            found[label][state.value] = tally
    counts = [DestinationCounts(label, **tallies) for label, tallies in found.items()]
    return sorted(counts, key=lambda each: (-each.messages, each.destination))


def _labelled(found: Tallied, kinds: Mapping[str, str]) -> Tallied:
    """The same, by the label under which a destination is counted."""
    by_label: Counter[str] = Counter()
    for destination, messages in found.counts.items():
        by_label[label_of(places_of(destination or UNREADABLE, kinds))] += messages
    return found._replace(counts=by_label)


def tallies_of(buckets: Sequence[Bucket], state: State) -> list[RedisCommand[Tallied]]:
    """The tally of each bucket. Each draws its own messages, or their errors would add up."""
    limit = _limit(buckets)
    return [bucket.tally(state, limit, random.getrandbits(31)) for bucket in buckets]


def _limit(buckets: Sequence[Bucket]) -> int:
    """How many messages to read in one state of one of these buckets."""
    return max(LEAST_READ, MOST_READ // max(1, len(buckets)))


def estimated(strata: Sequence[Tallied]) -> list[tuple[str, Tally]]:
    """Label -> how many messages there are in all of these buckets."""
    sums: Counter[str] = Counter()
    for each in strata:
        sums.update(each.counts)
    names = {label for label, _ in sums.most_common(MOST_DESTINATIONS)}
    if names != sums.keys():
        strata = [each._replace(counts=_capped(each.counts, names)) for each in strata]
        names |= {OTHER}
    return [(label, tally_of(label, strata)) for label in names]


def _capped(counts: Mapping[str, int], names: set[str]) -> Mapping[str, int]:
    kept: Counter[str] = Counter()
    for label, messages in counts.items():
        kept[label if label in names else OTHER] += messages
    return kept


def tally_of(label: str, strata: Sequence[Tallied]) -> Tally:
    """How many messages of one label there are in all of these buckets.

    Each bucket is a stratum of its own; one that was read as a whole adds no error. The variance
    uses the share among all messages read, with two more hits and misses, as Agresti and Coull do:
    it is never zero, and not smaller than that of the single shares.
    """
    read = sum(each.read for each in strata)
    share = (sum(each.counts.get(label, 0) for each in strata) + 2) / (read + 4)
    messages = variance = 0.0
    for each in strata:
        if each.read:
            messages += each.listed * each.counts.get(label, 0) / each.read
            variance += each.listed * (each.listed - each.read) / each.read
    variance *= share * (1 - share)
    return Tally(round(messages), math.ceil(_Z * math.sqrt(variance)))
