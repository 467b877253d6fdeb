"""Calls that show messages: one by id, or page by page."""

from __future__ import annotations

import heapq
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from delaybridge.message import State
from delaybridge.store.fleet import announcements
from delaybridge.store.messages.changes import asked_for
from delaybridge.store.messages.record_filters import ANY, Conditions
from delaybridge.store.messages.selection import span_scores, within
from delaybridge.store.namespace import registry, rules
from delaybridge.store.namespace.namespace import Namespace
from delaybridge.store.namespace.rules import Rules, place_of, places_of
from delaybridge.store.namespace.silent_buckets import Unseen, by_node, why_unseen
from delaybridge.store.protocol.command import Each, Steps, store_wide_error
from delaybridge.store.protocol.ids import quarantine_ids
from delaybridge.store.protocol.replies import Row
from delaybridge.store.protocol.stored import Stored, stored
from delaybridge.store.protocol.troubles import ORPHANED, WorkerTroubles, first_word
from delaybridge.store.protocol.verbs import Bucket

Cursor = tuple[float, str]
LOOKED = 20_000  # records
_LEAST, _GROWN = 16, 128  # records of each bucket: at first, and as long as too few fit


class Page(NamedTuple):
    """Some messages in order. cursor: pass it on to get the next page; None on the last page.

    unseen: servers whose buckets are missing, if that was allowed.
    """

    items: list[Stored]
    cursor: Cursor | None
    unseen: Sequence[Unseen] = ()


