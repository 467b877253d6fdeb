"""A namespace that is resized: where the message of a row is, and how it gets into Redis.

Whoever brings a message, or looks for it, asks the buckets in the order in which messages move: the
source, then the page that is on its way, then the target. Each has its own fence: how far it is, is
read before the row is read again. So nothing is brought that has left one of them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from delaybridge.errors import StoreError
from delaybridge.ledger.comparing.healing import (
    Lacking,
    Presence,
    note_beside,
    restore,
    standing,
)
from delaybridge.ledger.sql.rows import LedgerRow
from delaybridge.store.namespace import registry
from delaybridge.store.protocol import moves
from delaybridge.store.protocol.bucket import Bucket
from delaybridge.store.protocol.layout import Layout
from delaybridge.store.protocol.verbs import Each, LedgerSteps, Work
from delaybridge.store.redis.errors import WrongType

if TYPE_CHECKING:
    from delaybridge.ledger.sql.records import Records
    from delaybridge.store.namespace.following import BucketsFollowed

_TRIES = 5
_STEPS = 2  # source and target
_CALL_MESSAGES, _CALL_BYTES = 100, 2**18  # restored by one script call: a millisecond
_Message = Callable[[LedgerRow], Lacking]
_ELSEWHERE = Presence.ELSEWHERE


def is_alone(records: Records, bucket: Bucket) -> bool:
    """Whether a bucket has all its messages, as far as is known."""
    layout = records.numbers.layout
    return layout is None or (layout.next is None and bucket.number in layout.here)


def regrouped(records: Records, ended: Sequence[int] = ()) -> LedgerSteps[None]:
    """Have rows of buckets that have ended counted to those that have their messages now.

    ended: these, too, as far as it is not known yet.
    """
    layout = records.numbers.of_resized
    if layout is None:
        return
    from delaybridge.ledger.sql.regrouping import regroup  # imports SQLAlchemy

    old = filter(records.numbers.has_ended, layout.here.numbers)
    work = partial(regroup, records, [*old, *ended])
    while (yield Work(work)):
        pass


def agree_layout(records: Records) -> LedgerSteps[None]:
    """Have Redis and the ledger know the same buckets: one of both may have an older past."""
    known = yield Work(records.known)
    (found,) = yield [registry.read_layout(records.namespace)]
    if known is None or found is None:
        return
    (layout, birth), last = found, found[0].epochs[-1]
    if records.numbers.following is not None:
        records.numbers.following.learn(layout, birth)
    later = tuple(each for each in known[0].epochs if each.first > last.first)
    if later:  # a resize that Redis has forgotten
        after = layout._replace(epochs=(*layout.epochs, *later))
        yield [registry.relayout(records.namespace, layout, after, birth)]
    elif known[0].epochs[-1] != last:
        yield Work(partial(records.grow, layout=layout, birth=birth))


def to_be_compared(records: Records, bucket: Bucket, comparison: str) -> LedgerSteps[None]:
    """What is to be done before a bucket is compared as a whole."""
    layout, following = records.numbers.layout, records.numbers.following
    if layout is None or following is None:
        return
    yield from refuse_ended(records, bucket)
    yield from regrouped(records)
    # Calls ask a bucket that gives its messages to this one whether that is compared.
    sources = [n for n in layout.sources(bucket.number) if not following.is_retired(n)]
    yield Each(note_beside(following.bucket(n), comparison) for n in sources)


def refuse_ended(records: Records, bucket: Bucket) -> LedgerSteps[None]:
    """Have Redis refuse calls for buckets whose messages this one has: it may have been wiped.

    Else who has not called since before the resize would be answered by them.
    """
    if (layout := records.numbers.of_resized) is not None:
        ended = [Bucket(records.namespace, n, bucket.birth) for n in layout.ended(bucket.number)]
        yield Each(command for each in ended for command in moves.ended(each))


def is_same_layout(records: Records, before: Layout | None) -> LedgerSteps[bool]:
    """Whether Redis was not wiped while messages moved: it would have other buckets now.

    before: the layout as it was known then.
    """
    following = records.numbers.following
    if following is None or before is None:
        return True
    if before.next is not None:
        (record,) = yield Each([registry.read_layout(records.namespace)])
        if record is not None and not isinstance(record, Exception):
            following.learn(*record)
    return following.layout == before


def along(
    records: Records, rows: Sequence[LedgerRow], message: _Message
) -> LedgerSteps[list[Presence]]:
    """Where the messages of these rows are, in all buckets that may have them.

    message: what is to be brought of a row, or looked for.
    """
    following = records.numbers.following
    assert following is not None, "some buckets are not alone"
    numbers = [row.number for row in rows]
    whole = yield Work(partial(records.of_numbers, numbers=numbers))  # they may lack payloads
    found = {row.number: _ELSEWHERE for row in whole}
    for _ in range(_TRIES):
        yield from following.every_bucket()
        paths = {row.number: records.numbers.path(row) for row in whole}
        for step in range(_STEPS):
            left = _left(paths, found, step)
            found |= yield from _ask_all(records, following, left, step, message)
        if _ELSEWHERE not in found.values():
            return [found.get(number, Presence.LEFT) for number in numbers]
    raise StoreError("redis: messages are on their way to other buckets: call again")


def _left(
    paths: Mapping[int, Sequence[int]], found: Mapping[int, Presence], step: int
) -> dict[int, Sequence[int]]:
    """The paths of rows whose messages are to be looked for at this step."""
    return {n: path for n, path in paths.items() if found[n] is _ELSEWHERE and path[step:]}


def _ask_all(
    records: Records,
    following: BucketsFollowed,
    paths: Mapping[int, Sequence[int]],
    step: int,
    message: _Message,
) -> LedgerSteps[dict[int, Presence]]:
    """What the buckets say that are at this step of the paths of rows, by their numbers."""
    by_bucket = defaultdict[int, list[int]](list)
    for row, path in paths.items():
        by_bucket[path[step]].append(row)
    for source in {path[step - 1] for path in paths.values() if step}:
        yield from following.land_page(following.bucket(source))
    found: dict[int, Presence] = {}
    for number, own in by_bucket.items():
        one = None
        while one is None:  # too much has left since: read them again
            one = yield from _ask(records, following.bucket(number), own, message)
        found |= one
    return found


def _ask(
    records: Records, bucket: Bucket, numbers: Sequence[int], message: _Message
) -> LedgerSteps[dict[int, Presence] | None]:
    """Where the messages of the rows with these numbers are, by one bucket; None: ask again."""
    (as_of,) = yield Each([standing(bucket)])
    rows = yield Work(partial(records.of_numbers, numbers=numbers))
    live = [row for row in rows if row.tier]
    found: list[Presence] = []
    for some in parts_of(live):
        answer: Any = as_of
        if not isinstance(as_of, Exception):
            (answer,) = yield Each([restore(bucket, as_of, map(message, some))])
        if isinstance(answer, WrongType) and records.numbers.has_ended(bucket.number):
            return dict.fromkeys(numbers, _ELSEWHERE)
        if isinstance(answer, Exception):
            raise answer
        if answer is None:
            return None
        found += answer
    there = {row.number: one for row, one in zip(live, found, strict=True)}
    return dict.fromkeys(numbers, Presence.LEFT) | there


def parts_of(rows: Sequence[LedgerRow]) -> Iterator[Sequence[LedgerRow]]:
    """Rows for one script call each."""
    start = size = 0
    for end, row in enumerate(rows):
        size += len(row.payload)
        if end > start and (end - start == _CALL_MESSAGES or size > _CALL_BYTES):
            yield rows[start:end]
            start, size = end, len(row.payload)
    if rows:
        yield rows[start:]
