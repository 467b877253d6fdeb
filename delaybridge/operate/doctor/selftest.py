"""Runs every script of the store once, on a bucket that is never used for messages.

A missing right or command is found here rather than in the middle of a worker's script.
"""

from __future__ import annotations

import secrets
from collections.abc import Generator
from typing import TYPE_CHECKING, Any

import msgspec

from delaybridge.accept.accept import Accepted, accept
from delaybridge.errors import StoreDamaged, StoreError
from delaybridge.ledger.comparing import healing, reinstating
from delaybridge.message import Limits, Message, State
from delaybridge.recurring import stored
from delaybridge.store.messages import pulling
from delaybridge.store.namespace import orphans, registry
from delaybridge.store.namespace.placement import at
from delaybridge.store.protocol import keys, moves, record, verbs
from delaybridge.store.protocol.bucket import Bucket, Item
from delaybridge.store.protocol.keys import SCRIPT_KEYS
from delaybridge.store.protocol.layout import UNUSED
from delaybridge.store.protocol.replies import Acquired
from delaybridge.store.protocol.verbs import RedisCommand

if TYPE_CHECKING:
    from delaybridge.store.redis.store import Store

_TTL_MS = 10_000
_BIRTH = "doctor"
_ID = "doctor"
_AHEAD_MS = 3_600_000


def run_scripts(store: Store, namespace: str) -> int:
    """Run every script once and remove the bucket; returns the number of scripts.

    StoreError if a script fails.
    """
    done, error = tried(store, namespace)
    if error is not None:
        raise error
    if untried := SCRIPT_KEYS.keys() - done:
        raise StoreError(f"redis: scripts not tried: {', '.join(sorted(untried))}")
    return len(done)


def tried(store: Store, namespace: str) -> tuple[set[str], StoreError | None]:
    """Run the scripts, one after the other, until one fails: those that ran, and its error."""
    number = unused(store, namespace)
    done, name = set[str](), ""
    steps = _life(Bucket(namespace, number, _BIRTH), namespace)
    reply: Any = None
    try:
        while True:
            command = steps.send(reply)
            name = command.name
            try:
                (reply,) = store.run([command])
            except StoreDamaged:  # a key of the namespace: another check names it
                reply = 0
            if reply is None:
                raise StoreError(f"redis: the script {name} had no effect")
            if not command.is_plain:
                done.add(name)
    except StopIteration:
        return done, None
    except StoreError as exc:
        return done - {name}, exc
    finally:
        names = (*keys.BUCKET_KEYS, keys.LEAVING)
        left = [keys.bucket_key(namespace, number, name) for name in names]
        left += [keys.moving(name) for name in left]
        store.run_each([RedisCommand("DEL", (), left, int, is_plain=True)])


def unused(store: Store, namespace: str) -> int:
    """The number of a bucket that no namespace uses, on a server that answers."""
    asked = [registry.store_time(at(node)) for node in store.nodes()]
    replies = zip(store.nodes(), store.run_each(asked), strict=False)
    silent = {node for node, reply in replies if isinstance(reply, StoreError)}
    while True:
        number = UNUSED + secrets.randbelow(2**30)
        node = store.node_of(keys.bucket_key(namespace, number, "lease"))
        if node not in silent or len(silent) == len(asked):
            return number


