"""Listing: messages page by page, merged from all buckets."""

from __future__ import annotations

import heapq
import sys
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from delaybridge.message import State
from delaybridge.operate.notices.silent_buckets import Unseen, by_node, why_unseen
from delaybridge.store.messages.lookups import with_reasons
from delaybridge.store.messages.record_filters import ANY, Conditions
from delaybridge.store.messages.selection import span_scores, within
from delaybridge.store.namespace.namespace import Namespace
from delaybridge.store.namespace.rules import covers
from delaybridge.store.protocol.bucket import Bucket
from delaybridge.store.protocol.stored import Stored, stored
from delaybridge.store.protocol.verbs import Each, Steps, store_wide_error

Cursor = tuple[float, str]
LOOKED = 20_000  # records
_LEAST, _GROWN = 16, 128  # records of each bucket: at first, and as long as too few fit
_NARROWED = 5  # times as many are looked at, if Redis returns only what may fit


class Page(NamedTuple):
    """Some messages in order. cursor: pass it on to get the next page; None on the last page.

    unseen: servers whose buckets are missing, if that was allowed.
    """

    items: list[Stored]
    cursor: Cursor | None
    unseen: Sequence[Unseen] = ()


def read_page(
    calls: Namespace,
    state: State,
    destination: str | None,
    span_ms: tuple[int | None, int | None],
    limit: int,
    cursor: Cursor | None,
    partial: bool = False,
    conditions: Conditions = ANY,
) -> Steps[Page]:
    """One page, merged from all buckets by (score, id).

    destination: a place; unlike that of `conditions` it is looked for without an end.
    partial: without buckets whose server does not answer, instead of StoreUnavailable. With
    conditions, or a last due time of others than delayed ones, a page may have fewer messages
    than `limit`, or none, and still a cursor: it ends when about 20,000 records were looked at,
    100,000 of those that Redis looks at (`Conditions.needles`).
    """
    buckets: Sequence[Bucket] = yield from calls.every_bucket()
    unseen: list[Unseen] = []
    # Of each bucket more than its share, which is rarely too little: the rest follows then.
    each, span = max(_LEAST, 2 * limit // len(buckets)), span_scores(state, span_ms)
    is_bounded = (span[1] is None) == (span_ms[1] is None)
    read, needles = 0, conditions.needles
    grown, most = _most_looked_at(conditions, is_bounded)
    items: list[Stored] = []
    is_full, more = False, True
    while more and not is_full and len(items) < limit and read < most:
        buckets, pages = yield from _pages(
            calls, state, each, span, buckets, cursor, unseen, partial, needles
        )
        read += each * len(pages) if needles else sum(len(page_rows) for page_rows, _ in pages)
        each = max(each, min((8 if needles else 2) * each, grown))  # few fit, it seems
        rows, more = _merged(buckets, pages)
        for score, _, number, row in rows:
            # One id may have the same score under several keys. A cursor cannot point between
            # those, so they stay on one page.
            is_full = len(items) >= limit and cursor != (score, row.id)
            if is_full:
                break
            cursor = (score, row.id)
            items += _fitting(calls, stored(row, number), destination, span_ms, conditions)
    found = yield from with_reasons(calls, items)
    return Page(found, cursor if more or is_full else None, tuple(unseen))


def _most_looked_at(conditions: Conditions, is_bounded: bool) -> tuple[int, int]:
    """How many records: of one bucket in one call, and of all of them for one page."""
    most = LOOKED if conditions.are_any or not is_bounded else sys.maxsize
    return (2 * _GROWN, _NARROWED * most) if conditions.needles else (_GROWN, most)


def _pages(
    calls: Namespace,
    state: State,
    limit: int,
    span: tuple[float | None, float | None],
    buckets: Sequence[Bucket],
    cursor: Cursor | None,
    unseen: list[Unseen],
    partial: bool,
    needles: Sequence[bytes],
) -> Steps[tuple[Sequence[Bucket], Sequence[Any]]]:
    """The next rows of each bucket; of those whose server answers, if `partial`."""
    low, high = span
    pages: Sequence[Any] = yield Each(
        bucket.page(state, limit=limit, after=cursor, low=low, high=high, needles=needles)
        for bucket in buckets
    )
    if partial:
        buckets, pages, lost = _seen(calls, buckets, pages)
        unseen += lost
    yield from calls.check(buckets, pages)
    return buckets, pages


def _fitting(
    calls: Namespace,
    item: Stored,
    destination: str | None,
    span_ms: tuple[int | None, int | None],
    conditions: Conditions,
) -> list[Stored]:
    is_bound = destination is None or covers(destination, item.destination, calls.kinds)
    fits = is_bound and within(item.due_ms, span_ms)
    return [item] if fits and conditions.fit(item, calls.kinds) else []


def _seen(
    calls: Namespace, buckets: Sequence[Bucket], pages: Sequence[Any]
) -> tuple[list[Bucket], list[Any], list[Unseen]]:
    """The buckets whose server answers, and their pages; the others."""
    nodes = [calls.placement.node_of(bucket.key("due")) for bucket in buckets]
    why = [
        why_unseen(node, store_wide_error([page])) for node, page in zip(nodes, pages, strict=True)
    ]
    seen = [
        (bucket, page) for bucket, page, lost in zip(buckets, pages, why, strict=True) if not lost
    ]
    numbers = [bucket.number for bucket in buckets]
    lost = by_node(zip(numbers, nodes, why, strict=True))
    return [bucket for bucket, _ in seen], [page for _, page in seen], lost


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
