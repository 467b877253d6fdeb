"""The model's calls as requests to Redis, made by the package's own verbs."""

from __future__ import annotations

from typing import Any

import msgspec

from delaybridge.accept.accept import Accepted
from delaybridge.gathering import Debounce, Gathering, Throttle
from delaybridge.ledger.comparing import healing
from delaybridge.message import PULL, OnConflict, State, rank_of
from delaybridge.store.messages import pulling
from delaybridge.store.namespace import orphans
from delaybridge.store.protocol.bucket import Bucket, Item
from delaybridge.store.protocol.verbs import RedisCommand
from tests.protocol import consumer_verbs
from tests.protocol.bucket import EVERY, GATHERS, LONGEST, NEVER, QUIET
from tests.protocol.calls import Call, ClientCall, OwnerCall, Reading, Target
from tests.protocol.owner_verbs import Reach
from tests.protocol.units import (
    NAMES,
    START_MS,
    TICK_MS,
    TTL_MS,
    ms_of,
    redis_healed,
    redis_owner,
    redis_score,
    redis_stamp,
    redis_token,
)

TOPIC = "t"
GATHERINGS: dict[str, Gathering] = {
    "debounce": Debounce("", QUIET * TICK_MS / 1000, LONGEST * TICK_MS / 1000),
    "throttle": Throttle("", EVERY * TICK_MS / 1000),
}
_HAS_ROWS = 7  # a place of an argument of `schedule`
_ALL = 100


def command_of(bucket: Bucket, call: Call, clock: int, reach: Reach) -> RedisCommand[Any]:
    now_ms = START_MS + clock * TICK_MS
    if isinstance(call, ClientCall):
        return _of_client(bucket, call, now_ms)
    if call.verb in ("acquire", "renew", "release"):
        return _of_lease(bucket, call)
    if call.verb in ("settle", "settle_once", "retry", "bury", "park", "offer"):
        return _of_end(bucket, call, now_ms)
    return _of_owner(bucket, call, now_ms, reach)


def _of_client(bucket: Bucket, call: ClientCall, now_ms: int) -> RedisCommand[Any]:
    if call.verb == "schedule":
        return _schedule(bucket, call, now_ms)
    if call.verb == "tally":
        return bucket.tally(State(call.policy), _ALL, seed=1)
    if call.verb == "restore":
        assert call.reading is not None
        return _restore(bucket, call.reading, now_ms)
    if call.verb == "receive":
        return pulling.receive(bucket, TOPIC, 1, call.ttr * TICK_MS, call.receipt, now_ms=now_ms)
    (target,) = call.targets
    if call.verb in consumer_verbs.VERBS:
        return _under_receipt(bucket, call, target, now_ms)
    stamp, id = redis_stamp(target.stamp), NAMES[target.id]
    if call.verb == "reschedule":
        return bucket.reschedule(stamp, id, str(ms_of(target.score)), now_ms=now_ms)
    if call.verb == "kick":
        return bucket.kick(stamp, id, now_ms=now_ms)
    row = b"" if call.row is None else b"?" if call.row < 0 else redis_stamp(call.row)
    return bucket.cancel(stamp, id, row=row, now_ms=now_ms)


def _schedule(bucket: Bucket, call: ClientCall, now_ms: int) -> RedisCommand[Any]:
    messages = [
        (redis_stamp(target.stamp), _accepted(target, call.policy)) for target in call.targets
    ]
    reach = "" if call.only is None else b"=" + redis_stamp(max(call.only, 0))
    policy = OnConflict.FAIL if call.policy in GATHERS else OnConflict(call.policy)
    command = bucket.schedule(messages, policy, reach=reach, first=True, now_ms=now_ms)
    args = [*command.args]
    args[_HAS_ROWS] = int(call.has_row) or args[_HAS_ROWS]
    return msgspec.structs.replace(command, args=args)


def short_of(bucket: Bucket, call: Call, clock: int) -> RedisCommand[Any] | None:
    """The short form of a call, if a client may make it."""
    if not isinstance(call, ClientCall) or call.verb != "schedule" or len(call.targets) > 1:
        return None
    if call.only is not None or call.has_row or call.policy in (*GATHERS, OnConflict.REPLACE):
        return None
    (target,) = call.targets
    message = redis_stamp(target.stamp), _accepted(target, call.policy)
    return bucket.schedule_one(message, is_drawn=False, now_ms=START_MS + clock * TICK_MS)