def _life(bucket: Bucket, namespace: str) -> Generator[RedisCommand[Any], Any, None]:
    """The life of a message that meets every script: rescheduled, retried, parked, buried, ..."""
    who = f"doctor:{secrets.token_hex(8)}"
    held: Acquired = yield bucket.acquire(who, _TTL_MS)
    token = held.token or ""
    yield from _mended(bucket, token)
    yield _schedule(bucket)
    yield bucket.get(_ID)
    yield bucket.page(State.DELAYED, limit=1)
    yield bucket.sample(1)
    yield bucket.tally(State.DELAYED, 1, 1)
    yield bucket.reschedule(verbs.new_stamp(), _ID, "+0")
    item = yield from _fired(bucket, token, held.turn)
    yield bucket.retry(token, _TTL_MS, [(item, 0, False, "")])
    item = yield from _fired(bucket, token, item.claim)
    yield bucket.park(token, _TTL_MS, [item])
    yield bucket.unpark(token, _TTL_MS)
    item = yield from _fired(bucket, token, item.claim)
    yield pulling.offer(bucket, (token, _TTL_MS), [(item, "memory:doctor")])
    yield pulling.receive(bucket, "doctor", 1, 0, 1)
    yield bucket.unpark(token, _TTL_MS)
    item = yield from _fired(bucket, token, item.claim)
    yield bucket.bury(token, _TTL_MS, [(item, False, False, "doctor")])
    yield bucket.kick(verbs.new_stamp(), _ID)
    item = yield from _fired(bucket, token, item.claim)
    yield bucket.settle(token, _TTL_MS, [(item.claim, [_ID])])
    if (yield bucket.sizes()[1]):
        raise StoreError("redis: the script settle did not end the claimed message")
    yield bucket.reclaim(token, _TTL_MS)
    yield bucket.renew(token, _TTL_MS)
    if not (yield bucket.schedule_one((verbs.new_stamp(), _accepted()), is_drawn=False)):
        raise StoreError("redis: the script schedule_one did not store a message")
    yield bucket.cancel(verbs.new_stamp(), _ID)
    yield bucket.quarantine([(verbs.new_stamp(), _ID, b"", "doctor")])
    yield bucket.trim(token, _TTL_MS, keep=None, age_ms=None)
    yield bucket.discard(verbs.new_stamp(), _ID)
    yield from _of_namespace(namespace, who)
    yield stored.fence(bucket, ["doctor"])
    yield from _healed(bucket, token)
    yield bucket.release(token)
    yield from _moved(bucket)


def _mended(bucket: Bucket, token: str) -> Generator[RedisCommand[Any], Any, None]:
    """The calls of a worker that has just taken a bucket."""
    yield orphans.count(bucket, (token, _TTL_MS))
    yield orphans.mend(bucket, (token, _TTL_MS), orphans.FIRST, "mend")
    yield registry.probe(bucket, str)


def _of_namespace(namespace: str, who: str) -> Generator[RedisCommand[Any], Any, None]:
    """Those that have no bucket; all but the first for nothing."""
    yield registry.announce(namespace, who, who, 0)
    yield registry.oust(namespace, who, who, 0, who)
    yield registry.allow(namespace, [])
    yield registry.set_rule(namespace, who, b"-", b"", limit=0)
    yield stored.define(namespace, stored.read_entry(who, b""), b"", b"", None)
    yield stored.recur(namespace, 0)
    nothing = reinstating.Comparison(who, "", 0)
    yield reinstating.reinstate(namespace, nothing, [])
    yield registry.record(namespace, who, who, 0, b"")


def _healed(bucket: Bucket, token: str) -> Generator[RedisCommand[Any], Any, None]:
    """The calls of a worker with a ledger."""
    yield healing.seal(bucket, (token, _TTL_MS))
    as_of = yield healing.standing(bucket)
    stamp = verbs.new_stamp()
    yield healing.restore(bucket, as_of, [healing.Lacking(_ID, stamp, 1.0, b"x")])
    yield healing.drop(bucket, (token, _TTL_MS), [(_ID, stamp)])


def _moved(bucket: Bucket) -> Generator[RedisCommand[Any], Any, None]:
    """The calls of a resize: the bucket gives a page away, and gets it back."""
    yield moves.begin(bucket)
    found = yield _under_other_keys(moves.lift(bucket, b"", moves.new_page(), 1, 1))
    yield _under_other_keys(moves.land_back(bucket, found.page, found.page.entries))
    yield _under_other_keys(moves.retire(bucket))
    yield RedisCommand("relayout", (bucket.key("lease"),), ("-", "", bucket.wake), bool)


def _under_other_keys(command: RedisCommand[Any]) -> RedisCommand[Any]:
    return msgspec.structs.replace(command, keys=tuple(map(keys.moving, command.keys)))


def _schedule(bucket: Bucket) -> RedisCommand[Any]:
    return bucket.schedule([(verbs.new_stamp(), _accepted())], first=True)


def _accepted() -> Accepted:
    message = Message("memory:doctor", b"", delay=0, id=_ID)
    return accept(message, {"memory": "memory"}, Limits())


def _fired(bucket: Bucket, token: str, have: int) -> Generator[RedisCommand[Any], Any, Item]:
    """The message, claimed and fired."""
    claimed = yield bucket.claim(token, _TTL_MS, have, ahead_ms=_AHEAD_MS, limit=1, max_bytes=2**20)
    if not claimed.records:
        raise StoreError("redis: the script claim did not find the scheduled message")
    item = Item(_ID, claimed.number, record.split_record(claimed.records[0])[0])
    yield bucket.fire(token, _TTL_MS, item.score, claimed.number, 0)
    return item
