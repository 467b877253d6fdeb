"""Requests that act once: what a caller's key stands for, remembered for a day.

A record of the request is written first, then the message is scheduled as the only entry of a
source that the record names. The script notes the source together with the message, so whoever
repeats the request, and whenever the first try broke off, the message is stored once.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from delaybridge.accept.accept import Accepted
from delaybridge.errors import MessageError, StoreError, StoreFull
from delaybridge.gathering import FIRST_CHAR
from delaybridge.message import Answer, OnConflict
from delaybridge.store.calls import Calls
from delaybridge.store.messages.scheduling import Patience, Receipt
from delaybridge.store.protocol import keys, replies, verbs
from delaybridge.store.protocol.together import together
from delaybridge.store.protocol.verbs import Each, SourceOffsets, Steps, new_stamp, plain

KEPT_MS = 86_400_000
_LATER_MS = 3_600_000  # by which the source outlives the record: a try may be under way
_FORGOTTEN = 50  # sources removed at once, each time that as many new ones came


class Asked(NamedTuple):
    """A request. name: of the key and who uses it. digest: of what is asked for.

    has_own_id: else the id was made of the key, and no other request has it.
    """

    name: str
    digest: str
    message: Accepted
    policy: OnConflict
    has_own_id: bool


class Once(NamedTuple):
    """The answer to a request; is_repeat: another try of it stored the message."""

    text: bytes
    is_repeat: bool


class _Record(msgspec.Struct, array_like=True):
    """due_ms: counted from the first try. token: names the source."""

    digest: str
    token: str
    due_ms: int


def once(calls: Calls, asked: Asked, most: int, answer: Callable[[Receipt], bytes]) -> Steps[Once]:
    """Schedule the message unless this was done before; the first answer, byte for byte.

    most: how many keys are remembered. answer: makes the answer; what it raises is raised, and
    nothing is remembered of it. MessageError `idempotency_conflict`: the key stood for another
    request. StoreFull: too many keys.
    """
    buckets = yield from calls.open()
    key, index = keys.idempotent(calls.namespace, asked.name), keys.idempotency(calls.namespace)
    now_us, known, count = yield [
        calls.clock(),
        plain("HGETALL", key, parse=replies.read_mapping),
        plain("ZCARD", index, parse=int),
    ]
    bucket = buckets[verbs.bucket_of(asked.message.shard_key, len(buckets))].number
    began = b"record" not in known
    if began and count >= most and not (yield from _forget(calls, index, now_us)):
        what = f"serve.idempotency_keys: {count:,} keys are remembered, {most:,} at most"
        raise StoreFull(f"{what}; nothing was written: try later, or send an id instead")
    if began:  # who is over a quota uses up no keys
        yield from _check_quota(calls, asked.message.payload)
    text = known.get(b"record") or (yield from _begin(calls, key, asked, now_us, bucket))
    record = msgspec.json.decode(text, type=_Record)
    if record.digest != asked.digest:
        what = "this key stood for another request in the last 24 hours; choose a new one"
        raise MessageError("idempotency_conflict", "Idempotency-Key", what)
    field = f"answer {record.token}"
    if (kept := known.get(field.encode())) is not None:
        return Once(kept, True)
    receipt = yield from _schedule(calls, asked, record)
    is_repeat = receipt.answer is Answer.DUPLICATE and not began
    if is_repeat and not asked.has_own_id:
        receipt = Receipt(Answer.CREATED, receipt.id, record.due_ms, receipt.bucket)
    made = answer(receipt)
    _, kept = yield [plain("HSETNX", key, field, made), plain("HGET", key, field)]
    if began and count % _FORGOTTEN == 0:
        yield from _forget(calls, index, now_us)
    return Once(kept, is_repeat or kept != made)


def _begin(calls: Calls, key: str, asked: Asked, now_us: int, bucket: int) -> Steps[bytes]:
    """Write the record of a new request; the one that counts, if several try at once."""
    now_ms = -(-now_us // 1000)
    when = asked.message.when
    is_gathered = when >= FIRST_CHAR
    due_ms = now_ms if is_gathered else int(when) + (now_ms if when.startswith("+") else 0)
    record = _Record(asked.digest, secrets.token_hex(8), due_ms)
    source = f"{record.token}:{bucket}"
    *_, text = yield [
        plain("ZADD", keys.idempotency(calls.namespace), now_ms + KEPT_MS + _LATER_MS, source),
        plain("HSETNX", key, "record", msgspec.json.encode(record)),
        plain("PEXPIRE", key, KEPT_MS),
        plain("HGET", key, "record"),
    ]
    return bytes(text)


def _schedule(calls: Calls, asked: Asked, record: _Record) -> Steps[Receipt]:
    message = asked.message
    if message.when < FIRST_CHAR:
        message = msgspec.structs.replace(message, when=str(record.due_ms))
    sent, source = (new_stamp(), message), SourceOffsets(_source(record.token), (0,))
    buckets = yield from calls.open()
    yield from _check_quota(calls, message.payload)
    if calls.quota.is_set:
        calls.quota.count(message.payload)
    patience, first, pause_s = Patience(calls.placement.timeout_s), False, 0.0
    while True:
        bucket = buckets[verbs.bucket_of(message.shard_key, len(buckets))]
        asking = bucket.schedule([sent], asked.policy, source=source, first=first)
        (reply,) = yield Each([asking], after_s=pause_s)
        if isinstance(reply, StoreError):
            raise (yield from calls.explained(bucket, reply))
        if reply is not None:
            ((answer, due_ms),) = reply
            if answer is not Answer.IN_FLIGHT or not (pause_s := patience.pause_s()):
                return Receipt(answer, message.id, due_ms, bucket.number)
        elif first:
            raise calls.wiped()
        else:
            first, buckets = True, (yield from calls.open(again=True))


def _check_quota(calls: Calls, payload: bytes) -> Steps[None]:
    """StoreFull if this record is over a limit."""
    yield from calls.open()
    yield from calls.quota.check(payload, calls.following.held())


def _forget(calls: Calls, index: str, now_us: int) -> Steps[bool]:
    """Remove some sources whose requests cannot be repeated any more; whether there were any."""
    span = ("-inf", now_us // 1000, "LIMIT", 0, 2 * _FORGOTTEN)
    (old,) = yield [plain("ZRANGEBYSCORE", index, *span)]
    places = (bytes(each).decode().partition(":") for each in old)
    done = yield from together([_removed(calls, int(n), _source(token)) for token, _, n in places])
    gone = [e for e, reply in zip(old, done, strict=True) if not isinstance(reply, StoreError)]
    if gone:
        yield [plain("ZREM", index, *gone)]
    return bool(gone)


def _removed(calls: Calls, bucket: int, source: str) -> Steps[list[int]]:
    heirs = map(calls.bucket, calls.following.heirs(bucket))
    return (yield [plain("HDEL", each.key("sources"), source) for each in heirs])


def _source(token: str) -> str:
    return f"http:{token}"
