"""The verbs of one bucket, without I/O: each builds the `RedisCommand` that a store runs.

The scripts are in lua/, under the verbs' names. Each may be sent again, also after other calls.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, NamedTuple, TypeVar

from delaybridge.accept.accept import Accepted
from delaybridge.message import KNOWN, TENANT_CHARS, Answer, ConflictPolicy, OnConflict, State
from delaybridge.store.protocol import keys, replies
from delaybridge.store.protocol.command import Arg, RedisCommand, as_received, plain
from delaybridge.store.protocol.due_runs import runs_of
from delaybridge.store.protocol.keys import LISTED, SCRIPT_KEYS

T = TypeVar("T")
_Groups = Iterable[tuple[int, Sequence[str]]]
_POLICIES = {OnConflict.FAIL: 0, OnConflict.KEEP: 1, OnConflict.REPLACE: 2, KNOWN: 4}
_MAYBE_DELIVERED = 3  # as FAIL, and an earlier publish of the message may have arrived
_DESTINATION_BYTES = 1100  # a record begins with its destination, which is never longer than this
_TALLIED_BYTES = 2**20  # of records that one call reads: about half a millisecond
_OFFSET = struct.Struct(">Q")


class Item(NamedTuple):
    """A claimed message, as its owner names it. stamp: of its call; empty if that is unknown."""

    id: str
    claim: int
    score: float
    stamp: bytes = b""


def new_stamp() -> bytes:
    """A call stamp. Draw one per call, and send the same one whenever that call is sent again."""
    # Python reseeds this generator after a fork, so two processes never draw the same series.
    return random.getrandbits(32).to_bytes(4, "big")


class SourceOffsets(NamedTuple):
    """The source that messages were read from, and their offsets, which grow from call to call."""

    name: str
    offsets: Sequence[int]


NO_SOURCE = SourceOffsets("", ())


class Bucket:
    """The verbs of one bucket. An owner's verb answers None if the lease is lost.

    Sent again, a command gets the same answer. now_ms: epoch milliseconds, None for Redis' clock;
    only tests pass a number. token, ttl_ms: of the lease, which every owner's verb renews. wake:
    `keys.wake_channel`; home: a name in the slot of the namespace's own.
    """

    def __init__(self, namespace: str, number: int, birth: str) -> None:
        self.number, self.birth = number, birth
        self.home, self.wake = keys.wake(namespace), keys.wake_channel(namespace, number, birth)
        name = {key: keys.bucket_key(namespace, number, key, birth) for key in keys.BUCKET_KEYS}
        self._keys = {
            script: tuple(name[key] for key in used)
            for script, used in SCRIPT_KEYS.items()
            if name.keys() >= {*used}
        }
        self._page_keys = {
            state: (name[listed], *(name[key] for key in SCRIPT_KEYS["page"][1:]))
            for state, listed in LISTED.items()
        }
        self._name, self.offers = name, keys.offers(namespace)

    def key(self, name: str) -> str:
        """The key `name` (one of `keys.BUCKET_KEYS`) of this bucket."""
        return self._name[name]

    # clients

    def schedule(
        self,
        messages: Sequence[tuple[bytes, Accepted]],
        policy: ConflictPolicy = OnConflict.FAIL,
        *,
        source: SourceOffsets = NO_SOURCE,
        reach: str = "",
        maybe: bool = False,
        first: bool = False,
        now_ms: int | None = None,
    ) -> RedisCommand[list[tuple[Answer, int]] | None]:
        """Accept (stamp, message) pairs. Answers with the answer and due time in ms of each.

        Answers None if the bucket has another birth id, or none yet: read the namespace's record
        again, then pass first=True, which lets a bucket without a birth id or messages take it.

        source: messages at offsets that this source delivered before are skipped and answered
        `duplicate`, even if published already. The answers end with the first `conflict`,
        `foreign` or `in_flight`; that message and all after it count as not read.
        reach: the caller's destination patterns, as JSON. If the id is pending for a destination
        outside them, the answer is `foreign`, whatever the policy.
        maybe: an earlier publish of these messages had an unknown outcome and may have arrived.
        """
        number = _MAYBE_DELIVERED if maybe and policy is OnConflict.FAIL else _POLICIES[policy]
        offsets = b"".join(map(_OFFSET.pack, source.offsets))
        args: list[Arg] = [
            _now(now_ms), number, self.birth, int(first), self.wake, self.number, source.name,
            offsets, reach, len(messages), *[message.id for _, message in messages],
            *[stamp + message.payload for stamp, message in messages], *runs_of(messages),
        ]  # fmt: skip
        return self._call("schedule", args, replies.read_scheduled)

    def quarantine(
        self,
        messages: Iterable[tuple[bytes, str, bytes, str]],
        *,
        first: bool = False,
        now_ms: int | None = None,
    ) -> RedisCommand[list[Answer] | None]:
        """Put (stamp, id, payload, reason) into the dead set.

        Answers `created` for each, or `conflict` if another has its id; None as `schedule` does.
        """
        args: list[Arg] = [_now(now_ms), self.birth, int(first)]
        for message in messages:
            args += message
        return self._call("quarantine", args, replies.read_answers)

    def cancel(
        self,
        stamp: bytes,
        id: str,
        *,
        source: str = "",
        offset: int | Literal[""] = 0,
        otherwise: bool = False,
        reach: str = "",
        row: bytes = b"",
        now_ms: int | None = None,
    ) -> RedisCommand[Answer]:
        """Remove a message that was not fired. A call read from a source acts once.

        otherwise: if the answer is `unknown` or `foreign`, the offset does not count as read.
        reach: as for `schedule`. row: its stamp in the ledger: nobody restores the message then.
        """
        args = (_now(now_ms), stamp, id, source, offset, int(otherwise), reach, "", row)
        return self._call("cancel", args, replies.read_answer)

    def reschedule(
        self,
        stamp: bytes,
        id: str,
        when: str,
        *,
        source: str = "",
        offset: int = 0,
        reach: str = "",
        now_ms: int | None = None,
    ) -> RedisCommand[Answer]:
        """Give a message that was not fired another due time. source, reach: as for `cancel`."""
        place = self.wake, self.number
        args = (_now(now_ms), stamp, id, when, *place, source, offset, reach, "", 0, "")
        return self._call("reschedule", args, replies.read_answer)

    def kick(
        self, stamp: bytes, id: str, delay_ms: int = 0, *, now_ms: int | None = None
    ) -> RedisCommand[Answer]:
        """Bring a message back from the dead set, due in `delay_ms`, without failures."""
        args = (_now(now_ms), stamp, id, delay_ms, self.wake, self.number, "")
        return self._call("kick", args, replies.read_answer)

    def discard(self, stamp: bytes, id: str, *, now_ms: int | None = None) -> RedisCommand[Answer]:
        """Delete a message of the dead set."""
        return self._call("discard", (_now(now_ms), stamp, id, ""), replies.read_answer)

    def get(self, id: str) -> RedisCommand[replies.Row | None]:
        """The message in any state, None if there is none with this id."""
        return self._call("get", (id, ""), lambda reply: replies.read_message(id, reply))

    def dead_reason(self, id: str) -> RedisCommand[str]:
        """Why a message is in the dead set; empty if it is not."""
        return plain("HGET", self.key("dead_reason"), id, parse=replies.read_text)

    def sample(self, limit: int) -> RedisCommand[replies.Sample]:
        """The number of messages, and the two ends of up to `limit` records at random."""
        args = (limit, _DESTINATION_BYTES, TENANT_CHARS + 1)
        return self._call("sample", args, replies.read_sample)

    def tally(self, state: State, limit: int, seed: int) -> RedisCommand[replies.Tallied]:
        """Count messages in one state by destination: all, or `limit` of them drawn at random."""
        args = (limit, _TALLIED_BYTES, seed)
        return RedisCommand("tally", self._page_keys[state][:2], args, replies.read_tallied)

    def page(
        self,
        state: State,
        *,
        limit: int,
        after: tuple[float, str | bytes] | None = None,
        low: float | None = None,
        high: float | None = None,
        max_bytes: int = 4 * 2**20,
    ) -> RedisCommand[tuple[list[replies.Row], bool]]:
        """Messages in one state in order of (score, id), and whether there are more.

        after: the (score, id) to begin after. low, high: bounds of the score, both included.
        """
        lowest = "-inf" if low is None else repr(low)
        highest = "+inf" if high is None else repr(high)
        after_score, after_id = ("", "") if after is None else (repr(after[0]), after[1])
        args = (lowest, highest, after_score, after_id, limit, max_bytes, 0)
        keys_ = self._page_keys[state]
        return RedisCommand("page", keys_, args, lambda reply: replies.read_page(state, reply))

    # the lease

    def acquire(
        self, owner: str, ttl_ms: int, *, dedup_ms: int = 0, back_ms: int = 0
    ) -> RedisCommand[replies.Acquired]:
        """Take the lease if it is free. owner: `worker:random`, new each time; empty: only look.

        dedup_ms: for how long an id that was delivered is not scheduled again; 0: it may be.
        back_ms: by how much the caller saw the store's clock set back lately.
        """
        args = (owner, ttl_ms, self.birth, dedup_ms, back_ms)
        return self._call("acquire", args, lambda reply: replies.read_acquired(owner, reply))

    def renew(self, token: str, ttl_ms: int, known: Arg = "") -> RedisCommand[replies.Renewed]:
        """Extend the lease, if this token still holds it. known: the last claim received."""
        return self._call("renew", (token, ttl_ms, known), replies.read_renewed)

    def release(self, token: str) -> RedisCommand[Literal[True]]:
        """Give the lease back, if this token still holds it."""
        return self._call("release", (token, self.home), lambda _: True)

    def holder(self) -> RedisCommand[str | None]:
        """The worker that holds the lease, None if it is free."""
        return plain("GET", self.key("lease"), parse=replies.read_holder)

    def sizes(self) -> list[RedisCommand[int]]:
        """How many messages are delayed, in flight, parked and dead."""
        return [plain("ZCARD", self.key(k), parse=int) for k in ("due", "mirror", "parked", "dead")]

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
        args = (token, ttl_ms, _now(now_ms), last_claim, *bounds)
        return self._call("claim", args, replies.read_claimed)

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
        args = (token, ttl_ms, repr(watermark), last_claim, last_revocation, _now(now_ms))
        return self._call("fire", args, replies.read_fired)

    def settle(
        self, token: str, ttl_ms: int, groups: _Groups, *, now_ms: int | None = None
    ) -> RedisCommand[replies.Held]:
        """Remove confirmed messages. groups: (claim number, ids)."""
        return self._call("settle", _groups(token, ttl_ms, now_ms, 0, groups), replies.read_held)

    def settle_once(
        self, token: str, ttl_ms: int, groups: _Groups, *, now_ms: int | None = None
    ) -> RedisCommand[set[str] | None]:
        """Remove messages before they are published at most once; answers with the ids to publish.

        These are the ids that these claims settled, now or in an earlier try whose reply was lost.
        So each copy is published once, or never if its session ends before the answer comes.
        """
        return self._call("settle", _groups(token, ttl_ms, now_ms, 1, groups), replies.read_ids)

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
        args: list[Arg] = [token, ttl_ms, _now(now_ms)]
        for item, delay_ms, maybe, error in items:
            delay: Arg = "" if delay_ms is None else delay_ms
            args += (item.id, item.claim, repr(item.score), delay, int(maybe), error)
        return self._call("retry", args, replies.read_held)

    def defer(
        self, token: str, ttl_ms: int, items: Iterable[tuple[Item, float]]
    ) -> RedisCommand[replies.Held]:
        """Put messages back until a later score: counts no attempt, keeps the time asked for."""
        args: list[Arg] = [token, ttl_ms, ""]
        for item, score in items:
            args += (item.id, item.claim, repr(item.score), f"={score!r}", 0, "")
        return self._call("retry", args, replies.read_held)

    def park(self, token: str, ttl_ms: int, items: Iterable[Item]) -> RedisCommand[replies.Held]:
        """Set messages aside while their broker is unavailable."""
        args: list[Arg] = [token, ttl_ms]
        for item in items:
            args += (item.id, item.claim, repr(item.score))
        return self._call("park", args, replies.read_held)

    def unpark(
        self, token: str, ttl_ms: int, *, limit: int = 1000, ids: Sequence[str | bytes] = ()
    ) -> RedisCommand[int | None]:
        """Move parked messages back to `due`: those in `ids`, or without ids the earliest.

        Answers with the number still parked.
        """
        return self._call("unpark", (token, ttl_ms, limit, *ids), as_received)

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
        args: list[Arg] = [token, ttl_ms, _now(now_ms)]
        for item, counted, maybe, reason in items:
            args += (item.id, item.claim, int(counted), int(maybe), reason)
        return self._call("bury", args, replies.read_held)

    def reclaim(
        self, token: str, ttl_ms: int, limit: int = 500, *, now_ms: int | None = None
    ) -> RedisCommand[replies.Reclaimed | None]:
        """Put back the messages that earlier sessions left in the mirror."""
        args = (token, ttl_ms, _now(now_ms), limit)
        return self._call("reclaim", args, replies.read_reclaimed)

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
        args = (token, ttl_ms, _now(now_ms), *bounds, limit)
        return self._call("trim", args, lambda r: None if r is None else replies.Trimmed(r))

    def _call(self, script: str, args: Sequence[Arg], parse: Callable[[Any], T]) -> RedisCommand[T]:
        return RedisCommand(script, self._keys[script], args, parse)


def _now(now_ms: int | None) -> Arg:
    return "" if now_ms is None else now_ms


def _groups(token: str, ttl_ms: int, now_ms: int | None, once: int, groups: _Groups) -> list[Arg]:
    args: list[Arg] = [token, ttl_ms, _now(now_ms), once]
    for claim, ids in groups:
        args += (claim, len(ids), *ids)
    return args
