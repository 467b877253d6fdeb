"""Exits: how copies of one bucket ended, gathered until the store is told."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from delaybridge.store.messages.pulling import offer
from delaybridge.store.protocol.bucket import Bucket, Item
from delaybridge.store.protocol.verbs import RedisCommand

_CALL_ITEMS = 1000  # messages in one call of a script


class SentMessage(Protocol):
    """A message that its broker has. stamp: of the call that scheduled it."""

    id: str
    stamp: bytes
    due_ms: int


class ExitReport(NamedTuple):
    """Commands that tell the store how copies ended.

    copies: their number. back_off_ms: the shortest back-off among them, None if no copy is retried.
    parked: ids of the copies that it parks. settled: how many of each destination it settles.
    deferred_to: the earliest score of those that it defers, None if it defers none. published:
    copies that it settles. retried, buried: as passed to `Exits`.
    """

    commands: list[RedisCommand[Any]]
    copies: int
    back_off_ms: int | None
    parked: set[str]
    settled: Mapping[str, int]
    deferred_to: float | None = None
    published: Sequence[SentMessage] = ()
    retried: Sequence[tuple[Item, int | None, bool, str]] = ()
    buried: Sequence[tuple[Item, bool, bool, str]] = ()


class Exits:
    """Gathers exits of one session's copies: settle, retry, defer, bury, park; and unpark.

    touched: something may have changed since `any` was last False.
    """

    def __init__(self, bucket: Bucket, owner: tuple[str, int]) -> None:
        """owner: the lease's token, and its ttl in ms."""
        self._bucket, self._owner = bucket, owner
        self.draining, self.touched = False, True
        self._settled: dict[int, list[str]] = {}
        self._published: list[SentMessage] = []
        self._unanswered: list[Sequence[SentMessage]] = []  # in reports that have no answer yet
        self._settled_of: dict[str, int] = {}  # destination -> how many of these
        self._retried: list[tuple[Item, int | None, bool, str]] = []
        self._deferred: list[tuple[Item, float]] = []
        self._buried: list[tuple[Item, bool, bool, str]] = []
        self._parked: list[Item] = []
        self._offered: list[tuple[Item, str]] = []
        self._parking: set[str] = set()  # in reports that have no answer yet
        self._unpark_ids: list[str] = []
        self._unpark_all = False
        self._unparking = self._unparking_all = False  # a call that has no answer yet

    def drain(self) -> None:
        """Bring no parked messages back any more, and let no exit wait for others."""
        self.draining = True

    def settle(self, claim: int, copies: Sequence[SentMessage], destination: str) -> None:
        """Remove these messages from the store: the broker confirmed them."""
        self.touched = True
        self._settled.setdefault(claim, []).extend([copy.id for copy in copies])
        self._settled_of[destination] = self._settled_of.get(destination, 0) + len(copies)
        self._published += copies

    def retry(
        self, item: Item, delay_ms: int | None, *, maybe: bool = False, error: str = ""
    ) -> None:
        """Put it back in `due` after a back-off. delay_ms None: unchanged, no attempt counted."""
        self.touched = True
        self._retried.append((item, delay_ms, maybe, error))

    def defer(self, item: Item, score: float) -> None:
        """Put it back in `due` until this later score; no attempt is counted."""
        self.touched = True
        self._deferred.append((item, score))

    def bury(self, item: Item, reason: str, *, counted: bool, maybe: bool = False) -> None:
        """Move it to the dead set. counted: an attempt failed just now."""
        self.touched = True
        self._buried.append((item, counted, maybe, reason))

    def park(self, item: Item) -> None:
        """Move it to the parked set, until its broker takes messages again."""
        self.touched = True
        self._parked.append(item)

    def offer(self, item: Item, destination: str) -> None:
        """Set it aside for the consumers of this pull topic."""
        self.touched = True
        self._offered.append((item, destination))

    def unpark(self, ids: list[str] | None) -> None:
        """Bring these parked messages back to `due`, or (None) all.

        Nothing is claimed until they are back, so the next claim finds them in order.
        """
        self.touched = True
        if ids is None:
            self._unpark_all = True
        else:
            self._unpark_ids += ids

    @property
    def is_unparking(self) -> bool:
        """Whether parked messages are going back to `due`, or are to."""
        return self._unparking or self._unpark_all or bool(self._unpark_ids)

    @property
    def is_parking(self) -> bool:
        """Whether the store may not have been told yet of messages that reports park."""
        return bool(self._parking)

    @property
    def any(self) -> bool:
        """Whether the store must be told something."""
        self.touched = bool(self._settled) or self._is_urgent
        return self.touched

    @property
    def may_wait(self) -> bool:
        """Whether there is nothing more urgent to tell than settled messages."""
        return not (self.draining or self._is_urgent)

    @property
    def _is_urgent(self) -> bool:
        moved = self._retried or self._deferred or self._buried or self._parked
        return bool(moved or self._offered) or self._may_unpark

    @property
    def _may_unpark(self) -> bool:
        if not (self._unpark_all or self._unpark_ids) or self._unparking or self.draining:
            return False
        # An unpark must not overtake the report that parks its messages.
        if self._unpark_all:
            return not self._parking
        ids = self._unpark_ids[:_CALL_ITEMS]
        return bool(ids) and self._parking.isdisjoint(ids)

    def take_report(self) -> ExitReport:
        """Everything gathered since the last report. The caller must tell the store."""
        commands: list[RedisCommand[Any]] = []
        bucket, owner = self._bucket, self._owner
        settled = self._settled_of
        count = sum(settled.values())
        count += len(self._retried) + len(self._deferred) + len(self._buried) + len(self._parked)
        count += len(self._offered)
        commands += (offer(bucket, owner, part) for part in _parts(self._offered))
        commands += (bucket.park(*owner, part) for part in _parts(self._parked))
        commands += (bucket.settle(*owner, part) for part in _by_claim(self._settled))
        commands += (bucket.retry(*owner, part) for part in _parts(self._retried))
        commands += (bucket.defer(*owner, part) for part in _parts(self._deferred))
        commands += (bucket.bury(*owner, part) for part in _parts(self._buried))
        back_off_ms = min((ms or 0 for _, ms, _, _ in self._retried), default=None)
        deferred_to = min((score for _, score in self._deferred), default=None)
        parked = {item.id for item in self._parked}
        self._parking |= parked
        history = self._published, self._retried, self._buried
        if self._published:
            self._unanswered.append(self._published)
        self._settled, self._published, self._retried, self._deferred = {}, [], [], []
        self._settled_of = {}
        self._buried, self._parked, self._offered = [], [], []
        return ExitReport(commands, count, back_off_ms, parked, settled, deferred_to, *history)

    def answered(self, report: ExitReport) -> None:
        """The store has the report."""
        self.touched = True
        self._parking -= report.parked
        self._unanswered = [each for each in self._unanswered if each is not report.published]

    @property
    def untold(self) -> list[SentMessage]:
        """Copies that a broker confirmed, of which the store may not have heard."""
        return [copy for some in (*self._unanswered, self._published) for copy in some]

    def take_unpark(self) -> list[RedisCommand[Any]]:
        """The command that unparks the wanted messages; none if there are no such.

        Send it after the next report, which may park some of them.
        """
        if not self._may_unpark:
            return []
        self._unparking, self._unparking_all, self._unpark_all = True, self._unpark_all, False
        ids: list[str] = []  # empty: the earliest of all
        if not self._unparking_all:
            ids, self._unpark_ids = self._unpark_ids[:_CALL_ITEMS], self._unpark_ids[_CALL_ITEMS:]
        return [self._bucket.unpark(*self._owner, limit=_CALL_ITEMS, ids=ids)]

    def unparked(self, left: int) -> None:
        """The answer of that command. left: the number still parked."""
        self._unparking, self.touched = False, True
        self._unpark_all = self._unpark_all or (self._unparking_all and left > 0)


def _by_claim(settled: dict[int, list[str]]) -> Iterator[list[tuple[int, list[str]]]]:
    """Lists of (claim number, ids), each with at most `_CALL_ITEMS` ids in all."""
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


def _parts(items: list[Any]) -> Iterator[list[Any]]:
    return (items[i : i + _CALL_ITEMS] for i in range(0, len(items), _CALL_ITEMS))
