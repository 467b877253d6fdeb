"""Claim: messages due soon move to the mirror in Redis; their copies wait here.

A claim's answer in bytes becomes copies.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from operator import attrgetter
from typing import cast

from delaybridge import failpoints
from delaybridge.errors import DecodeError
from delaybridge.events import Buried, Claimed, Emit
from delaybridge.message import decode_record
from delaybridge.scan.lanes.lane import Copy, Lot
from delaybridge.scan.lanes.lanes import Lanes
from delaybridge.scan.lanes.routing import Routing
from delaybridge.scan.leases.bucket_calls import BucketCalls
from delaybridge.scan.leases.session import Session
from delaybridge.scan.wheel.wheel import WaitingCopies
from delaybridge.store.protocol.bucket import Item
from delaybridge.store.protocol.record import (
    BACKDATED,
    STAMP,
    UNTRIED,
    parse_tried,
    since_ms,
    split_record,
)
from delaybridge.store.protocol.replies import Claim

MARGIN_MS = 20  # an owner that is woken up claims this long before the due time
_AT_ONCE = 2000  # messages of a backlog in one claim; while they are unpacked, confirms wait
_MOST = 8000  # messages of any claim: Redis does nothing else meanwhile
_PAUSE_MS = 20  # between claims while there is room for less than a batch
_LOOK_AT = attrgetter("look_at_ms")


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanOptions:
    """Bounds of one worker; each is described at the setting of that name.

    pace_ms: the shortest time between two claims from one bucket under load.
    """

    claim_ahead_ms: int = 2000
    wheel_messages: int = 100_000
    wheel_bytes: int = 64 * 2**20
    batch_messages: int = 1000
    batch_bytes: int = 4 * 2**20
    fire_lead_ms: int = 10
    pace_ms: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "pace_ms", self.claim_ahead_ms // 4)


class Claiming:
    """Claims from all buckets whose time has come, in one pipeline, one claim at a time.

    under_way: the sessions of the claim that has no answer yet.
    """

    def __init__(
        self, sessions: Mapping[int, Session], waiting: WaitingCopies, lanes: Lanes,
        calls: BucketCalls, options: ScanOptions,
    ) -> None:  # fmt: skip
        self._sessions, self._waiting = sessions, waiting
        self._routing, self._parking = lanes.routing, lanes.parking
        self._calls, self._options = calls, options
        self.under_way: Sequence[Session] = ()
        self._claimed_ms = -inf

    def start(self, now_ms: int) -> None:
        """Claim from every bucket whose time has come, earliest first, while there is room."""
        if self.under_way or not (wanting := self._wanting(now_ms)):
            return
        room, room_bytes = self._room
        if room <= 0 or room_bytes <= 0:
            return
        ripe = self._waiting.ripe
        if now_ms < self._pause_ends_ms(now_ms) and ripe and ripe[0].score <= self.horizon(now_ms):
            return  # nothing waits for this claim
        options = self._options
        self.under_way = asked = self._first(wanting, room, now_ms)
        self._claimed_ms = now_ms
        limit = max(1, min(options.batch_messages, min(room, _MOST) // len(asked)))
        max_bytes = max(1, min(options.batch_bytes, room_bytes) // len(asked))
        self._calls.start(self._claim(asked, limit, max_bytes, now_ms))

    def horizon(self, now_ms: int) -> float:
        """The lowest score that an unclaimed message may have: fire nothing above it."""
        unclaimed = [*self.under_way, *self._wanting(now_ms)]
        return min((session.next_score for session in unclaimed), default=inf)

    def next_looks_ms(self, now_ms: int) -> list[float]:
        """When the buckets are to be claimed from next."""
        if self.under_way or min(self._room) <= 0:
            return []  # the alarm rings when the claim ends, or when a copy frees its room
        ends_ms = self._pause_ends_ms(now_ms)
        first = min(self._sessions.values(), key=_LOOK_AT, default=None)
        if first is None or first.look_at_ms <= now_ms:  # it may be one that may not claim
            sessions = self._sessions.values()
            return [max(s.look_at_ms, ends_ms) for s in sessions if s.may_claim]
        return [max(first.look_at_ms, ends_ms)]

    def _first(self, wanting: Sequence[Session], room: int, now_ms: int) -> Sequence[Session]:
        """The buckets to claim from now, earliest first: of those with a backlog only some.

        They give whole batches. A full wheel would else be refilled with a few messages from each
        bucket, again and again. Buckets without a backlog cost little, and may have live messages;
        so may one whose next message is not due yet: nothing woke this worker for an earlier one
        that came since.
        """
        ordered = sorted(wanting, key=attrgetter("next_score"))
        behind = [s for s in ordered if s.has_more and s.next_score <= now_ms]
        later = set(behind[max(1, min(_AT_ONCE, room) // self._batch) :])
        return [session for session in ordered if session not in later][:room]

    def _pause_ends_ms(self, now_ms: int) -> float:
        """When to claim next, though there is room for less than a batch."""
        is_tight = self._room[0] < self._batch
        lately = 0 <= now_ms - self._claimed_ms < _PAUSE_MS
        return self._claimed_ms + _PAUSE_MS if is_tight and lately else -inf

    @property
    def _batch(self) -> int:
        """Messages of a backlog to claim from one bucket; the wheel has room for two from each."""
        options, buckets = self._options, max(1, len(self._sessions))
        return max(1, min(options.batch_messages, options.wheel_messages // (2 * buckets)))

    @property
    def _room(self) -> tuple[int, int]:
        """Messages and bytes that may still be claimed."""
        options, waiting = self._options, self._waiting
        return options.wheel_messages - waiting.messages, options.wheel_bytes - waiting.bytes

    def _wanting(self, now_ms: int) -> list[Session]:
        sessions = self._sessions.values()
        return [s for s in sessions if s.look_at_ms <= now_ms and s.may_claim]

    async def _claim(
        self, asked: Sequence[Session], limit: int, max_bytes: int, now_ms: int
    ) -> None:
        options = self._options
        for session in asked:
            session.claim_began(now_ms)
        claims = {
            s: [s.bucket.claim(
                *s.owner, s.claims.last, ahead_ms=options.claim_ahead_ms, limit=limit,
                max_bytes=max_bytes, pace_ms=options.pace_ms, margin_ms=MARGIN_MS,
            )]
            for s in asked
        }  # fmt: skip
        clock = self._calls.clock
        sent_s = clock.monotonic()
        failpoints.reach("claim.before")
        answers = await self._calls.ask(claims, reads_clock=True)
        took_ms = (clock.monotonic() - sent_s) * 1000
        received: Counter[str] = Counter()
        for session, (claimed,) in answers.items():
            self.received(session, claimed, now_ms, received)
        self.under_way = ()
        if messages := received.total():
            failpoints.reach("claim.after")
            self._calls.emit(Claimed(messages=messages, took_ms=took_ms, destinations=received))

    def received(
        self, session: Session, claimed: Claim, now_ms: int, destinations: Counter[str]
    ) -> None:
        """Put one bucket's copies on the wheel, and note when to look again.

        destinations: how many of each; these are added.
        """
        routed_ms = self._calls.clock.now_ms()
        copies = copies_of(session, claimed, self._routing, routed_ms, self._calls.emit)
        session.claim_ended(claimed, now_ms, self._options.claim_ahead_ms, self._options.pace_ms)
        # Empty: a batch whose first answer was lost, and whose messages were cancelled since.
        session.claims.received(claimed.number, len(copies))
        if session.draining:
            for copy in copies:
                session.exits.retry(copy.item, None)
            kept = list[Copy]()
        elif self._routing.rule_book.has_rates:
            kept = self._parking.without_surplus(copies, self._calls.clock.now_ms())
        else:
            kept = copies
        if len(kept) < len(copies):
            session.claims.waits_no_more(claimed.number, len(copies) - len(kept))
        self._waiting.add(kept)
        destinations.update([copy.lane.label for copy in copies])


def copies_of(
    session: Session, claimed: Claim, routing: Routing, now_ms: int, emit: Emit
) -> list[Copy]:
    """The copies of a claim. A record that cannot be read is buried; the others go on.

    A message that is to leave later than at its score, because its destination is spread, goes back
    to `due` instead. So does one that is late, once: else it might overtake an earlier one of its
    key that was put back before.
    """
    copies, lot = [], Lot(session, claimed.number)
    route, is_spread = routing.route, routing.rule_book.is_spread
    all_failures = claimed.tried or [b""] * len(claimed.ids)

    def bury(id: str, stamp: bytes, reason: str) -> None:
        session.exits.bury(Item(id, claimed.number, 0.0, stamp), reason, counted=False)
        emit(Buried(destination="?", messages=1, reason="undecodable"))

    for raw_id, raw, failures in zip(claimed.ids, claimed.records, all_failures, strict=True):
        try:
            id = raw_id.decode()
            score, payload = split_record(raw)
            tried = parse_tried(failures) if failures else UNTRIED
            record = decode_record(payload)
        except UnicodeDecodeError:
            bury(cast(str, raw_id), b"", "undecodable: id")
            continue
        except DecodeError as exc:
            bury(id, raw[STAMP], f"{exc.code}: {exc.detail}")
            continue
        destination, lane = route(record.destination, now_ms)
        copy = Copy(lot, id, score, tried, record, destination, lane)
        copy.stamp = raw[STAMP]
        if raw[0] == BACKDATED:
            copy.late_from_ms = max(copy.late_from_ms, since_ms(raw))
        if not (is_spread and _defers(copy, now_ms)):
            copies.append(copy)
    return copies


def _defers(copy: Copy, now_ms: int) -> bool:
    """Put it back in `due` if it is to leave later than at its score."""
    spread_ms, tried = copy.lane.rules.spread_ms, copy.tried
    if not spread_ms or tried.failures:
        return False
    leaves_at = copy.leaves_at(spread_ms)
    is_late_again = tried.due_ms is not None and leaves_at <= now_ms
    if leaves_at <= copy.score or is_late_again:
        return False
    copy.session.exits.defer(copy.item, leaves_at)
    return True
