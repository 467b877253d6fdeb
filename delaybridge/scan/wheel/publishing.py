"""Publish: fired copies go to their lanes when they are due, never earlier."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence, Set
from operator import attrgetter
from typing import Any, NamedTuple

from delaybridge.scan.lanes.lanes import Lanes
from delaybridge.scan.leases.bucket_calls import Asking
from delaybridge.scan.leases.copy import Copy
from delaybridge.scan.leases.session import Session
from delaybridge.scan.wheel.waiting import BACKWARDS_MS, by_score
from delaybridge.store.protocol.command import RedisCommand


class Publishing:
    """Holds fired copies until they are due. fired: sorted by score after each pass."""

    def __init__(self, lanes: Lanes, now_ms: int, fire_lead_ms: int) -> None:
        """fire_lead_ms: the longest time before its due time that a copy is fired."""
        self._lanes, self._passed_ms, self._fire_lead_ms = lanes, now_ms, fire_lead_ms
        self.fired: list[Copy] = []

    def publish(self, now_ms: int) -> None:
        """Hand over the due copies, by score across all buckets."""
        if now_ms < self._passed_ms:  # the store's clock was set back
            self.fired += self._lanes.recall()
        self._passed_ms = now_ms
        if self.fired:
            self.fired.sort(key=by_score)
            due = bisect_left(self.fired, now_ms + 1, key=by_score)  # by whole milliseconds
            self._lanes.ready(self.fired[:due])
            del self.fired[:due]
            early_ms = now_ms + self._fire_lead_ms + BACKWARDS_MS
            if self.fired and self.fired[-1].score > early_ms:
                self._take_back(early_ms)
        self._lanes.publish(now_ms)

    def _take_back(self, early_ms: int) -> None:
        """Return copies to the store that are not due any more since its clock was set back.

        At-most-once copies stay: the store has settled them already.
        """
        early = [c for c in self.fired if c.score > early_ms and not c.record.at_most_once]
        self.fired = [c for c in self.fired if c.score <= early_ms or c.record.at_most_once]
        self.put_back(early)

    def put_back(self, copies: Sequence[Copy]) -> None:
        """Return fired copies to the store, though they could be published."""
        self._lanes.withdraw(copies)
        for copy in copies:
            copy.session.exits.retry(copy.item, None)


async def settle_once(asking: Asking, batch: Mapping[Session, list[Copy]]) -> SettledOnce:
    """Settle the at-most-once copies of a batch before they are published.

    Only copies settled by this call may go; of several copies of one message, claimed again as
    `due` came back as it was long ago, the last. The other copies of the same buckets waited for
    it, so that their order stays.
    """
    asked = {session: [_settling(session, copies)] for session, copies in batch.items()}
    answers = await asking.ask(asked)
    settled = SettledOnce([], [])
    for session, copies in batch.items():
        if session not in answers:
            settled.stay.extend(copies)
            continue
        (ids,) = answers[session]
        refused = _refused(copies, ids)
        session.ended(len(refused))
        settled.stay.extend(refused)
        settled.go.extend(copy for copy in copies if copy not in refused)
    return settled


def _refused(copies: Sequence[Copy], ids: Set[str]) -> Set[Copy]:
    """The at-most-once copies that may not go. ids: of the messages that were settled."""
    once = sorted((c for c in copies if c.record.at_most_once), key=attrgetter("claim"))
    last = {copy.id: copy for copy in once}
    return {copy for copy in once if copy.id not in ids or last[copy.id] is not copy}


def _settling(session: Session, copies: list[Copy]) -> RedisCommand[Any]:
    claims: dict[int, list[str]] = {}
    for copy in copies:
        if copy.record.at_most_once:
            claims.setdefault(copy.claim, []).append(copy.id)
    return session.bucket.settle_once(*session.owner, claims.items())


class SettledOnce(NamedTuple):
    """Copies that may be published, and those that may not."""

    go: list[Copy]
    stay: list[Copy]
