"""Pull topics: due messages are offered, received under a receipt, and finished.

The delivery of a received message has an unknown outcome until it is finished. Until then it is in
`due`, at the end of its time to run, with one attempt more. What is offered is parked, too: `ready`
only orders it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from random import getrandbits
from typing import Any

import msgspec

from delaybridge.errors import DecodeError, StoreError
from delaybridge.message import PULL, Answer, HeaderPairs, decode_record
from delaybridge.store.namespace.namespace import Namespace
from delaybridge.store.protocol import replies, verbs
from delaybridge.store.protocol.bucket import Bucket, Item
from delaybridge.store.protocol.record import split_record
from delaybridge.store.protocol.verbs import Arg, Each, RedisCommand, Steps, now_arg, plain

_RECEIPT_BITS = 48
CALL_BYTES = 4 * 2**20  # of records that one bucket gives at once
_TAKEN = (Answer.CANCELLED, Answer.CANCELLED_MAYBE_DELIVERED)
_MOVED = (Answer.RESCHEDULED, Answer.RESCHEDULED_MAYBE_DELIVERED)
_Tried = tuple[str, str]  # id and receipt


class ReceivedMessage(msgspec.Struct, frozen=True):
    """A message that its consumer has until `until_ms`, and is to finish before that.

    receipt: names this delivery to `finish`, `extend` and `release`. attempt: 1 for the first
    delivery. due_ms, until_ms: epoch milliseconds on Redis' clock.
    """

    id: str
    receipt: str
    body: bytes | None
    headers: HeaderPairs
    key: bytes | None
    attempt: int
    due_ms: int
    until_ms: int


class Pulling(Namespace):
    """Calls of the consumers of pull topics."""

    def receive(self, topic: str, limit: int, ttr_ms: int) -> Steps[list[ReceivedMessage]]:
        """Up to `limit` messages of the topic, the earliest first.

        One round trip if there is none. A bucket that cannot answer is left out, unless all are.
        """
        buckets = yield from self.every_bucket()
        found: list[ReceivedMessage] = []
        while len(found) < limit:
            firsts = yield Each(_first(bucket, topic) for bucket in buckets)
            ready = sorted(
                (first, bucket.number)
                for first, bucket in zip(firsts, buckets, strict=True)
                if isinstance(first, bytes)
            )
            if not (ready or found) and all(isinstance(one, StoreError) for one in firsts):
                yield from self.check(buckets, firsts)
            numbers = [number for _, number in ready]
            shares = zip(numbers, _shares(limit - len(found), len(ready)), strict=False)
            receipt = getrandbits(_RECEIPT_BITS)
            some = yield from _given(
                [_receive(self.bucket(n), topic, share, ttr_ms, receipt) for n, share in shares]
            )
            found += some
            if not some:  # there are none, or others took them
                break
        return sorted(found, key=lambda one: one.due_ms)

    def finish_received(self, items: Sequence[_Tried]) -> Steps[list[Answer]]:
        """`finished` or `unknown` for each; a message that is finished does not come again."""
        return self._under_receipts(items, finish, _TAKEN, Answer.FINISHED)

    def extend_received(self, items: Sequence[_Tried], ttr_ms: int) -> Steps[list[Answer]]:
        """`extended` or `unknown` for each: its time to run ends `ttr_ms` from now."""
        verb = partial(move, delay_ms=ttr_ms, keep=True)
        return self._under_receipts(items, verb, _MOVED, Answer.EXTENDED)

    def release_received(self, items: Sequence[_Tried], delay_ms: int) -> Steps[list[Answer]]:
        """`released` or `unknown` for each: it is due again in `delay_ms`."""
        verb = partial(move, delay_ms=delay_ms, keep=False)
        return self._under_receipts(items, verb, _MOVED, Answer.RELEASED)

    def _under_receipts(
        self, items: Sequence[_Tried], verb: Any, good: tuple[Answer, ...], answer: Answer
    ) -> Steps[list[Answer]]:
        yield from self.open()
        asked: dict[int, tuple[Bucket, bytes, str, str]] = {}
        stamp = verbs.new_stamp()
        for i, (id, receipt) in enumerate(items):
            number, _, turn = receipt.partition("-")
            if _is_number(number) and _is_number(turn) and self.following.knows(int(number)):
                asked[i] = self.bucket(int(number)), stamp, id, turn
        answers = [Answer.UNKNOWN] * len(items)
        if asked:
            given = yield Each([verb(*each) for each in asked.values()])
            yield from self.check([bucket for bucket, *_ in asked.values()], given)
            for i, one in zip(asked, given, strict=True):
                answers[i] = answer if one in good else Answer.UNKNOWN
        return answers


def offer(
    bucket: Bucket, owner: tuple[str, int], items: Iterable[tuple[Item, str]]
) -> RedisCommand[replies.Held]:
    """Set messages aside for consumers. owner: token and ttl of the lease; items: with their
    destinations."""
    args: list[Arg] = [*owner, bucket.offers]
    for item, destination in items:
        args += (item.id, item.claim, repr(item.score), destination)
    return bucket.call("offer", args, replies.read_held)


def receive(
    bucket: Bucket, topic: str, limit: int, ttr_ms: int, receipt: int, *, now_ms: int | None = None
) -> RedisCommand[list[ReceivedMessage]]:
    """The bucket's earliest messages of a topic. A lost answer costs them their time to run.

    receipt: of this call, drawn at random.
    """
    now, text = now_arg(now_ms), f"{PULL}:{topic}"
    args = (now, text, limit, CALL_BYTES, ttr_ms, bucket.wake, bucket.number, receipt)
    named = f"{bucket.number}-{receipt}"
    return bucket.call("receive", args, lambda reply: _read(named, reply))


_receive = receive


def _given(asked: Sequence[RedisCommand[Any]]) -> Steps[list[ReceivedMessage]]:
    """What the buckets give that can answer."""
    given = (yield Each(asked)) if asked else []
    return [one for each in given if not isinstance(each, StoreError) for one in each]


def _first(bucket: Bucket, topic: str) -> RedisCommand[bytes | None]:
    """What orders the bucket's earliest message of a topic among others of it."""
    low = f"{PULL}:{topic}\0".encode()
    ends = b"[" + low, b"(" + low[:-1] + b"\1"
    return plain(
        "ZRANGEBYLEX", bucket.key("ready"), *ends, "LIMIT", 0, 1,
        parse=lambda reply: reply[0] if reply else None,
    )  # fmt: skip


