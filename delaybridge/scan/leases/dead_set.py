"""The bounds of the dead set, by count and by age."""

from __future__ import annotations

from collections.abc import Iterable

from delaybridge.events import DeadDropped
from delaybridge.scan.leases.bucket_calls import BucketCalls
from delaybridge.scan.leases.session import Session


async def trim(
    calls: BucketCalls, sessions: Iterable[Session], *, most: int | None, age_ms: int | None,
    buckets: int,
) -> None:  # fmt: skip
    """Drop the oldest dead messages beyond these bounds, a few of each bucket.

    most: messages kept in all `buckets` together; each bucket keeps at least one.
    age_ms: the longest that a message is kept. None: no bound.
    """
    asked = {}
    for session in sessions:
        if session.ready and not session.draining:
            keep = None if most is None else _share(most, session.bucket.number, buckets)
            asked[session] = [session.bucket.trim(*session.owner, keep=keep, age_ms=age_ms)]
    answers = await calls.ask(asked)
    if dropped := sum(trimmed.dropped for (trimmed,) in answers.values()):
        calls.emit(DeadDropped(messages=dropped))


def _share(most: int, number: int, buckets: int) -> int:
    """How many messages a bucket may keep, so that all together keep `most`; at least one."""
    return max(1, (most + buckets - 1 - number) // buckets)