def _restore(bucket: Bucket, reading: Reading, now_ms: int) -> RedisCommand[Any]:
    as_of = healing.Standing(str(reading.generation or ""), redis_healed(reading.healed))
    rows = [
        healing.Lacking(
            NAMES[row.id], redis_stamp(row.stamp), redis_score(row.score),
            _payload(row.stamp) if row.brought else b"", "why" if row.is_dead else "",
        )
        for row in reading.rows
    ]  # fmt: skip
    return healing.restore(bucket, as_of, rows, now_ms=now_ms)


def _accepted(target: Target, policy: str) -> Accepted:
    rank, is_gathered = rank_of(0 if target.score % 2 else 255), policy in GATHERS
    when = GATHERINGS[policy].word(NEVER) if is_gathered else str(ms_of(target.score))
    payload = _payload(target.stamp, is_gathered=is_gathered)
    return Accepted(NAMES[target.id], b"", when, rank, payload)


def _payload(stamp: int, *, is_gathered: bool = False) -> bytes:
    """Another for each stamp. That of a gathered message has eleven items."""
    rest = (*[None] * 8, 0.0) if is_gathered else ()
    return msgspec.msgpack.encode((f"{PULL}:{TOPIC}", stamp, *rest))


def _under_receipt(
    bucket: Bucket, call: ClientCall, target: Target, now_ms: int
) -> RedisCommand[Any]:
    of = bucket, redis_stamp(target.stamp), NAMES[target.id], str(call.receipt)
    if call.verb == "finish":
        return pulling.finish(*of, now_ms=now_ms)
    delay_ms, keep = target.score * TICK_MS, call.verb == "extend"
    return pulling.move(*of, delay_ms, keep=keep, now_ms=now_ms)


def _of_lease(bucket: Bucket, call: OwnerCall) -> RedisCommand[Any]:
    if call.verb == "acquire":
        window_ms = call.window * TICK_MS
        return bucket.acquire(redis_owner(call.token), TTL_MS, dedup_ms=window_ms)
    if call.verb == "renew":
        return bucket.renew(redis_token(call.token), TTL_MS, call.have)
    return bucket.release(redis_token(call.token))


def _of_owner(bucket: Bucket, call: OwnerCall, now_ms: int, reach: Reach) -> RedisCommand[Any]:
    token = redis_token(call.token)
    if call.verb == "reclaim":
        return bucket.reclaim(token, TTL_MS, limit=1, now_ms=now_ms)
    if call.verb == "seal":
        healed = redis_healed(call.healed)
        return healing.seal(bucket, (token, TTL_MS), known=call.known, healed=healed)
    if call.verb == "drop":
        ended = [(NAMES[id], redis_stamp(stamp)) for id, stamp in call.ended]
        return healing.drop(bucket, (token, TTL_MS), ended)
    if call.verb == "count":
        return orphans.count(bucket, (token, TTL_MS))
    if call.verb == "mend":
        return orphans.mend(bucket, (token, TTL_MS), orphans.FIRST, "mend", now_ms=now_ms)
    if call.verb == "unpark":
        return bucket.unpark(token, TTL_MS, limit=1)
    if call.verb == "fire":
        assert isinstance(call.seen, int)
        score = redis_score(call.score)
        return bucket.fire(token, TTL_MS, score, call.have, call.seen, now_ms=now_ms)
    return bucket.claim(
        token,
        TTL_MS,
        call.have,
        ahead_ms=reach.ahead * TICK_MS,
        limit=reach.limit,
        max_bytes=10**6,
        now_ms=now_ms,
    )


def _of_end(bucket: Bucket, call: OwnerCall, now_ms: int) -> RedisCommand[Any]:
    token = redis_token(call.token)
    groups = [(copy.claim, [NAMES[copy.id]]) for copy in call.copies]
    items = [Item(NAMES[copy.id], copy.claim, redis_score(copy.score)) for copy in call.copies]
    if call.verb == "settle":
        return bucket.settle(token, TTL_MS, groups, now_ms=now_ms)
    if call.verb == "settle_once":
        return bucket.settle_once(token, TTL_MS, groups, now_ms=now_ms)
    if call.verb == "offer":
        return pulling.offer(bucket, (token, TTL_MS), [(i, f"{PULL}:{TOPIC}") for i in items])
    if call.verb == "park":
        return bucket.park(token, TTL_MS, items)
    if call.verb == "bury":
        buried = [(item, True, call.maybe, "why") for item in items]
        return bucket.bury(token, TTL_MS, buried, now_ms=now_ms)
    delay_ms = None if call.delay is None else call.delay * TICK_MS
    failed = [(item, delay_ms, call.maybe, "kafka:orders\nwhy") for item in items]
    return bucket.retry(token, TTL_MS, failed, now_ms=now_ms)
