"""All verbs of one bucket: those of clients, and those of the worker that holds its lease."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

from delaybridge.store.protocol import replies
from delaybridge.store.protocol.verbs import (
    Arg,
    BucketForCallers,
    RedisCommand,
    as_received,
    now_arg,
    plain,
)

_Groups = Iterable[tuple[int, Sequence[str]]]


class Item(NamedTuple):
    """A claimed message, as its owner names it. stamp: of its call; empty if that is unknown."""

    id: str
    claim: int
    score: float
    stamp: bytes = b""


class Bucket(BucketForCallers):
    """The verbs of one bucket. An owner's verb answers None if the lease is lost.

    token, ttl_ms: of the lease, which every owner's verb renews.
    """

    # the lease

    def acquire(
        self, owner: str, ttl_ms: int, *, dedup_ms: int = 0, back_ms: int = 0
    ) -> RedisCommand[replies.Acquired]:
        """Take the lease if it is free. owner: `worker:random`, new each time; empty: only look.

        dedup_ms: for how long an id that was delivered is not scheduled again; 0: it may be.
        back_ms: by how much the caller saw the store's clock set back lately.
        """
        args = (owner, ttl_ms, self.birth, dedup_ms, back_ms)
        return self.call("acquire", args, lambda reply: replies.read_acquired(owner, reply))

    def renew(self, token: str, ttl_ms: int, known: Arg = "") -> RedisCommand[replies.Renewed]:
        """Extend the lease, if this token still holds it. known: the last claim received."""
        return self.call("renew", (token, ttl_ms, known), replies.read_renewed)

    def release(self, token: str | bytes) -> RedisCommand[Literal[True]]:
        """Give the lease back, if this token still holds it."""
        return self.call("release", (token, self.home), lambda _: True)

    def token(self) -> RedisCommand[bytes | None]:
        """The token that holds the lease, None if it is free."""
        return plain("GET", self.key("lease"), parse=as_received)

    # the wheel

    def claim(
        self,
        token: str,
        ttl_ms: int,
        last_claim: int,
        *,
        ahead_ms: int,
        limit: int,
        max_bytes: int,
        pace_ms: int = 0,
        margin_ms: int = 0,
        now_ms: int | None = None,
    ) -> RedisCommand[replies.Claim | None]:
        """Move messages due within `ahead_ms` into the mirror and return them.

        last_claim: the last claim received; after a lost answer the same batch comes again.
        pace_ms: the owner looks again no sooner, unless it is woken or more is due. margin_ms: a
        message due up to this long after that look wakes it.
        """
        bounds = ahead_ms, limit, max_bytes, pace_ms, margin_ms
        args = (token, ttl_ms, now_arg(now_ms), last_claim, *bounds)
        return self.call("claim", args, replies.read_claimed)

    def fire(
        self,
        token: str,
        ttl_ms: int,
        watermark: float,
        last_claim: int,
        last_revocation: int,
        *,
        now_ms: int | None = None,
    ) -> RedisCommand[replies.Fired | None]:
        """Raise the watermark: `cancel` then answers `in_flight` for the messages up to it.

        Answers with the revocations after the turn `last_revocation`. last_claim: the number of
        the last claim received.
        """
        args = (token, ttl_ms, repr(watermark), last_claim, last_revocation, now_arg(now_ms))
        return self.call("fire", args, replies.read_fired)

    def settle(
        self, token: str, ttl_ms: int, groups: _Groups, *, now_ms: int | None = None
    ) -> RedisCommand[replies.Held]:
        """Remove confirmed messages. groups: (claim number, ids)."""
        return self.call("settle", _groups(token, ttl_ms, now_ms, 0, groups), replies.read_held)

    def settle_once(
        self, token: str, ttl_ms: int, groups: _Groups, *, now_ms: int | None = None
    ) -> RedisCommand[set[str] | None]:
        """Remove messages before they are published at most once; answers with the ids to publish.

        These are the ids that these claims settled, now or in an earlier try whose reply was lost.
        So each copy is published once, or never if its session ends before the answer comes.
        """
        return self.call("settle", _groups(token, ttl_ms, now_ms, 1, groups), replies.read_ids)

    def retry(
        self,
        token: str,
        ttl_ms: int,
        items: Iterable[tuple[Item, int | None, bool, str]],
        *,
        now_ms: int | None = None,
    ) -> RedisCommand[replies.Held]:
        """Put messages back. items: (item, back-off in ms, may have been delivered, error).

        With a back-off of None no attempt is counted; the due time stays. error: destination, a
        newline, the last error.
        """
        args: list[Arg] = [token, ttl_ms, now_arg(now_ms)]
        for item, delay_ms, maybe, error in items:
            delay: Arg = "" if delay_ms is None else delay_ms
            args += (item.id, item.claim, repr(item.score), delay, int(maybe), error)
        return self.call("retry", args, replies.read_held)

    def defer(
        self, token: str, ttl_ms: int, items: Iterable[tuple[Item, float]]
    ) -> RedisCommand[replies.Held]:
        """Put messages back until a later score: counts no attempt, keeps the time asked for."""
        args: list[Arg] = [token, ttl_ms, ""]
        for item, score in items:
            args += (item.id, item.claim, repr(item.score), f"={score!r}", 0, "")
        return self.call("retry", args, replies.read_held)

    def park(self, token: str, ttl_ms: int, items: Iterable[Item]) -> RedisCommand[replies.Held]:
        """Set messages aside while their broker is unavailable."""
        args: list[Arg] = [token, ttl_ms]
        for item in items:
            args += (item.id, item.claim, repr(item.score))
        return self.call("park", args, replies.read_held)

    def unpark(
        self, token: str, ttl_ms: int, *, limit: int = 1000, ids: Sequence[str | bytes] = ()
    ) -> RedisCommand[int | None]:
        """Move parked messages back to `due`: those in `ids`, or without ids the earliest.

        Answers with the number still parked.
        """
        return self.call("unpark", (token, ttl_ms, limit, *ids), as_received)

    def bury(
        self,
        token: str,
        ttl_ms: int,
        items: Iterable[tuple[Item, bool, bool, str]],
        *,
        now_ms: int | None = None,
    ) -> RedisCommand[replies.Held]:
        """Move messages to the dead set.

        items: (item, whether an attempt is counted, may have been delivered, reason).
        """
        args: list[Arg] = [token, ttl_ms, now_arg(now_ms)]
        for item, counted, maybe, reason in items:
            args += (item.id, item.claim, int(counted), int(maybe), reason)
        return self.call("bury", args, replies.read_held)

    def reclaim(
        self, token: str, ttl_ms: int, limit: int = 500, *, now_ms: int | None = None
    ) -> RedisCommand[replies.Reclaimed | None]:
        """Put back the messages that earlier sessions left in the mirror."""
        args = (token, ttl_ms, now_arg(now_ms), limit)
        return self.call("reclaim", args, replies.read_reclaimed)

    def trim(
        self,
        token: str,
        ttl_ms: int,
        *,
        keep: int | None,
        age_ms: int | None,
        limit: int = 100,
        now_ms: int | None = None,
    ) -> RedisCommand[replies.Trimmed | None]:
        """Delete the oldest dead messages beyond `keep`, and those buried over `age_ms` ago."""
        bounds: list[Arg] = ["" if bound is None else bound for bound in (keep, age_ms)]
        args = (token, ttl_ms, now_arg(now_ms), *bounds, limit)
        return self.call("trim", args, lambda r: None if r is None else replies.Trimmed(r))


def _groups(token: str, ttl_ms: int, now_ms: int | None, once: int, groups: _Groups) -> list[Arg]:
    args: list[Arg] = [token, ttl_ms, now_arg(now_ms), once]
    for claim, ids in groups:
        args += (claim, len(ids), *ids)
    return args