def finish(
    bucket: Bucket, stamp: bytes, id: str, receipt: str, *, now_ms: int | None = None
) -> RedisCommand[Answer]:
    """Remove a message, if this is its last receipt: then it was not `unknown`, but `cancelled`."""
    args = (now_arg(now_ms), stamp, id, "", 0, 0, "", receipt, "")
    return bucket.call("cancel", args, replies.read_answer)


def move(
    bucket: Bucket,
    stamp: bytes,
    id: str,
    receipt: str,
    delay_ms: int,
    *,
    keep: bool,
    now_ms: int | None = None,
) -> RedisCommand[Answer]:
    """Make a message due in `delay_ms`, if this is its last receipt. keep: it stays the last."""
    place = bucket.wake, bucket.number
    args = (now_arg(now_ms), stamp, id, f"+{delay_ms}", *place, "", 0, "", receipt, int(keep), "")
    return bucket.call("reschedule", args, replies.read_answer)


def _read(receipt: str, reply: list[Any]) -> list[ReceivedMessage]:
    """Those that can be read; of the others their worker says so once they are due again."""
    found = []
    for i in range(0, len(reply), 4):
        id, stored, attempt, until_ms = reply[i : i + 4]
        try:
            score, payload = split_record(stored)
            record = decode_record(payload)
        except DecodeError:
            continue
        headers = record.headers if isinstance(record.headers, tuple) else ()
        found.append(
            ReceivedMessage(
                id.decode(errors="replace"), receipt, record.body, headers, record.key,
                attempt, int(score), until_ms,
            )
        )  # fmt: skip
    return found


def _shares(limit: int, buckets: int) -> list[int]:
    """How many of `limit` messages each of the first buckets is asked for."""
    many = min(limit, buckets)
    if not many:
        return []
    each, more = divmod(limit, many)
    return [each + (i < more) for i in range(many)]


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 16
