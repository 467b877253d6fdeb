"""Fire, and publish: fired copies go to their lanes when they are due, never earlier.

Just before the due time, a fire asks the store a last time which ripe copies may be published. It
raises the bucket's watermark in Redis, returns which copies were cancelled or rescheduled since
their claim, and fails if the lease is lost.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence, Set
from math import ceil, inf
from operator import attrgetter
from typing import Any

from delaybridge import failpoints
from delaybridge.events import Revoked, Settled
from delaybridge.scan.lanes.admission import GO, WAIT
from delaybridge.scan.lanes.lane import Copy
from delaybridge.scan.lanes.lanes import Lanes
from delaybridge.scan.leases.bucket_calls import BucketCalls, LedgerSide, Settling
from delaybridge.scan.leases.exits import ExitReport
from delaybridge.scan.leases.session import Session
from delaybridge.scan.wheel.claiming import Claiming, ScanOptions
from delaybridge.scan.wheel.wheel import BACKWARDS_MS, WaitingCopies, by_score
from delaybridge.store.protocol.replies import Fired
from delaybridge.store.protocol.verbs import RedisCommand

_GATHER_MS = 20  # how long a full lane gathers room before its next fire
_PART = 1000  # messages due at one instant; beyond it, other buckets wait for the next fire
_EACH_MS = 0.1  # that they are late: a part may have one more, so late ones wait a tenth longer

Batch = dict[Session, list[Copy]]


class Publishing:
    """Holds fired copies until they are due. fired: sorted by score after each pass."""

    def __init__(
        self, lanes: Lanes, calls: BucketCalls, fire_lead_ms: int, ledger: LedgerSide | None
    ) -> None:
        """fire_lead_ms: the longest time before its due time that a copy is fired."""
        self._dispatch, self._calls, self._ledger = lanes.dispatch, calls, ledger
        self._passed_ms, self._fire_lead_ms = calls.clock.now_ms(), fire_lead_ms
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
        self._dispatch.withdraw(copies)
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
                self._dispatch.withdraw(copies)
        if gone:
            of = Counter([copy.lane.label for copy in gone])
            self._calls.emit(Settled(messages=len(gone), destinations=of))

    def _settled(self, session: Session, copies: Sequence[Copy], ids: Set[str]) -> list[Copy]:
        """The store settled the messages of these ids; returns their copies, which may go."""
        refused = _refused(copies, ids)
        self._dispatch.withdraw([*refused])
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


class Firing:
    """Fires ripe copies of all buckets together. One fire at a time.

    under_way: a fire has no answer yet. lead_ms: how long before the due time to fire: half of
    `fire_lead_ms`, or two round trips, but no more than all of it. next_look_ms: when a fire is
    worth it though no room is gathered.
    """

    def __init__(
        self, waiting: WaitingCopies, lanes: Lanes, claiming: Claiming, settling: Settling,
        publishing: Publishing, calls: BucketCalls, options: ScanOptions,
    ) -> None:  # fmt: skip
        self._waiting, self._window = waiting, lanes.window
        self._admission, self._dispatch = lanes.admission, lanes.dispatch
        self._claiming, self._settling, self._publishing = claiming, settling, publishing
        self._calls, self._options = calls, options
        self.under_way = False
        self._fired_ms, self.next_look_ms = -inf, inf
        self._took(1.0)

    def _took(self, round_trip_ms: float) -> None:
        self._round_trip_ms = round_trip_ms
        most_ms = self._options.fire_lead_ms
        self.lead_ms = min(most_ms, max(most_ms // 2, ceil(2 * round_trip_ms) + 1))

    def is_ready(self, now_ms: int) -> bool:
        """Whether a fire can be made now, and is worth it.

        In a backlog of one lane it is nearly always full. It gathers room for an eighth of what it
        holds; its broker has the rest meanwhile.
        """
        ripe = self._waiting.ripe
        if not ripe or self.under_way:
            return False
        gathers = 0 <= now_ms - self._fired_ms < _GATHER_MS
        return not gathers or self._window.has_room(ripe[0].lane)

    def start(self, now_ms: int) -> None:
        """Fire, in all buckets at once, the ripe copies that there is room for, by score."""
        if self.is_ready(now_ms):
            batch = self.select(now_ms)
            if batch:
                self.under_way, self._fired_ms = True, now_ms
                # Built here: a claim answered before the task runs must not be covered.
                reports = {session: session.exits.take_report() for session in batch}
                fires = [s.fire(max(map(by_score, copies))) for s, copies in batch.items()]
                self._calls.start(self._fire(batch, reports, fires))
        ends_ms = self._fired_ms + _GATHER_MS
        is_waiting = not self.under_way and self._waiting.ripe and ends_ms > now_ms
        self.next_look_ms = ends_ms if is_waiting else inf

    def select(self, now_ms: int) -> Batch:
        """The next copies by score while there is room, and all others that their fire covers.

        A bucket's fire covers every copy at or below its watermark. So a covered copy goes along
        though its lane is full, and one that cannot be published takes its exit before the fire.
        A burst is fired in parts, by buckets: the first ones are published while the others are
        fired.
        """
        ripe, admit = self._waiting.ripe, self._admission.admit
        horizon = self._horizon(now_ms)
        self._admission.begin_batch()
        batch: Batch = {}
        taken, score = 0, -1.0
        part = max(_PART, (now_ms - ripe[0].score) / _EACH_MS)
        for copy in ripe:
            if taken >= part and copy.score == score and copy.session not in batch:
                break
            score = copy.score
            if score > horizon:
                break
            way = admit(copy, now_ms, may_wait=True)
            if way is GO:
                if (copies := batch.get(copy.session)) is None:
                    batch[copy.session] = [copy]
                else:
                    copies.append(copy)
            elif way is WAIT:
                break
            taken += 1
        self._cover(batch, taken, now_ms)
        return batch

    def _cover(self, batch: Batch, taken: int, now_ms: int) -> None:
        """Take the first `taken` ripe copies, and those after them that the fire covers."""
        ripe = self._waiting.ripe
        gone, kept = ripe[:taken], list[Copy]()
        watermarks = {s: max(s.watermark, copies[-1].score) for s, copies in batch.items()}
        covered = bisect_right(ripe, max(watermarks.values(), default=-1.0), lo=taken, key=by_score)
        for copy in ripe[taken:covered]:
            if copy.score > watermarks.get(copy.session, -1.0):
                kept.append(copy)
                continue
            if self._admission.admit(copy, now_ms, may_wait=False) is GO:
                batch[copy.session].append(copy)
            gone.append(copy)
        self._waiting.taken(gone, kept, covered)

    def _horizon(self, now_ms: int) -> float:
        """Nothing above this score is fired: an earlier message may be unclaimed."""
        horizon = self._claiming.horizon(now_ms)
        # If the wheel is full nothing more can be claimed: firing makes room.
        no_room = not self._claiming.under_way and self._waiting.ripe[0].score > horizon
        return inf if no_room else horizon

    async def _fire(
        self, batch: Batch, reports: dict[Session, ExitReport], fires: list[RedisCommand[Any]]
    ) -> None:
        """Ask the store; publish the copies that are still ours and not revoked."""
        # Exits first: parked and buried messages must leave the mirror before a fire covers them.
        asked = {s: [*reports[s].commands, fire] for s, fire in zip(batch, fires, strict=True)}
        clock = self._calls.clock
        sent_s = clock.monotonic()
        answers = await self._calls.ask(asked, reads_clock=True)
        failpoints.reach("fire.after")
        took_ms = (clock.monotonic() - sent_s) * 1000
        self._settling.answered(answers, reports)
        self._took(self._round_trip_ms + (took_ms - self._round_trip_ms) / 8)
        once: Batch = {}
        for session, copies in batch.items():
            if session not in answers:
                self._dispatch.withdraw(copies)
                continue
            ours = self.covered(session, answers[session][-1], copies)
            if any(copy.record.at_most_once for copy in ours):
                once[session] = ours
            else:
                self._publishing.add(ours)
        if once:
            self._calls.ring()
            await self._publishing.settle_once(once)
        self.under_way = False

    def covered(self, session: Session, fired: Fired, copies: list[Copy]) -> list[Copy]:
        """The copies that one bucket's fire allows to be published.

        Every copy was received before the fire was sent, so the fire covers its claim number.
        """
        if fired.revoked:
            session.claims.revoke(fired)
        if session.alive and not session.claims.revoked and not session.is_away:
            return copies
        ours = [copy for copy in copies if not session.claims.is_revoked(copy.id, copy.claim)]
        if len(ours) < len(copies):
            revoked = [copy for copy in copies if session.claims.is_revoked(copy.id, copy.claim)]
            self._dispatch.withdraw(revoked)
            session.ended(len(revoked))
            self._calls.emit(Revoked(messages=len(revoked)))
        session.claims.forget_revoked()
        if session.is_away:  # by its own node's clock they may not be due yet
            self._publishing.put_back(ours)
            return []
        return ours
