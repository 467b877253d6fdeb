"""One taking of one bucket's lease, from acquire to release: what the protocol remembers of it.

When the lease is lost the session is over, with everything on its wheel. What became of claimed
messages gathers here until the store is told, as its `exits`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from math import inf
from typing import Any, NamedTuple

from delaybridge.message import Delivery, Destination, Record
from delaybridge.store.verbs import Bucket, Command, Fired, Item, Tried

_CALL_ITEMS = 1000


class Exits(NamedTuple):
    """Commands that tell the store what became of copies. back_ms: the soonest back-off in them.

    parked: the ids that they set aside.
    """

    told: list[Command[Any]]
    copies: int
    back_ms: int | None
    parked: set[str]


class Session:
    """The owner's side of one bucket. Everything it holds is void once `alive` is False.

    have: the last claim number received. seen: the highest revocation turn acted upon.
    watermark: the highest score ever fired; it never falls.
    """

    def __init__(self, bucket: Bucket, token: str, turn: int, ttl_ms: int, taken_s: float) -> None:
        self.bucket, self.token, self.ttl_ms = bucket, token, ttl_ms
        self.touched_s = taken_s  # when the last answer that renewed the lease was asked for
        self.alive = True
        self.ready = False  # reclaimed to the end: claims may begin
        self.draining = False
        # the protocol
        self.have = turn
        self.seen = 0
        self.watermark = -1.0
        self._waiting: dict[int, int] = {}  # claim -> how many of its copies are not fired yet
        self._revoked: dict[str, int] = {}  # id -> turn
        # when to claim
        self.look_at_ms = -inf
        self.claimed_at_ms = 0
        self.next_score = -inf  # nothing in the bucket is earlier; nobody has looked yet
        # what is under way
        self.copies = 0
        self.calls = 0
        self.moved = asyncio.Event()  # one of the two above fell
        # what the store is to be told
        self._settled: dict[int, list[str]] = {}
        self._retried: list[tuple[Item, int | None, bool, str]] = []
        self._buried: list[tuple[Item, bool, bool, str]] = []
        self._parked: list[Item] = []
        self._parking: set[str] = set()  # by calls under way
        self._unpark_ids: list[str] = []
        self._unpark_all = False
        self._unparking = self._unparking_all = False  # a call under way

    def __repr__(self) -> str:
        return f"Session(bucket={self.bucket.number}, token={self.token!r}, alive={self.alive})"

    # revocations

    def received(self, number: int, copies: int) -> None:
        """A claim arrived."""
        self.have = number
        if copies:
            self._waiting[number] = copies

    def left(self, claim: int, copies: int) -> None:
        """So many copies of that claim wait no more: to be fired, or with another exit."""
        if self._waiting[claim] == copies:
            del self._waiting[claim]
        else:
            self._waiting[claim] -= copies

    def revoke(self, fired: Fired) -> None:
        """Remember what a fire reported, until no copy that it means can be left.

        It is acknowledged only by an owner that holds every claim made before the report: one
        still on its way may hold a copy that the revocation means.
        """
        for id, turn in fired.revoked.items():
            self._revoked[id.decode(errors="replace")] = turn
        if fired.revoked and self.have >= fired.claimed:
            self.seen = max(self.seen, *fired.revoked.values())

    def is_revoked(self, id: str, claim: int) -> bool:
        """Whether the copy of that claim was cancelled, rescheduled or replaced on the wheel."""
        turn = self._revoked.get(id) if self._revoked else None
        return turn is not None and claim < turn

    @property
    def is_clear(self) -> bool:
        """Whether its copies are its own, and none is known to be revoked."""
        return self.alive and not self._revoked

    def forget_revoked(self) -> None:
        """Drop what means only claims of which no copy waits any more."""
        if self._revoked:
            oldest = min(self._waiting, default=inf)
            self._revoked = {id: turn for id, turn in self._revoked.items() if turn > oldest}

    # exits: what became of copies

    def settle(self, claim: int, ids: list[str]) -> None:
        """The broker confirmed them."""
        self._settled.setdefault(claim, []).extend(ids)

    def retry(
        self, item: Item, delay_ms: int | None, *, maybe: bool = False, error: str = ""
    ) -> None:
        """Back to due after a back-off; with None as it was, never attempted."""
        self._retried.append((item, delay_ms, maybe, error))

    def bury(self, item: Item, reason: str, *, counted: bool, maybe: bool = False) -> None:
        """To the dead set. counted: an attempt failed just now."""
        self._buried.append((item, counted, maybe, reason))

    def park(self, item: Item) -> None:
        """Aside, until its broker takes messages again."""
        self._parked.append(item)

    def unpark(self, ids: list[str] | None) -> None:
        """Back from aside: those named, or all. Nothing is claimed until they are back.

        So the next claim finds all of them, in order with what is due later.
        """
        if ids is None:
            self._unpark_all = True
        else:
            self._unpark_ids += ids

    @property
    def is_unparking(self) -> bool:
        """Whether messages are on their way back from aside."""
        return self._unparking or self._unpark_all or bool(self._unpark_ids)

    @property
    def may_claim(self) -> bool:
        """Whether claims may be made."""
        return self.ready and not (self.draining or self.is_unparking)

    @property
    def has_exits(self) -> bool:
        """Whether the store must be told something."""
        return bool(self._settled) or self._is_urgent

    @property
    def may_wait(self) -> bool:
        """Whether what the store must be told is at most what was settled."""
        return not (self.draining or self._is_urgent)

    @property
    def _is_urgent(self) -> bool:
        return bool(self._retried or self._buried or self._parked) or self._may_unpark

    @property
    def _may_unpark(self) -> bool:
        if self._unparking or self.draining:
            return False
        # What a call under way parks could not be found yet.
        if self._unpark_all:
            return not self._parking
        ids = self._unpark_ids[:_CALL_ITEMS]
        return bool(ids) and self._parking.isdisjoint(ids)

    def exits(self) -> Exits:
        """What the store must be told, once: it is forgotten here."""
        told: list[Command[Any]] = []
        bucket, owner = self.bucket, (self.token, self.ttl_ms)
        count = sum(map(len, self._settled.values()))
        count += len(self._retried) + len(self._buried) + len(self._parked)
        if self._parked:
            told += (bucket.park(*owner, part) for part in _parts(self._parked))
        told += (bucket.settle(*owner, part) for part in _groups(self._settled))
        if self._retried:
            told += (bucket.retry(*owner, part) for part in _parts(self._retried))
        if self._buried:
            told += (bucket.bury(*owner, part) for part in _parts(self._buried))
        back_ms = min((ms or 0 for _, ms, _, _ in self._retried), default=None)
        parked = {item.id for item in self._parked}
        self._parking |= parked
        self._settled, self._retried, self._buried, self._parked = {}, [], [], []
        return Exits(told, count, back_ms, parked)

    def told(self, exits: Exits) -> None:
        """The store knows."""
        self._parking -= exits.parked
        self.gone(exits.copies)

    def unparking(self) -> list[Command[Any]]:
        """The command that brings the next parked messages back, if any are wanted.

        To be sent behind the exits that are taken next: they may park them.
        """
        if not self._may_unpark:
            return []
        self._unparking, self._unparking_all, self._unpark_all = True, self._unpark_all, False
        ids: list[str] = []  # none: the earliest of all
        if not self._unparking_all:
            ids, self._unpark_ids = self._unpark_ids[:_CALL_ITEMS], self._unpark_ids[_CALL_ITEMS:]
        return [self.bucket.unpark(self.token, self.ttl_ms, limit=_CALL_ITEMS, ids=ids)]

    def unparked(self, left: int) -> None:
        """The answer to that: so many are still parked, whether or not they are wanted."""
        self._unparking = False
        self._unpark_all = self._unpark_all or (self._unparking_all and left > 0)
        self.look_at_ms = self.next_score = -inf

    def gone(self, copies: int) -> None:
        """So many copies came to their end."""
        self.copies -= copies
        self.moved.set()


class Copy(Delivery):
    """A claimed message in a worker's hands. Named by (id, claim number), as in the store.

    is_plain: nothing but its lane can keep it from being published: it was never tried, has no
    ttl, may be delivered twice, and its headers are as its broker takes them. late_from_ms: its due
    time, or when it was accepted, if it was overdue then. refusals: its lane's, when admitted.
    """

    __slots__ = ("claim", "is_plain", "late_from_ms", "refusals", "score", "session", "tried")
    refusals: int

    def __init__(
        self,
        session: Session,
        claim: int,
        id: str,
        score: float,
        tried: Tried,
        record: Record,
        destination: Destination,
        lane: Any,
    ) -> None:
        due_ms = int(score) if tried.due_ms is None else tried.due_ms
        super().__init__(id, record, destination, due_ms, tried.failures + 1, lane)
        self.late_from_ms = due_ms
        self.session, self.claim, self.score, self.tried = session, claim, score, tried
        self.is_plain = type(record.headers) is lane.headers_type and not (
            tried.failures or record.ttl_ms is not None or record.at_most_once
        )

    @property
    def item(self) -> Item:
        return Item(self.id, self.claim, self.score)


def _groups(settled: dict[int, list[str]]) -> Iterator[list[tuple[int, list[str]]]]:
    """(claim number, ids) groups in calls of a bounded size."""
    call: list[tuple[int, list[str]]] = []
    room = _CALL_ITEMS
    for claim, ids in settled.items():
        while ids:
            call.append((claim, ids[:room]))
            ids = ids[room:]
            room -= len(call[-1][1])
            if room == 0:
                yield call
                call, room = [], _CALL_ITEMS
    if call:
        yield call


def _parts(items: list[Any]) -> list[list[Any]]:
    return [items[i : i + _CALL_ITEMS] for i in range(0, len(items), _CALL_ITEMS)]
