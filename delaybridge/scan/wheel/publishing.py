"""Publish: fired copies go to their lanes when they are due, never earlier."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence, Set
from operator import attrgetter
from typing import Any

from delaybridge.events import Emit, Settled
from delaybridge.scan.lanes.copy import Copy
from delaybridge.scan.lanes.lanes import Lanes
from delaybridge.scan.leases.bucket_calls import BucketCalls
from delaybridge.scan.leases.session import Session
from delaybridge.scan.leases.settling import LedgerSide
from delaybridge.scan.wheel.wheel import BACKWARDS_MS, by_score
from delaybridge.store.protocol.command import RedisCommand


class Publishing:
    """Holds fired copies until they are due. fired: sorted by score after each pass."""

    def __init__(
        self,
        lanes: Lanes,
        calls: BucketCalls,
        emit: Emit,
        fire_lead_ms: int,
        ledger: LedgerSide | None,
    ) -> None:
        """fire_lead_ms: the longest time before its due time that a copy is fired."""
        self._window, self._dispatch = lanes.window, lanes.dispatch
        self._calls, self._emit = calls, emit
        self._passed_ms, self._fire_lead_ms = calls.clock.now_ms(), fire_lead_ms
        self._ledger = ledger
        self.fired: list[Copy] = []

    def add(self, copies: Sequence[Copy]) -> None:
        """These may be published when they are due."""
        self.fired += copies

    def publish(self, now_ms: int) -> None:
        """Hand over the due copies, by score across all buckets."""
        if now_ms < self._passed_ms:  # the store's clock was set back
            self.fired += self._dispatch.recall()
        self._passed_ms = now_ms
        if self.fired:
            self.fired.sort(key=by_score)
            due = bisect_left(self.fired, now_ms + 1, key=by_score)  # by whole milliseconds
            self._dispatch.ready(self.fired[:due])
            del self.fired[:due]
            early_ms = now_ms + self._fire_lead_ms + BACKWARDS_MS
            if self.fired and self.fired[-1].score > early_ms:
                self._take_back(early_ms)
        self._dispatch.publish(now_ms)

    def _take_back(self, early_ms: int) -> None:
        """Return copies to the store that are not due any more since its clock was set back.

        At-most-once copies stay: the store has settled them already.
        """
        early = [c for c in self.fired if c.score > early_ms and not c.record.at_most_once]
        self.fired = [c for c in self.fired if c.score <= early_ms or c.record.at_most_once]
        self.put_back(early)

    def put_back(self, copies: Sequence[Copy]) -> None:
        """Return fired copies to the store, though they could be published."""
        self._window.withdraw(copies)
        for copy in copies:
            copy.session.exits.retry(copy.item, None)

    async def settle_once(self, batch: Mapping[Session, list[Copy]]) -> None:
        """Add the copies of a batch once those to be published at most once are settled.

        Only copies settled by this call may go; of several copies of one message, claimed again as
        `due` came back as it was long ago, the last. The other copies of the same buckets waited
        for it, so that their order stays.
        """
        asked = {session: [_settling(session, copies)] for session, copies in batch.items()}
        answers = await self._calls.ask(asked)
        gone: list[Copy] = []
        for session, copies in batch.items():
            if session in answers:
                gone += self._settled(session, copies, answers[session][0])
            else:
                self._window.withdraw(copies)
        if gone:
            of = Counter([copy.lane.label for copy in gone])
            self._emit(Settled(messages=len(gone), destinations=of))

    def _settled(self, session: Session, copies: Sequence[Copy], ids: Set[str]) -> list[Copy]:
        """The store settled the messages of these ids; returns their copies, which may go."""
        refused = _refused(copies, ids)
        self._window.withdraw([*refused])
        session.ended(len(refused))
        go = [copy for copy in copies if copy not in refused]
        self.add(go)
        gone = [copy for copy in go if copy.record.at_most_once]
        if self._ledger is not None:
            self._ledger.left(session, gone, self._calls.clock.now_ms())
        return gone


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
