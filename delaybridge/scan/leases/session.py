"""A session: the time for which this worker holds one bucket's lease, and its state.

When the lease is lost the session is over, and none of its copies may be published.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from math import inf
from typing import Protocol

from delaybridge.message import Delivery
from delaybridge.publish import Outcome
from delaybridge.scan.leases.exits import ExitReport, Exits
from delaybridge.store.namespace.orphans import SOUND, KeySizes
from delaybridge.store.protocol.bucket import Bucket
from delaybridge.store.protocol.replies import Claim, Fired
from delaybridge.store.protocol.verbs import RedisCommand


class Holder(Protocol):
    """Works on the buckets whose leases are held: the scanner."""

    def begin(self, session: Session) -> None:
        """Work on a bucket from now on."""

    async def drain(self, session: Session) -> None:
        """Return when no message of it is claimed any more: then its lease may be released."""

    def session_over(self, session: Session) -> None:
        """The session is over: publish none of its messages."""

    def wake(self, bucket: int, due_ms: int) -> None:
        """A message due at that time may have come into a bucket."""

    def clock_stepped(self, step_ms: int) -> None:
        """The store's clock was set."""

    def report(self, deliveries: Sequence[Delivery], outcome: Outcome) -> None:
        """How publishes of messages of its buckets ended."""

    async def is_sound(self, session: Session) -> bool:
        """Whether the bucket's keys agree with one another, so that the session goes on."""


class Claims:
    """The claims of one session whose copies wait, and what was revoked since.

    last: the number of the last claim received. last_revocation: the turn of the last revocation
    acted upon. revoked: id -> turn.
    """

    def __init__(self, turn: int) -> None:
        self.last, self.last_revocation = turn, 0
        self.revoked: dict[str, int] = {}
        self._waiting: dict[int, int] = {}  # claim number -> copies of it not fired yet

    def received(self, number: int, copies: int) -> None:
        """The answer to this claim arrived. copies: of it that may be fired."""
        self.last = number
        if copies:
            self._waiting[number] = copies

    def waits_no_more(self, claim: int, copies: int) -> None:
        """Copies of that claim were fired, or took another exit."""
        if self._waiting[claim] == copies:
            del self._waiting[claim]
        else:
            self._waiting[claim] -= copies

    def revoke(self, fired: Fired) -> None:
        """Remember the revocations that a fire returned, while copies that they mean may exist.

        They are acknowledged (`last_revocation`) only once every claim made before them has
        arrived: a claim still under way may bring a copy that was revoked.
        """
        for id, turn in fired.revoked.items():
            self.revoked[id.decode(errors="replace")] = turn
        if fired.revoked and self.last >= fired.claimed:
            self.last_revocation = max(self.last_revocation, *fired.revoked.values())

    def is_revoked(self, id: str, claim: int) -> bool:
        """Whether the copy of that claim was cancelled, rescheduled or replaced since."""
        turn = self.revoked.get(id) if self.revoked else None
        return turn is not None and claim < turn

    def forget_revoked(self) -> None:
        """Forget revocations older than every waiting copy."""
        if self.revoked:
            oldest = min(self._waiting, default=inf)
            self.revoked = {id: turn for id, turn in self.revoked.items() if turn > oldest}


