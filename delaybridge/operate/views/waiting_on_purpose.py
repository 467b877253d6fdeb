"""Messages that wait, as wanted: for a consumer, or since their place is paused or has a rate."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import NamedTuple

from delaybridge.errors import DecodeError, StoreError
from delaybridge.message import PULL, State, destination_text
from delaybridge.operate.views.bucket_counts import WAITING, BucketStats, late_from_ms
from delaybridge.operate.views.destinations import PlaceCounts, touches
from delaybridge.operate.views.tally import Tally, tallies_of
from delaybridge.store.namespace.rules import Rules, places_of
from delaybridge.store.protocol.bucket import Bucket
from delaybridge.store.protocol.record import Trouble, split_record
from delaybridge.store.protocol.replies import Row
from delaybridge.store.protocol.verbs import Each, Steps, grouped

_LOOKED = 1000  # messages of each state of a bucket
_LOOKED_BYTES = 2**20


class Paused(NamedTuple):
    """A paused place: since when, in epoch ms (None: unknown), and how many messages wait."""

    place: str
    since_ms: int | None
    waiting: Tally


def paused_places(
    buckets: Sequence[Bucket], known: Rules, kinds: Mapping[str, str]
) -> Steps[list[Paused]]:
    """The places that are paused by a rule of their own."""
    paused = {place: rule.paused_ms for place, rule in known.by_place.items() if rule.paused}
    if not paused:
        return []
    counts = PlaceCounts(kinds, [(yield Each(tallies_of(buckets, State.PARKED)))])
    return [Paused(place, since, *counts.tallies(place)) for place, since in sorted(paused.items())]


def unheld(
    buckets: Sequence[Bucket],
    counts: Sequence[BucketStats],
    known: Rules,
    kinds: Mapping[str, str],
    now_ms: int,
    troubles: Sequence[Trouble] = (),
) -> Steps[list[BucketStats]]:
    """The same counts, `overdue_ms` without the messages that wait as they should.

    A rate holds nothing back where there is trouble, or in a bucket without a worker. Looks among
    the first thousand of each state of a bucket; if all of those are held back, none counts as
    late.
    """
    paused = {place for place, rule in known.by_place.items() if rule.paused}
    rated = (place for place, rule in known.by_place.items() if rule.rate is not None)
    limited = {p for p in rated if not any(touches(each, p, kinds) for each in troubles)}
    holding = [paused | limited if count.owner else paused for count in counts]
    late = [
        at for at, count in enumerate(counts) if (holding[at] or count.parked) and count.overdue_ms
    ]
    if not late:
        return [*counts]
    replies = yield from grouped(
        [
            [buckets[at].page(s, limit=_LOOKED, max_bytes=_LOOKED_BYTES) for s in WAITING]
            for at in late
        ]
    )
    found = [*counts]
    for at, pages in zip(late, replies, strict=True):
        times = _times(pages, holding[at], kinds)
        found[at] = counts[at]._replace(overdue_ms=max(0, now_ms - min(times, default=now_ms)))
    return found


def _times(
    pages: Iterable[tuple[list[Row], bool] | StoreError],
    holding: AbstractSet[str],
    kinds: Mapping[str, str],
) -> Iterator[int]:
    """The times that messages on these pages are late from, if no rule holds them back."""
    for page in pages:
        for row in [] if isinstance(page, StoreError) else page[0]:
            at_ms = late_from_ms(row)
            if at_ms is not None and not _is_held(row, holding, kinds):
                yield at_ms


def _is_held(row: Row, holding: AbstractSet[str], kinds: Mapping[str, str]) -> bool:
    try:
        _, payload = split_record(row.record)
    except DecodeError:
        return False
    text = destination_text(payload)
    if row.state is State.PARKED and text.startswith(f"{PULL}:"):
        return True  # its consumers have not received it
    return bool(holding & {*places_of(text, kinds)})
