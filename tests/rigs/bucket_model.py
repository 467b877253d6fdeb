"""The scripts in lua/ as a model: what each does to one bucket, written without looking at them.

Each method is one verb, atomic, with the arguments and the answer of `verbs.Bucket`; slow and
obvious. `Content.check` compares what the bucket counts as fired with what was really fired, and
holds every message to one set.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from delaybridge.message import Answer, destination_text
from delaybridge.store.protocol.bucket import Item
from delaybridge.store.protocol.record import Tried
from delaybridge.store.protocol.replies import Acquired, Claim, Fired, Reclaimed, Renewed, Trimmed
from tests.rigs.bucket_clients import ClientVerbs
from tests.rigs.bucket_content import Call, encoded

Groups = Sequence[tuple[int, Sequence[str]]]  # claim, ids
Failed = Sequence[tuple[Item, int | None, bool, str]]
GivenUp = Sequence[tuple[Item, bool, bool, str]]


class Model(ClientVerbs):
    """One bucket: the clients' verbs, and here the lease's and the owner's."""

    # the lease

    def acquire(self, owner: str, ttl_ms: int, *, dedup_ms: int = 0) -> Acquired:
        if self.lease is not None:
            name, _, turn = self.lease.rpartition(":")
            if name == owner:
                return Acquired(self.lease, int(turn), fresh=turn == "1")
            return Acquired(None, left_ms=ttl_ms, holder=self.lease)
        turn = self._next_turn()
        self.revoked.clear()
        self.marks.claimed, self.marks.birth, self.marks.ttl = turn, self.birth, ttl_ms
        self.marks.dedup_ms = dedup_ms or None
        self.lease = f"{owner}:{turn}"
        return Acquired(self.lease, turn, fresh=turn == 1)

    def renew(self, token: str, ttl_ms: int, known: int | None = None) -> Renewed:
        if self.lease != token or (known is not None and known > self.marks.claimed):
            return Renewed(held=False)
        if known is not None and known < self.marks.claimed:
            return Renewed(held=True, next_score=0.0)
        return Renewed(held=True, next_score=min(self.due.values(), default=None))

    def release(self, token: str) -> bool:
        if self.lease == token:
            self.lease = None
        return True

    # the owner

    def claim(
        self,
        token: str,
        ttl_ms: int,
        last_claim: int,
        *,
        ahead_ms: int,
        limit: int,
        max_bytes: int,
        pace_ms: int,
        margin_ms: int,
        now_ms: int,
    ) -> Claim | None:
        marks = self.marks
        if self.lease != token or last_claim > marks.claimed:
            return None
        again = sorted((claim, id) for id, claim in self.mirror.items() if claim > last_claim)
        if again and again[0][0] < marks.claimed:  # an answer lost long ago, or `marks` came back
            return None
        self._forget_calls(now_ms)
        if last_claim < marks.claimed:
            ids = [id for _, id in again]
        else:
            ids = self._claim(now_ms + ahead_ms, limit, max_bytes)
        next_score = min(self.due.values(), default=None)
        more = next_score is not None and next_score < now_ms + ahead_ms + 1
        look = math.inf if next_score is None else next_score - ahead_ms
        look = now_ms if more else max(look, now_ms + pace_ms)
        marks.look = float(f"{min(look + margin_ms, 9e15):.0f}")
        records = [self.messages[id].encoded for id in ids]
        tried = [encoded(self.attempts.get(id)) for id in ids] if self.attempts else []
        raw = [id.encode() for id in ids]
        return Claim(marks.claimed, raw, records, tried, next_score, more, now_ms * 1000)

    def _claim(self, until_ms: int, limit: int, max_bytes: int) -> list[str]:
        ripe = sorted((score, id) for id, score in self.due.items() if score < until_ms + 1)
        ids: list[str] = []
        size = 0
        for _, id in ripe[:limit]:
            if size < max_bytes:
                ids.append(id)
                size += len(self.messages[id].encoded)
        if ids:
            self.marks.claimed = self._next_turn()
            for id in ids:
                del self.due[id]
                self.mirror[id] = self.marks.claimed
        return ids

    def fire(
        self,
        token: str,
        ttl_ms: int,
        watermark: float,
        last_claim: int,
        last_revocation: int,
        *,
        now_ms: int,
    ) -> Fired | None:
        marks = self.marks
        if self.lease != token or last_claim > marks.claimed:
            return None
        if marks.fired_claim is not None and marks.fired_claim >= turn_of(token):
            watermark = max(watermark, marks.fired_score or 0.0)
            last_claim = max(last_claim, marks.fired_claim)
        marks.fired_score, marks.fired_claim = watermark, last_claim
        self.revoked = {id: turn for id, turn in self.revoked.items() if turn > last_revocation}
        revoked = {id.encode(): turn for id, turn in self.revoked.items()}
        return Fired(marks.claimed, revoked, now_ms * 1000)

    def settle(self, token: str, ttl_ms: int, groups: Groups, *, now_ms: int) -> bool | None:
        if self.lease != token:
            return None
        for claim, ids in groups:
            for id in ids:
                if self._ends(id, claim):
                    del self.messages[id]
                    self._forget_attempts(id)
                    self._note_delivered(id, now_ms)
        return True

    def settle_once(
        self, token: str, ttl_ms: int, groups: Groups, *, now_ms: int
    ) -> set[str] | None:
        if self.lease != token:
            return None
        allowed = set()
        for claim, ids in groups:
            for id in ids:
                note = f"{claim}:{id}\0".encode()
                if self._ends(id, claim):
                    stamp = self.messages.pop(id).stamp
                    self._forget_attempts(id)
                    self._note_delivered(id, now_ms)
                    self._forget_calls(now_ms)
                    self._remember(stamp, id, Answer.CREATED, now_ms)
                    self.calls[note] = Call(now_ms, Answer.CREATED)
                if note in self.calls:
                    allowed.add(id)
        return allowed

    def retry(self, token: str, ttl_ms: int, items: Failed, *, now_ms: int) -> bool | None:
        if self.lease != token:
            return None
        for item, delay_ms, maybe, error in items:
            if not self._ends(item.id, item.claim):
                continue
            if delay_ms is None:
                self.due[item.id] = item.score
                continue
            tried = self._tried(item.id)
            due_ms = int(item.score) if tried.due_ms is None else tried.due_ms
            maybe = maybe or tried.maybe_delivered
            self.attempts[item.id] = Tried(tried.failures + 1, maybe, due_ms)
            since_ms, _ = self.failing.get(item.id, (now_ms, ""))
            self.failing[item.id] = since_ms, error
            self._put(item.id, now_ms + delay_ms)
        return True

    def defer(self, token: str, ttl_ms: int, items: Sequence[tuple[Item, float]]) -> bool | None:
        if self.lease != token:
            return None
        for item, score in items:
            if self._ends(item.id, item.claim):
                tried = self._tried(item.id)
                due_ms = int(item.score) if tried.due_ms is None else tried.due_ms
                self.attempts[item.id] = tried._replace(due_ms=due_ms)
                self.messages[item.id].score = score
                self.due[item.id] = score
        return True

    def bury(self, token: str, ttl_ms: int, items: GivenUp, *, now_ms: int) -> bool | None:
        if self.lease != token:
            return None
        for item, counted, maybe, reason in items:
            if not self._ends(item.id, item.claim):
                continue
            self.dead[item.id] = now_ms, reason
            self.failing.pop(item.id, None)
            if counted:
                tried = self._tried(item.id)
                maybe = maybe or tried.maybe_delivered
                self.attempts[item.id] = Tried(tried.failures + 1, maybe, tried.due_ms)
        return True

    def park(self, token: str, ttl_ms: int, items: Sequence[Item]) -> bool | None:
        if self.lease != token:
            return None
        for item in items:
            if self._ends(item.id, item.claim):
                self.parked[item.id] = item.score
        return True

    def unpark(
        self, token: str, ttl_ms: int, *, limit: int = 1000, ids: Sequence[str] = ()
    ) -> int | None:
        if self.lease != token:
            return None
        earliest = sorted((score, id) for id, score in self.parked.items())[:limit]
        for id in ids or [id for _, id in earliest]:
            if id in self.parked:
                self.due[id] = self.parked.pop(id)
        return len(self.parked)

    def trim(
        self,
        token: str,
        ttl_ms: int,
        *,
        keep: int | None,
        age_ms: int | None,
        limit: int = 100,
        now_ms: int,
    ) -> Trimmed | None:
        if self.lease != token:
            return None
        self._forget_delivered(now_ms)
        oldest = sorted((at_ms, id) for id, (at_ms, _) in self.dead.items())
        kept = len(oldest) if keep is None else keep
        past = [id for at_ms, id in oldest if age_ms is not None and at_ms < now_ms - age_ms]
        dropped = [id for _, id in oldest][: max(len(oldest) - kept, len(past), 0)][:limit]
        if dropped:
            self._forget_calls(now_ms)
            self.marks.dropped = (self.marks.dropped or 0) + len(dropped)
        for id in dropped:
            del self.dead[id]
            self._forget_attempts(id)
            self._remember(self.messages.pop(id).stamp, id, Answer.CANCELLED, now_ms)
        return Trimmed(len(dropped))

    def reclaim(self, token: str, ttl_ms: int, limit: int, *, now_ms: int) -> Reclaimed | None:
        if self.lease != token:
            return None
        old = sorted((k, id) for id, k in self.mirror.items() if k < turn_of(token))
        count = 0
        destinations: Counter[str] = Counter()
        for claim, id in old[:limit]:
            destinations[destination_text(self.messages[id].payload)] += 1
            if self.is_fired(id):
                tried = self._tried(id)
                self.attempts[id] = Tried(tried.failures + 1, True, tried.due_ms)
                count += 1
            self._ends(id, claim)
            self.due[id] = self.messages[id].score
        moved = min(limit, len(old))
        return Reclaimed(len(old) - moved, moved, count, destinations)


def turn_of(token: str) -> int:
    return int(token.rpartition(":")[2])
