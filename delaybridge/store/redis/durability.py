"""Durability: after clients' writes Redis says, on the same connection, how far they have come.

A promise is a call whose answer tells a caller that something is stored. If the mode asks for more
than Redis' memory, a pipeline with promises ends with two more commands: a write, and WAIT or
WAITAOF. WAIT counts from the last write of its connection. Without that write it would count from
an earlier one if the calls before wrote nothing, because they found what they were to store: a
`duplicate` may be the message of a call whose writes no replica has yet.

The calls of workers that hold a lease promise nothing and wait for nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from delaybridge.errors import NotDurable, printable
from delaybridge.settings.durability import Durability, Keeping
from delaybridge.store.protocol import keys
from delaybridge.store.protocol.bucket import Bucket
from delaybridge.store.protocol.scripts import packed
from delaybridge.store.protocol.verbs import Each, RedisCommand, Steps, plain
from delaybridge.store.redis.errors import is_plain_refusal

_SCRIPTS = frozenset(
    ("schedule", "schedule_one", "quarantine", "cancel", "reschedule", "kick", "discard",
     "set_rule", "define", "fence",
     "land", "relayout")  # the bucket that gave messages away forgets them then
)  # fmt: skip
_PLAIN = frozenset(("SET",))  # the record of a new namespace; `confirmed`
# Of the time for an answer: it must arrive within that time, and Redis looks ten times a second for
# calls whose time is up.
_SHARE, _LATE_S, _LEAST = 0.9, 0.12, 0.5


class Assurance:
    """What is asked after the promises of a pipeline, and what its answers mean.

    On a server without WAITAOF (before 7.2), `aof-fsync` needs `appendfsync always`: then Redis
    answers a write once it is on disk. Until WAITAOF has answered, both are asked.
    """

    def __init__(self, durability: Durability) -> None:
        self._asked = durability
        self._has_waitaof = False  # so far as is known

    def promises(self, commands: Sequence[RedisCommand[Any]], places: Iterable[int]) -> list[int]:
        """The places of the promises among these commands."""
        return [i for i in places if _is_promise(commands[i])]

    def requests(self, command: RedisCommand[Any], wait_s: float) -> list[bytes]:
        """What to send after a pipeline's promises. command: one of them; its server is asked."""
        wait_s = max(_SHARE * wait_s - _LATE_S, _LEAST * wait_s)
        wait_ms = max(1, int(wait_s * 1000))  # 0 would mean: for ever
        words: list[tuple[Any, ...]] = [("SET", _beside(command), 1)]
        if self._asked.mode is Keeping.REPLICATED:
            words.append(("WAIT", self._asked.replicas, wait_ms))
        else:
            words.append(("WAITAOF", 1, 0, wait_ms))
            if not self._has_waitaof:
                words.append(("CONFIG", "GET", "append*"))
        return [packed(*each) for each in words]

    def shortfall(self, replies: Sequence[Any]) -> Exception | None:
        """Why the promises are not confirmed, from the replies to `requests`; None: they are.

        Either what Redis refused, or NotDurable.
        """
        written, *said = replies
        if isinstance(written, Exception):
            return written
        if self._asked.mode is Keeping.REPLICATED:
            return self._replicated(said[0])
        return self._synced(said)

    def _replicated(self, reply: Any) -> Exception | None:
        if isinstance(reply, Exception):
            return reply
        if reply >= self._asked.replicas:
            return None
        return _not_durable(f"{reply} of {self._asked.replicas} replicas have it")

    def _synced(self, said: Sequence[Any]) -> Exception | None:
        waited, *configured = said
        if not isinstance(waited, Exception):
            self._has_waitaof = True
            return None if waited[0] >= 1 else _not_durable("it is not on disk yet")
        if not is_plain_refusal(waited):
            return waited
        self._has_waitaof = False
        if not configured:  # appendonly was turned off, or it failed over to an older server
            return _not_durable("this server refuses WAITAOF: appendonly is off, or it is too old")
        return _always_synced(configured[0])


def assurance_of(durability: Durability) -> Assurance | None:
    """What a store with this durability asks; None: nothing."""
    return Assurance(durability) if durability.is_awaited else None


def _always_synced(reply: Any) -> Exception | None:
    if isinstance(reply, Exception):
        return reply
    found = dict(zip(reply[::2], reply[1::2], strict=False))
    if found.get(b"appendonly") != b"yes":
        return _not_durable("appendonly is off")
    if found.get(b"appendfsync") != b"always":
        said = printable(found.get(b"appendfsync", b"?").decode(errors="replace")[:20])
        return _not_durable(f"this server lacks WAITAOF, and its appendfsync is {said}")
    return None


def _not_durable(why: str) -> NotDurable:
    return NotDurable(f"redis: not durable: {why}; it may be delivered: call again, or cancel it")


def _is_promise(command: RedisCommand[Any]) -> bool:
    return command.name in (_PLAIN if command.is_plain else _SCRIPTS)


def _beside(command: RedisCommand[Any]) -> str:
    """The key `waits` with the hash tag of a command's first key."""
    return _waits(command.keys[0] if command.keys else str(command.args[0]))


def _waits(key: str) -> str:
    tag = key[1 : key.index("}")]
    return keys.waits(tag)


def confirming(buckets: Iterable[Bucket]) -> list[RedisCommand[Any]]:
    """Commands that raise NotDurable unless the server of each bucket confirms writes.

    They store nothing.
    """
    return [plain("SET", _waits(bucket.key("lease")), 1) for bucket in buckets]


def unconfirmed(buckets: Iterable[Bucket]) -> Steps[list[Exception | None]]:
    """The error of each bucket whose server does not confirm writes. Stores nothing."""
    found = yield Each(confirming(buckets))
    return [one if isinstance(one, Exception) else None for one in found]


def confirmed(buckets: Iterable[Bucket]) -> Steps[None]:
    """Raise NotDurable unless every bucket's server confirms writes. Stores nothing."""
    yield confirming(buckets)
