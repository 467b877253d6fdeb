"""Bringing a bucket and the ledger into agreement: calls that ask both, page by page.

What a message's row says counts as long as it is live, unless the message has left its bucket: then
`gone` has it until the ledger knows. docs/ledger.md has the rule, tests/protocol explores it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from delaybridge import failpoints
from delaybridge.errors import StoreError
from delaybridge.ledger.comparing.along import along, is_alone, parts_of
from delaybridge.ledger.comparing.healing import (
    Lacking,
    Presence,
    Standing,
    StoredCall,
    drop,
    restore,
    standing,
    stored_calls,
)
from delaybridge.ledger.sql.rows import DEAD, DELAYED, EXPIRED, OVER, LedgerRow
from delaybridge.message import State
from delaybridge.store.protocol.bucket import Bucket
from delaybridge.store.protocol.verbs import Each, LedgerSteps, Work

if TYPE_CHECKING:
    from delaybridge.ledger.sql.records import Records

PAGE_MESSAGES = 1000
_STAMP_BYTES = 4
_LISTED = (State.DELAYED, State.PARKED, State.DEAD)


class WantedRows(NamedTuple):
    """Which rows are to be restored. Times in epoch milliseconds, both ends included.

    ids: only these; None: all. before_call_ms: only rows of calls made before; others may be under
    way. dry: restore nothing, count only.
    """

    from_ms: int = 0
    to_ms: int = 2**53
    ids: frozenset[str] | None = None
    before_call_ms: int = 2**53
    dry: bool = False

    def has(self, row: LedgerRow) -> bool:
        """Whether a row is one of them."""
        is_named = self.ids is None or row.id in self.ids
        return is_named and row.due_ms <= self.to_ms and row.created_ms < self.before_call_ms


class Looked(NamedTuple):
    """What was found. rows: looked at; absent: of messages that Redis lacked, and were restored."""

    rows: int = 0
    absent: int = 0


class Compared(NamedTuple):
    """What Redis has, by the ledger. without_row: of them without a row, and one of their ids.

    dropped: they had ended. mended: rows that said something else. differing: rows that do, and
    what they and Redis say.
    """

    messages: int = 0
    without_row: int = 0
    example: str = ""
    dropped: int = 0
    mended: int = 0
    differing: frozenset[Any] = frozenset()


OnPage = Callable[[Looked], None]


def restore_missing(
    bucket: Bucket,
    records: Records,
    wanted: WantedRows = WantedRows(),  # noqa: B008
    on_page: OnPage = lambda looked: None,
) -> LedgerSteps[Looked]:
    """Restore the messages that a bucket lacks, by the ledger.

    Safe at any time, by anyone: what was settled, cancelled or moved meanwhile is not brought back.
    on_page: called with what one page had.
    """
    after, total = (wanted.from_ms, -1), Looked()
    read = partial(records.page, bucket=bucket.number, limit=PAGE_MESSAGES)
    while True:
        (as_of,) = yield [standing(bucket)]
        page = yield Work(partial(read, after=after))
        rows = [row for row in page if wanted.has(row)]
        absent = yield from _restore(bucket, records, as_of, rows, dry=wanted.dry)
        if absent is None:
            continue  # too much has left since: read it again
        on_page(Looked(len(page), absent))
        total = Looked(total.rows + len(page), total.absent + absent)
        if len(page) < PAGE_MESSAGES or page[-1].due_ms > wanted.to_ms:
            return total
        after = page[-1].due_ms, page[-1].number


def _restore(
    bucket: Bucket, records: Records, as_of: Standing, rows: Sequence[LedgerRow], *, dry: bool
) -> LedgerSteps[int | None]:
    """How many of these rows Redis lacked; None: they have to be read again."""
    if not rows:
        return 0
    found = yield from where(bucket, records, as_of, rows)
    if found is None:
        return None
    absent = [row for row, where in zip(rows, found, strict=True) if where is Presence.ABSENT]
    if not absent or dry:
        return len(absent)
    names = [row.name[:2] for row in absent]
    first = yield Work(lambda on: records.first_calls(on, names))
    wanted = [row for row in absent if first.get(row.name[:2]) == row.stamp]
    brought = yield from bring(bucket, records, as_of, wanted)
    return None if brought is None else brought.count(Presence.ABSENT)


def where(
    bucket: Bucket,
    records: Records,
    as_of: Standing | StoreError,
    rows: Sequence[LedgerRow],
    message: Callable[[LedgerRow], Lacking] | None = None,
) -> LedgerSteps[list[Presence] | None]:
    """Where the messages of rows of a bucket are; None: they have to be read again.

    as_of: read before the rows were; why it was not, of a bucket that gave all its messages away.
    message: what is to be brought of each; None: nothing.
    """
    total: list[Presence] = []
    for some in [rows] if message is None and rows else parts_of(rows):
        found = yield from _places(bucket, records, as_of, some, message or looked_for)
        if found is None:
            return None
        total += found
        if message is not None:
            failpoints.reach("ledger.restored")
    return total


def _places(
    bucket: Bucket,
    records: Records,
    as_of: Standing | StoreError,
    rows: Sequence[LedgerRow],
    message: Callable[[LedgerRow], Lacking],
) -> LedgerSteps[list[Presence] | None]:
    if is_alone(records, bucket):
        if isinstance(as_of, StoreError):
            raise as_of
        (found,) = yield Each([restore(bucket, as_of, map(message, rows))])
        if is_alone(records, bucket):  # perhaps it is known by now that it is not
            if isinstance(found, StoreError):
                raise found
            return found  # type: ignore[no-any-return]
    return (yield from along(records, rows, message))


def bring(
    bucket: Bucket, records: Records, as_of: Standing | StoreError, rows: Sequence[LedgerRow]
) -> LedgerSteps[list[Presence] | None]:
    """Restore these rows of a bucket: as `where`."""
    return (yield from where(bucket, records, as_of, rows, _whole))


def looked_for(row: LedgerRow) -> Lacking:
    """The message of a row, to see whether Redis lacks it."""
    return Lacking(row.id, row.stamp.to_bytes(_STAMP_BYTES, "big"), row.score)


def _whole(row: LedgerRow) -> Lacking:
    reason = (row.error or "dead") if row.state in (DEAD, EXPIRED) else ""
    return looked_for(row)._replace(payload=row.payload, reason=reason)


class Comparing(NamedTuple):
    """What is done with what is found.

    owner: token and ttl of the lease, for a new session: what has ended by the ledger is dropped;
    also what is due later by the ledger, to be restored with that time.
    differed: rows that differed in the same way long ago are mended: no call is changing them now.
    """

    now_ms: int
    owner: tuple[str, int] | None = None
    differed: frozenset[Any] = frozenset()


def compare(bucket: Bucket, records: Records, how: Comparing) -> LedgerSteps[Compared | None]:
    """Look up what a bucket has. Answers None if the lease is lost."""
    total = Compared()
    for state in _LISTED:
        after: tuple[float, str] | None = None
        more = True
        while more:
            ((calls, more),) = yield [stored_calls(bucket, state, limit=PAGE_MESSAGES, after=after)]
            if not calls:
                break
            after = calls[-1].score, calls[-1].id
            found = [each for each in calls if each.stamp]  # one without a record is no message
            one = yield from _compare_page(bucket, records, state, found, how)
            if one is None:
                return None
            total = Compared(
                total.messages + one.messages, total.without_row + one.without_row,
                total.example or one.example, total.dropped + one.dropped,
                total.mended + one.mended, total.differing | one.differing,
            )  # fmt: skip
    return total


def _compare_page(
    bucket: Bucket, records: Records, state: State, calls: Sequence[StoredCall], how: Comparing
) -> LedgerSteps[Compared | None]:
    names = [(bucket.number, each.id, int.from_bytes(each.stamp, "big")) for each in calls]
    known: dict[Any, tuple[str, int]] = yield Work(lambda on: records.states(on, names))
    ended = [
        (each.id, each.stamp)
        for each, name in zip(calls, names, strict=True)
        if _is_past(state, each, *known.get(name, (DELAYED, 0)))
    ]
    dropped = 0
    if ended and how.owner is not None:
        (dropped,) = yield [drop(bucket, how.owner, ended)]
        if dropped is None:
            return None
    strangers = [name[1] for name in names if name not in known]
    differing = frozenset(
        (state, each, name, *known[name])
        for each, name in zip(calls, names, strict=True)
        if name in known and _differs(state, each, *known[name])
    )
    mended = differing & how.differed
    if mended:
        yield Work(lambda on: _mend(records, on, mended, how.now_ms))
    example = strangers[0] if strangers else ""
    return Compared(len(calls), len(strangers), example, dropped, len(mended), differing - mended)


def _is_past(state: State, call: StoredCall, said: str, due_ms: int) -> bool:
    """Whether a message has ended since, or has a later due time now."""
    # After an attempt Redis has the time of the next one.
    is_waiting = state is not State.DEAD and said == DELAYED and not call.tried
    return said in OVER or (is_waiting and int(call.score) < due_ms)


def _differs(state: State, call: StoredCall, said: str, due_ms: int) -> bool:
    """Whether a live row says something else than Redis does."""
    if said in OVER:
        return False
    if (state is State.DEAD) != (said in (DEAD, EXPIRED)):
        return True
    # After an attempt Redis has the time of the next one.
    return state is not State.DEAD and not call.tried and int(call.score) != due_ms


def _mend(records: Records, on: Any, differing: Iterable[Any], now_ms: int) -> None:
    for state, call, name, *_ in differing:
        if state is State.DEAD:
            records.change(on, [name], DEAD, now_ms)
        else:
            due_ms = None if call.tried else int(call.score)
            records.change(on, [name], DELAYED, now_ms, due_ms=due_ms)