class Views(Namespace):
    """Calls that change nothing."""

    def get(self, id: str, key: bytes | None) -> Steps[Stored | None]:
        """The message with this id in any state; None if there is none."""
        asked = asked_for(id, key, (yield from self.open()))
        rows = yield Each(bucket.get(id) for bucket in asked)
        for bucket, row in zip(asked, rows, strict=True):
            if isinstance(row, Row):
                (found,) = yield from self._with_reasons([stored(row, bucket.number)])
                return found
        yield from self.check(asked, rows)
        return None

    def quarantined(self, id: str) -> Steps[list[Stored]]:
        """The messages that ingest quarantined with this id; they are in the dead set."""
        bucket = asked_for(id, None, (yield from self.open()))[0]
        rows = yield [bucket.get(name) for name in quarantine_ids(id)]
        return [stored(row, bucket.number) for row in rows if row is not None]

    def page(
        self,
        state: State,
        destination: str | None,
        span_ms: tuple[int | None, int | None],
        limit: int,
        cursor: Cursor | None,
        partial: bool = False,
        conditions: Conditions = ANY,
    ) -> Steps[Page]:
        """One page, merged from all buckets by (score, id).

        partial: without buckets whose server does not answer, instead of StoreUnavailable. With
        conditions, or a last due time of others than delayed ones, a page may have fewer messages
        than `limit`, or none, and still a cursor: it ends when about 20,000 records were looked at.
        """
        if conditions.place is not None:
            conditions = replace(conditions, place=place_of(conditions.place, self.kinds))
        buckets: Sequence[Bucket] = yield from self.open()
        unseen: list[Unseen] = []
        # Of each bucket more than its share, which is rarely too little: the rest follows then.
        each, span = max(_LEAST, 2 * limit // len(buckets)), span_scores(state, span_ms)
        is_bounded = (span[1] is None) == (span_ms[1] is None)
        read, most = 0, LOOKED if conditions.are_any or not is_bounded else sys.maxsize
        items: list[Stored] = []
        is_full, more = False, True
        while more and not is_full and len(items) < limit and read < most:
            buckets, pages = yield from self._pages(
                state, each, span, buckets, cursor, unseen, partial
            )
            each = max(each, min(2 * each, _GROWN))  # few fit, it seems
            read += sum(len(page_rows) for page_rows, _ in pages)
            rows, more = _merged(buckets, pages)
            for score, _, number, row in rows:
                # One id may have the same score under several keys. A cursor cannot point between
                # those, so they stay on one page.
                is_full = len(items) >= limit and cursor != (score, row.id)
                if is_full:
                    break
                cursor = (score, row.id)
                items += self._fitting(stored(row, number), destination, span_ms, conditions)
        found = yield from self._with_reasons(items)
        return Page(found, cursor if more or is_full else None, tuple(unseen))

    def _pages(
        self,
        state: State,
        limit: int,
        span: tuple[float | None, float | None],
        buckets: Sequence[Bucket],
        cursor: Cursor | None,
        unseen: list[Unseen],
        partial: bool,
    ) -> Steps[tuple[Sequence[Bucket], Sequence[Any]]]:
        """The next rows of each bucket; of those whose server answers, if `partial`."""
        low, high = span
        pages: Sequence[Any] = yield Each(
            bucket.page(state, limit=limit, after=cursor, low=low, high=high) for bucket in buckets
        )
        if partial:
            buckets, pages, lost = self._seen(buckets, pages)
            unseen += lost
        yield from self.check(buckets, pages)
        return buckets, pages

    def _fitting(
        self,
        item: Stored,
        destination: str | None,
        span_ms: tuple[int | None, int | None],
        conditions: Conditions,
    ) -> list[Stored]:
        fits = destination in (None, item.destination) and within(item.due_ms, span_ms)
        return [item] if fits and conditions.fit(item, self.kinds) else []

    def _seen(
        self, buckets: Sequence[Bucket], pages: Sequence[Any]
    ) -> tuple[list[Bucket], list[Any], list[Unseen]]:
        """The buckets whose server answers, and their pages; the others."""
        nodes = [self.placement.node_of(bucket.key("due")) for bucket in buckets]
        why = [
            why_unseen(node, store_wide_error([page]))
            for node, page in zip(nodes, pages, strict=True)
        ]
        seen = [
            (bucket, page)
            for bucket, page, lost in zip(buckets, pages, why, strict=True)
            if not lost
        ]
        numbers = [bucket.number for bucket in buckets]
        lost = by_node(zip(numbers, nodes, why, strict=True))
        return [bucket for bucket, _ in seen], [page for _, page in seen], lost

    def _with_reasons(self, items: list[Stored]) -> Steps[list[Stored]]:
        """The same items; parked ones with the reason, as their bucket's worker announced it."""
        numbers = sorted({item.bucket for item in items if item.state is State.PARKED})
        if not numbers:
            return items
        asked = [self._buckets[number].holder() for number in numbers]
        fleet = [*registry.fleet(self.namespace), rules.read(self.namespace)]
        replies = yield Each([*asked, *fleet, self.clock()])
        if (error := store_wide_error(replies)) is not None:
            raise error
        *holders, info, expiries, stored, now_us = replies
        holder_of = dict(zip(numbers, holders, strict=True))
        living = announcements.workers([info, expiries], now_us // 1000)
        troubles = {each.name: each.said for each in living}
        known = announcements.obeyed(stored, living)

        def why(item: Stored) -> str:
            holder = holder_of[item.bucket]
            obeys = holder in troubles and troubles[holder].paused is not None
            paused = _why_paused(places_of(item.destination, self.kinds), known) if obeys else ""
            return _why_held(item) or paused or _why_parked(item.destination, holder, troubles)

        return [
            replace(item, reason=why(item)) if item.state is State.PARKED else item
            for item in items
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


def _merged(buckets: Sequence[Bucket], pages: Sequence[Any]) -> tuple[Iterable[Any], bool]:
    """Rows of all buckets by (score, id), up to where a bucket that has more was cut off."""
    cuts = [(rows[-1].score, rows[-1].id.encode()) for rows, more in pages if more and rows]
    cut = min(cuts) if cuts else None
    lists = [
        [(row.score, row.id.encode(), bucket.number, row) for row in rows]
        for bucket, (rows, _) in zip(buckets, pages, strict=True)
    ]
    merged = heapq.merge(*lists, key=lambda r: r[:3])
    if cut is None:
        return merged, False
    return (r for r in merged if (r[0], r[1]) <= cut), True