class Session:
    """The owner's side of one bucket. Everything it holds is void once `alive` is False.

    holder: works on it. ready: all is reclaimed, claims may begin. is_away: its bucket is on
    another Redis node now, whose clock may differ. touched_s: when the last call was sent whose
    answer renewed the lease. watermark: the highest score ever fired; it never falls.
    copies: number claimed and not yet reported to the store as ended. moved: set whenever it falls,
    or a call ends. look_at_ms: when to claim next. next_score: no unclaimed message has a lower
    score. has_more: the last claim left messages that are due, or none was made
    yet. server: run id of the server under which the bucket agreed with the ledger. counts: what
    its keys said last; residue: their difference that no walk could mend; was_mended: they
    contradicted one another when it began, or lacked records.
    """

    holder: Holder

    def __init__(self, bucket: Bucket, token: str, turn: int, ttl_ms: int, taken_s: float) -> None:
        """token: the lease's value in Redis, which scripts compare."""
        self.bucket, self.token = bucket, token
        self.owner = token, ttl_ms
        self.touched_s = taken_s
        self.alive = True
        self.ready = self.is_away = self.was_mended = False
        self.claims = Claims(turn)
        self.watermark = -1.0
        self.look_at_ms = -inf
        self.claimed_at_ms = 0
        self.next_score = -inf
        self.has_more = True
        self.copies = 0
        self.server = ""
        self.counts, self.residue = KeySizes(), SOUND
        self.moved = asyncio.Event()
        self.exits = Exits(bucket, self.owner)

    def __repr__(self) -> str:
        return f"Session(bucket={self.bucket.number}, token={self.token!r}, alive={self.alive})"

    # from acquire to release

    def begin(self, holder: Holder) -> None:
        """The holder works on the bucket from now on."""
        self.holder = holder

    def reclaimed(self) -> None:
        """All that earlier sessions left is reclaimed: claims may begin."""
        self.ready = True

    def placed(self, *, is_here: bool) -> None:
        """The bucket is on the Redis node whose clock is followed, or on another one."""
        self.is_away = not is_here

    def renewed(self, sent_s: float) -> None:
        """A call sent then has renewed the lease."""
        self.touched_s = max(self.touched_s, sent_s)

    def end(self) -> None:
        """The lease is lost or given up."""
        self.alive = False
        self.moved.set()

    @property
    def draining(self) -> bool:
        """Whether its lease is to be given up as soon as no copy is left."""
        return self.exits.draining

    @property
    def stays(self) -> bool:
        """Whether its lease is held, and is not to be given up."""
        return self.alive and not self.exits.draining

    # its keys

    def counted(self, counts: KeySizes) -> None:
        """The bucket's keys say this."""
        self.counts = counts

    def mended(self, walks: int) -> None:
        """That many walks were made; what still differs cannot be mended."""
        self.residue = self.counts.difference
        self.was_mended = walks > 0 or self.counts.bare > 0  # reclaimed without a record

    def agreed(self, server: str) -> None:
        """Under this server the bucket agrees with the ledger."""
        self.server = server

    # when to claim

    @property
    def may_claim(self) -> bool:
        """Whether claims may be made."""
        exits = self.exits
        return self.ready and not (exits.draining or exits.is_unparking)

    def claim_began(self, now_ms: int) -> None:
        """A claim is under way: do not look before its answer, unless woken."""
        self.claimed_at_ms, self.look_at_ms = now_ms, inf

    def claim_ended(self, claimed: Claim, now_ms: int, ahead_ms: int, pace_ms: int) -> None:
        """Note when to look next: `ahead_ms` before the next message is due, unless more are.

        pace_ms: the shortest time until then.
        """
        next_score = claimed.next_score
        self.next_score = inf if next_score is None else next_score
        next_due_ms = inf if next_score is None else int(next_score)
        look_at_ms = max(next_due_ms - ahead_ms, now_ms + pace_ms)
        self.look_at_ms = min(self.look_at_ms, now_ms if claimed.more else look_at_ms)
        self.has_more = claimed.more
        self.copies += len(claimed.ids)

    def wake(self, due_ms: int, margin_ms: int, ahead_ms: int, pace_ms: int) -> bool:
        """A message due then came: claim it in time, but no earlier than needed.

        margin_ms: before the due time, however long ago the last claim was. Returns whether it must
        be claimed sooner than planned.
        """
        self.next_score = min(self.next_score, due_ms)
        paced_ms = max(self.claimed_at_ms + pace_ms, due_ms - ahead_ms)
        look_at_ms = min(due_ms - margin_ms, paced_ms)
        is_sooner = look_at_ms < self.look_at_ms
        if is_sooner:
            self.look_at_ms = look_at_ms
        return is_sooner

    def look_at_once(self, step_ms: int = 0) -> None:
        """Claim as soon as possible. step_ms: by which the store's clock was set."""
        self.claimed_at_ms += step_ms
        self.look_at_ms = -inf

    def unparked(self, left: int) -> None:
        """Parked messages are back in `due`: claim at once. left: the number still parked."""
        self.exits.unparked(left)
        self.look_at_ms = self.next_score = -inf

    # its copies

    def fire(self, score: float) -> RedisCommand[Fired | None]:
        """The command that fires all up to this score; the watermark is there from now on."""
        self.watermark, claims = max(self.watermark, score), self.claims
        known = claims.last, claims.last_revocation
        return self.bucket.fire(*self.owner, self.watermark, *known)

    def answered(self, report: ExitReport) -> None:
        """The store has the report: its copies have ended."""
        self.ended(report.copies)
        self.exits.answered(report)

    def ended(self, copies: int) -> None:
        """The store knows how that many copies ended."""
        self.copies -= copies
        self.moved.set()
