"""The past of its buckets as a worker remembers it, to notice that Redis has forgotten it.

A Redis that is restored from an older snapshot, or a replica that was behind and took over, has
lower turns and counters than a worker saw there before: they only ever grow. Those of the buckets
held are read once a second, and a taken lease has a turn of its own, higher than any before. A
namespace whose record is gone, or is another one, was wiped.

With a ledger all of it is rebuilt, but for messages without a row: these are remembered, too.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from delaybridge.errors import StoreUnavailable, StoreWiped
from delaybridge.events import Emit, StoreWentBack
from delaybridge.scan.leases.session import Session
from delaybridge.store.namespace import history_alarm, marks, registry
from delaybridge.store.namespace.history_alarm import Setback
from delaybridge.store.namespace.marks import UNKNOWN, Marks, turn_of
from delaybridge.store.protocol.verbs import RedisCommand
from delaybridge.store.redis.store import AsyncStore
from delaybridge.worker.eventlog import say
from delaybridge.worker.parts import Part, RunView

# A master that failed over and starts again empty answers for a moment, until it is demoted.
_SURE_BEATS = 3
_RECENT_BEATS = 60  # what Redis had in them may be lost; after a loss, leases are taken again first


class Past(Part):
    """A part of the pulse, which a worker keeps when its scanner starts again.

    marks: of the buckets held, as read in this beat; of one whose marks cannot be read, none.
    known: the last marks, by bucket. doubt: buckets that went back, and were not compared with the
    ledger since.
    """

    name = "past"

    def __init__(self, namespace: str, worker: str, instance: str, emit: Emit) -> None:
        self._namespace, self._who, self._emit = namespace, (worker, instance), emit
        self.marks: dict[int, Marks] = {}
        self.known: dict[int, Marks] = {}
        self.doubt: set[int] = set()
        self._asked: dict[int, Session] = {}
        self._read: list[int] = []  # the buckets whose marks were asked for
        self._rowless = deque[Mapping[int, int]](maxlen=_RECENT_BEATS)  # of the last beats
        self._missing = 0  # beats in a row without the namespace's record
        self._ended: list[Session] = []  # their leases are to be released
        self._went_back: dict[int, Marks] = {}  # what was known of those whose lease tells it
        self._untold: dict[int, Setback] = {}  # Redis has not taken them yet

    def begin(self, run: RunView) -> None:
        """Watch the leases of this run from now on."""
        self._run, self._birth = run, run.calls.birth

    def taken(self, bucket: int, token: str | None) -> None:
        """A lease was taken (None: it ended). Its turn is new, unless Redis has gone back."""
        if token is None:
            return
        now = Marks(turn_of(token))
        before = self.known.get(bucket)
        if before is not None and now.turn <= before.turn:
            self.doubt.add(bucket)
            self._went_back.setdefault(bucket, before)  # told at the next beat, with its counters
            self.known[bucket] = now
        elif before is not None:
            self.known[bucket] = before._replace(turn=now.turn)
        else:
            self.known[bucket] = now

    def commands(self) -> Sequence[RedisCommand[Any]]:
        """A look at the namespace's record, and at the marks of the buckets held; what is to be
        kept, and leases to be released.
        """
        self._asked = {session.bucket.number: session for session in self._run.sessions()}
        held = list(self._run.held())
        self._read = [bucket.number for bucket in held]
        ended, self._ended = self._ended, []
        return [
            registry.read_layout(self._namespace),
            *(marks.read(bucket) for bucket in held),
            *(history_alarm.note(self._namespace, each) for each in self._untold.values()),
            # An older Redis may know their leases, so that no worker could take these buckets.
            *(session.bucket.release(session.token) for session in ended),
        ]

    def take_replies(self, replies: Sequence[Any]) -> None:
        """Compare with what was known."""
        birth, *others = replies
        found_marks, kept = others[: len(self._read)], others[len(self._read) :]
        self.marks = {
            number: each
            for number, each in zip(self._read, found_marks, strict=True)
            if isinstance(each, Marks)
        }
        for bucket, reply in zip(list(self._untold), kept, strict=False):
            if not isinstance(reply, Exception):
                del self._untold[bucket]
        if isinstance(birth, Exception):
            return
        if birth is None or birth[1] != self._birth:
            self._missing += 1
            if self._missing >= _SURE_BEATS:
                self._run.wipe()
            return
        self._missing = 0
        if self._run.calls.following.learn(*birth):
            self._run.regroup()
        found = self._with_rest(dict(self._setbacks()))
        if found:  # kept in Redis by the next beat
            self._untold |= found
            missing = sum(each.missing for each in found.values())
            reason = history_alarm.setbacks_text([*found.values()])
            self._emit(StoreWentBack(buckets=sorted(found), missing=missing, reason=reason))

    def _setbacks(self) -> Iterator[tuple[int, Setback]]:
        for bucket, now in self.marks.items():
            session = self._asked.get(bucket)
            # Of a session that has ended meanwhile, the answer may be older than what is known.
            if session is not None and session.alive:
                forgotten = self._forgotten(session, now)
                self.known[bucket] = now
                if forgotten is not None:
                    yield bucket, self._setback(bucket, *forgotten, now)

    def _forgotten(self, session: Session, now: Marks) -> tuple[Marks, int] | None:
        """What Redis does not know any more, and the turn that it went back to; None: nothing."""
        bucket = session.bucket.number
        before = self.known.get(bucket, now)
        if before.fell_to(now):
            self.doubt.add(bucket)
            self._run.lose(session, "Redis went back to an older state")
            self._ended.append(session)
            return self._went_back.pop(bucket, before), max(now.turn, 0)
        taken = self._went_back.pop(bucket, None)
        return None if taken is None else (taken, turn_of(session.token) - 1)

    def _setback(self, bucket: int, before: Marks, to_turn: int, now: Marks) -> Setback:
        are_known = min(before.scheduled, now.scheduled) > UNKNOWN
        missing = max(0, before.scheduled - now.scheduled) if are_known else 0
        at_ms = time.time_ns() // 1_000_000
        return Setback(at_ms, self._who[0], bucket, before.turn, to_turn, missing)

    def _with_rest(self, found: dict[int, Setback]) -> dict[int, Setback]:
        """These with what the ledger lacks; what there is of that now is remembered."""
        if self._run.rowless is None:
            return found
        had = self._had() if found else {}
        now = self._run.rowless().items()
        self._rowless.append({n: each for n, each in now if each and n in self._asked})
        return {n: each._replace(rowless=had.get(n, 0)) for n, each in found.items()}

    def _had(self) -> dict[int, int]:
        """Bucket -> the most messages without a row in the last beats."""
        most: dict[int, int] = {}
        for each in self._rowless:
            most |= {n: max(count, most.get(n, 0)) for n, count in each.items()}
        return most

    async def tell_wiped(self, store: AsyncStore) -> None:
        """Have it kept that the namespace was wiped, if Redis takes it; and leave the fleet."""
        seen = time.time_ns() // 1_000_000, self._who[0]
        found = [Setback(*seen)]
        for bucket, rowless in self._had().items():
            found.append(Setback(*seen, bucket, self.known[bucket].turn, rowless=rowless))
        hint = "no worker starts before: delaybridge alarm clear"
        if store.recorder is not None:
            hint = "it is made again by the ledger"
        say(logging.ERROR, "store_wiped", reason=history_alarm.setbacks_text(found), hint=hint)
        leaves = registry.announce(self._namespace, *self._who, 0)
        notes = [history_alarm.note(self._namespace, each) for each in found]
        await store.run_each([*notes, leaves])


async def refuse_wiped(store: AsyncStore, namespace: str) -> None:
    """Raise StoreWiped if a worker saw that the namespace was wiped, until that is cleared.

    StoreUnavailable if Redis does not answer.
    """
    (reply,) = await store.run_each([history_alarm.read(namespace)])
    if isinstance(reply, StoreUnavailable):
        raise reply
    found = history_alarm.kept(reply)
    if any(each.bucket is None for each in found):
        raise StoreWiped(
            f"{history_alarm.setbacks_text(found)}: restore a backup of Redis, or go on with what "
            "it has now: delaybridge alarm clear"
        )
