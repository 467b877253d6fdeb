"""A ledger with an older past: a database that was restored, or a replica that was behind.

Whenever a worker has told the ledger what left, it writes the time there (`namespace.told_ms`), and
then into the hash `ledger` of Redis. If the ledger has an earlier time than Redis, it has lost what
was written in between: messages are live in it that were delivered or cancelled since. Redis, which
has forgotten nothing, decides: what it lacks of the calls of before is not restored, but ended.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from delaybridge.ledger.comparing.agreement import PAGE_MESSAGES, looked_for, where
from delaybridge.ledger.comparing.healing import Presence, Standing, standing
from delaybridge.ledger.comparing.promotion import Promoted
from delaybridge.ledger.sql.rows import CANCELLED, COLD, LedgerRow, Step
from delaybridge.store.protocol import keys
from delaybridge.store.protocol.bucket import Bucket
from delaybridge.store.protocol.verbs import LedgerSteps, RedisCommand, Work, plain

if TYPE_CHECKING:
    from delaybridge.ledger.sql.cold import ColdRecords
    from delaybridge.ledger.sql.records import Records

YOUNG_MS = 30_000  # a call may be under way: its row is there, its message not yet
ENDED = "Redis did not have it when the ledger came back with an older past"


class LedgerPast(NamedTuple):
    """What Redis knows of the ledger's past, in epoch milliseconds; 0: nothing.

    told_ms: then the ledger was told what had left. back_ms: it has lost some of what was written
    until then. Of a bucket: ended_ms: the same, of the last loss after which its rows were ended;
    looked_ms, promoted_ms: when its promoter looked last, and until when what it brought was due.
    """

    told_ms: int = 0
    back_ms: int = 0
    ended_ms: int = 0
    looked_ms: int = 0
    promoted_ms: int = 0


def read_past(namespace: str, bucket: int = 0) -> RedisCommand[LedgerPast]:
    """To be read before the ledger's own time is."""
    fields = "told", "back", bucket, f"looked:{bucket}", f"promoted:{bucket}"
    return plain("HMGET", keys.ledger(namespace), *fields, parse=_read_told)


def note(namespace: str, field: str | int, at_ms: int) -> RedisCommand[int]:
    """Remember one of these times. field: "told", "back", or a bucket's number."""
    return plain("HSET", keys.ledger(namespace), field, at_ms, parse=int)


def note_promoted(namespace: str, bucket: int, found: Promoted) -> RedisCommand[int]:
    """Remember how far a bucket's cold messages were brought."""
    fields = f"looked:{bucket}", found.at_ms, f"promoted:{bucket}", found.until_ms
    return plain("HSET", keys.ledger(namespace), *fields, parse=int)


def went_back(namespace: str, at_ms: int) -> list[RedisCommand[Any]]:
    """Remember that the ledger has lost what was written until then.

    Rules and definitions are to be compared again: Redis has later ones.
    """
    return [note(namespace, "back", at_ms), plain("HDEL", keys.controls(namespace), "healed")]


def _read_told(reply: Sequence[bytes | None]) -> LedgerPast:
    return LedgerPast(*(int(each) if each and each.isdigit() else 0 for each in reply))


def end_rows(bucket: Bucket, cold: ColdRecords, worker: str, past: LedgerPast) -> LedgerSteps[int]:
    """End the rows of calls from before the loss whose messages Redis lacks; how many they were.

    Of cold rows those that the promoter had brought, and no others: it may have been behind. What
    Redis has of them is not cold any more.
    """
    total, brought_ms = 0, min(past.back_ms, past.looked_ms - YOUNG_MS)
    hot = partial(cold.records.page, is_brief=True)
    due = partial(cold.due, until_ms=past.promoted_ms)
    for read, before_ms in ((hot, past.back_ms), (due, brought_ms)):
        of_bucket = partial(read, bucket=bucket.number, limit=PAGE_MESSAGES)
        after = (-1, -1)
        while True:
            (as_of,) = yield [standing(bucket)]
            page = yield Work(partial(of_bucket, after=after))
            rows = [row for row in page if row.created_ms < before_ms]
            ended = yield from _end(bucket, cold, worker, as_of, rows)
            if ended is None:
                continue  # too much has left since: read it again
            total += ended
            if len(page) < PAGE_MESSAGES:
                break
            after = page[-1].due_ms, page[-1].number
    return total


def _end(
    bucket: Bucket, cold: ColdRecords, worker: str, as_of: Standing, rows: Sequence[LedgerRow]
) -> LedgerSteps[int | None]:
    """How many of these rows were ended; None: they have to be read again."""
    if not rows:
        return 0
    members = (_member(row) for row in rows)
    gone: RedisCommand[Any] = plain("ZMSCORE", bucket.key("gone"), *members)
    found = yield from where(bucket, cold.records, as_of, rows)
    if found is None:
        return None
    (told_soon,) = yield [gone]
    places = [*zip(rows, found, told_soon, strict=True)]
    here = [row for row, where, _ in places if where is Presence.HERE]
    lost = [row for row, where, soon in places if where is not Presence.HERE and soon is None]
    yield Work(partial(_write, cold, worker, lost, [row for row in here if row.tier == COLD]))
    # A call for one of them may have brought it meanwhile.
    now = yield from _look(bucket, cold.records, lost)
    brought = [row for row, where in zip(lost, now, strict=True) if where is Presence.HERE]
    if brought:
        yield Work(partial(_revive, cold, brought))
    return len(lost) - len(brought)


def _member(row: LedgerRow) -> bytes:
    """The name in `gone` of a message that left: its worker tells it soon."""
    return looked_for(row).stamp + row.id.encode()


def _look(
    bucket: Bucket, records: Records, rows: Sequence[LedgerRow]
) -> LedgerSteps[Sequence[Presence]]:
    found: Sequence[Presence] | None = None if rows else ()
    while found is None:
        (as_of,) = yield [standing(bucket)]
        found = yield from where(bucket, records, as_of, rows)
    return found


def _write(
    cold: ColdRecords, worker: str, lost: Sequence[LedgerRow], here: Sequence[LedgerRow], on: Any
) -> None:
    now_ms = time.time_ns() // 1_000_000
    if lost:
        cold.records.change(on, [row.name for row in lost], CANCELLED, now_ms, error=ENDED)
        about = CANCELLED, now_ms, worker
        steps = [Step(row.id, row.state, *about, row.bucket, error=ENDED) for row in lost]
        cold.records.note(on, steps)
    cold.arrived(on, here)


def _revive(cold: ColdRecords, rows: Sequence[LedgerRow], on: Any) -> None:
    for row in rows:
        cold.revive(on, row.name, error=ENDED)
