"""A session: the time for which this worker holds one bucket's lease, and its state.

When the lease is lost the session is over, and none of its copies may be published.
"""

from __future__ import annotations

import asyncio
from math import inf
from typing import TYPE_CHECKING

from delaybridge.scan.leases.exits import ExitReport, Exits
from delaybridge.store.namespace.orphans import SOUND, KeySizes
from delaybridge.store.protocol.replies import Fired
from delaybridge.store.protocol.verbs import Bucket

if TYPE_CHECKING:
    from delaybridge.scan.scanner import Scanner


class Session:
    """The owner's side of one bucket. Everything it holds is void once `alive` is False.

    last_claim: the number of the last claim received. last_revocation: the turn of the last
    revocation acted upon. watermark: the highest score ever fired; it never falls.
    copies: number claimed and not yet reported to the store as ended. calls: number under way.
    look_at_ms: when to claim next. next_score: no unclaimed message has a lower score. has_more:
    the last claim left messages that are due, or none was made yet. scanner: that works on it.
    server: run id of the server under which the bucket agreed with the ledger. counts: what its
    keys said last; residue: their difference that no walk could mend; was_mended: they contradicted
    one another when it began, or lacked records.
    """

    scanner: Scanner
    server = ""
    was_mended = False

    def __init__(self, bucket: Bucket, token: str, turn: int, ttl_ms: int, taken_s: float) -> None:
        self.bucket = bucket
        self.owner = token, ttl_ms
        self.touched_s = taken_s  # when the last call was sent whose answer renewed the lease
        self.alive = True
        self.ready = False  # all is reclaimed: claims may begin
        self.is_away = False  # its bucket is on another Redis node now, whose clock may differ
        self.last_claim = turn
        self.last_revocation = 0
        self.watermark = -1.0
        self._waiting: dict[int, int] = {}  # claim number -> copies of it not fired yet
        self._revoked: dict[str, int] = {}  # id -> turn
        self.look_at_ms = -inf
        self.claimed_at_ms = 0
        self.next_score = -inf
        self.has_more = True
        self.copies = self.calls = 0
        self.counts, self.residue = KeySizes(), SOUND
        self.moved = asyncio.Event()  # set whenever `copies` or `calls` falls
        self.exits = Exits(bucket, self.owner)

    def __repr__(self) -> str:
        return f"Session(bucket={self.bucket.number}, token={self.token!r}, alive={self.alive})"

    @property
    def token(self) -> str:
        """The lease's value in Redis: scripts compare it."""
        return self.owner[0]

    @property
    def draining(self) -> bool:
        """Whether its lease is to be given up as soon as no copy is left."""
        return self.exits.draining

    @property
    def stays(self) -> bool:
        """Whether its lease is held, and is not to be given up."""
        return self.alive and not self.exits.draining

    @property
    def may_claim(self) -> bool:
        """Whether claims may be made."""
        exits = self.exits
        return self.ready and not (exits.draining or exits.is_unparking)

    # claims and revocations

    def received(self, number: int, copies: int) -> None:
        """A claim's answer arrived."""
        self.last_claim = number
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
            self._revoked[id.decode(errors="replace")] = turn
        if fired.revoked and self.last_claim >= fired.claimed:
            self.last_revocation = max(self.last_revocation, *fired.revoked.values())

    def is_revoked(self, id: str, claim: int) -> bool:
        """Whether the copy of that claim was cancelled, rescheduled or replaced since."""
        turn = self._revoked.get(id) if self._revoked else None
        return turn is not None and claim < turn

    @property
    def is_clear(self) -> bool:
        """Whether the lease is held, and no copy is known to be revoked."""
        return self.alive and not self._revoked

    def forget_revoked(self) -> None:
        """Forget revocations older than every waiting copy."""
        if self._revoked:
            oldest = min(self._waiting, default=inf)
            self._revoked = {id: turn for id, turn in self._revoked.items() if turn > oldest}

    # ends

    def told(self, report: ExitReport) -> None:
        """The store has the report: its copies have ended."""
        self.exits.answered(report)
        self.ended(report.copies)

    def unparked(self, left: int) -> None:
        """Parked messages are back in `due`: claim at once. left: the number still parked."""
        self.exits.unparked(left)
        self.look_at_ms = self.next_score = -inf

    def ended(self, copies: int) -> None:
        """That many copies ended."""
        self.copies -= copies
        self.moved.set()
