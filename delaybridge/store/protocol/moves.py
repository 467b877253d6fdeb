"""Messages on their way to other buckets, in a resize: pages that one gives and others take.

tests/protocol/resize.py is the model. `begin` gives a bucket other keys; `lift` takes a page from
it, which stays in `leaving` until it has landed; `land` puts it into each of the buckets that it
goes to, once; then `lift` forgets it, and takes the next. Whoever finds a page may land it.
"""

from __future__ import annotations

import secrets
import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from delaybridge.errors import DecodeError
from delaybridge.message import decode_record
from delaybridge.store.protocol import keys
from delaybridge.store.protocol.bucket import Bucket
from delaybridge.store.protocol.record import split_record
from delaybridge.store.protocol.verbs import Arg, RedisCommand, as_received, bucket_of, plain

MOVED = b"moved:"
"""How a key begins that was left under a bucket's old name."""
_MOVED_TEXT = "moved: delaybridge reads the record of the namespace again"  # as lua/begin.lua
_LEFT = "due", "messages", "mirror", "parked", "dead", "marks", "sources", "ready"
PHASES = GOES, PASSED, EMPTY = 1, 2, 3
"""A bucket gives messages away; none of it can be published any more; it has given all."""
STRANGER = [-1]
_STAMP_BYTES = 8
_DEAD, _SOURCE, _COUNT = 3, 6, 7  # kinds of entries (lua/lift.lua); up to 3 it is a message
_OF_PLANS = ("recurring:", "http:")  # sources whose messages are all of one bucket
_HEAD = struct.Struct(">BdI")
_NEAR_MS = 2000
_REST = 4096  # copies that a page makes of what goes to each target
_QUARANTINED = b"~"


class Entry(NamedTuple):
    """What a page has of one message, or of one field. content: as `lift` gave it."""

    id: bytes
    content: bytes

    @property
    def is_message(self) -> bool:
        """Whether it goes to one bucket, by its key; all else but a count goes to each."""
        return self.content[0] <= _DEAD

    @property
    def is_source(self) -> bool:
        """Whether it is how far a source was read."""
        return self.content[0] == _SOURCE

    @property
    def shard_key(self) -> bytes:
        """What its bucket is made of: its key, or its id if it has none that can be read."""
        _, _, size = _HEAD.unpack_from(self.content)
        try:
            _, payload = split_record(self.content[_HEAD.size : _HEAD.size + size])
        except DecodeError:
            payload = b""
        return shard_key(self.id, payload)


class MovedPage(NamedTuple):
    """stamp: names it. gate: of the buckets that it goes to, once it has landed."""

    stamp: bytes
    gate: bytes
    entries: Sequence[Entry]


class Lifted(NamedTuple):
    """phase: one of PHASES. page: None if there is nothing to lift before `wait_ms` are over."""

    phase: int
    page: MovedPage | None
    wait_ms: int


def shard_key(id: bytes, payload: bytes) -> bytes:
    """What the bucket of a message is made of: its key, or its id if it has none to be read."""
    try:
        found = decode_record(payload).key
    except DecodeError:
        return id.partition(_QUARANTINED)[0]
    return id if found is None else found


def begin(bucket: Bucket) -> RedisCommand[bool]:
    """Give a bucket the keys under which it gives its messages away; False: a worker holds it."""
    old = [*map(bucket.key, keys.BUCKET_KEYS)]
    new = [keys.moving(bucket.key(name)) for name in keys.BUCKET_KEYS_MOVED]
    # near: as it is, also where it is known that the bucket has other keys.
    return RedisCommand("begin", (*old, *new), (bucket.birth,), bool, near=old[0])


def new_page() -> bytes:
    """The stamp of a page that is to be lifted."""
    return secrets.token_bytes(_STAMP_BYTES)


def lift(
    bucket: Bucket, landed: bytes, stamp: bytes, limit: int, max_bytes: int,
    back: Iterable[bytes] = (), *, near_ms: int = _NEAR_MS, now_ms: int | None = None,
    targets: int = 1,
) -> RedisCommand[Lifted | None]:  # fmt: skip
    """Take the next page; or the last one again, if `landed` is not its stamp.

    back: ids of the page that has landed, that were put back. targets: how many take what goes to
    each of them. Answers None if the bucket gives no messages away.
    """
    now: Arg = "" if now_ms is None else now_ms
    rest = max(1, _REST // max(1, targets))
    args = (now, landed, stamp, limit, max_bytes, near_ms, bucket.birth, rest, *back)
    return bucket.call("lift", args, _read_lifted)


def leaving(bucket: Bucket) -> RedisCommand[MovedPage | None]:
    """The page of a bucket that may not have landed yet."""
    return plain("GET", bucket.key(keys.LEAVING), parse=_read_page)


def land(
    bucket: Bucket, page: MovedPage, source: int, entries: Iterable[Entry], sources: Iterable[int],
    *, now_ms: int | None = None,
) -> RedisCommand[list[Any]]:  # fmt: skip
    """Put these entries of a page into a bucket; answers with ids that another message has there.

    Answers STRANGER if the bucket has another birth id.

    source: the bucket that it was lifted from; sources: all that give messages to this one.
    """
    listed = "".join(f" {number}" for number in sources)
    now: Arg = "" if now_ms is None else now_ms
    place = bucket.wake, bucket.number
    args: list[Arg] = [now, bucket.birth, page.stamp, source, page.gate, listed, *place]
    for entry in entries:
        args += entry
    return bucket.call("land", args, as_received)


def land_back(bucket: Bucket, page: MovedPage, entries: Iterable[Entry]) -> RedisCommand[Any]:
    """Put entries of a page that were refused into the bucket that they came from."""
    put = MovedPage(page.stamp, b"", ())
    return land(bucket, put, bucket.number, entries, ())


def retire(bucket: Bucket) -> RedisCommand[bool]:
    """Delete what is left of a bucket that has given everything; False: it is not time yet."""
    return bucket.call("retire", (bucket.birth,), bool)


def ended(bucket: Bucket) -> list[RedisCommand[str]]:
    """Leave a bucket that has given everything as `begin` and `retire` do: Redis was wiped since.

    What was stored there by who did not know of it is in the ledger, too.
    """
    old = [bucket.key(name) for name in _LEFT]
    names = [*old, *(keys.moving(bucket.key(name)) for name in ("messages", "marks"))]
    return [plain("SET", name, _MOVED_TEXT, near=name) for name in names]


def is_moved(key: str) -> RedisCommand[bool]:
    """Whether the bucket with this key `messages` has other keys by now, or none."""
    is_so = lambda reply: bool(reply and reply.startswith(MOVED))  # noqa: E731
    return plain("GET", key, parse=is_so, near=key)  # as it is: this key, no other


def source_at(source: str, number: int) -> str:
    """A source, as a target of a bucket knows it that takes the messages of several.

    Each of these had read it up to its own offset.
    """
    return source if not source or source.startswith(_OF_PLANS) else f"{source}@{number}"


def known_at(entry: Entry, number: int) -> Entry:
    """The entry, as a target of this bucket is to know it."""
    if not entry.is_source:
        return entry
    return entry._replace(id=source_at(entry.id.decode(errors="replace"), number).encode())


def by_target(
    entries: Iterable[Entry], targets: Sequence[int]
) -> Iterator[tuple[int, list[Entry]]]:
    """The entries for each of the buckets that a bucket gives its messages to.

    targets: their numbers, a constant step apart; a power of two, like that step.
    """
    own: dict[int, list[Entry]] = {number: [] for number in targets}
    for entry in entries:
        if entry.is_message:
            own[target_of(entry.shard_key, targets)].append(entry)
        elif entry.content[0] == _COUNT:
            own[targets[0]].append(entry)
        else:
            for some in own.values():
                some.append(entry)
    yield from own.items()


def target_of(shard_key: bytes, targets: Sequence[int]) -> int:
    """Which of these buckets a message goes to."""
    if len(targets) == 1:
        return targets[0]
    step = targets[1] - targets[0]
    return targets[bucket_of(shard_key, step * len(targets)) // step]


def _read_lifted(reply: list[Any]) -> Lifted | None:
    return None if reply[0] == -1 else Lifted(reply[0], _read_page(reply[1]), reply[2])


def _read_page(reply: bytes | None) -> MovedPage | None:
    if not reply:
        return None
    words = list(_words(reply, _STAMP_BYTES))
    entries = [Entry(*pair) for pair in zip(words[1::2], words[2::2], strict=True)]
    return MovedPage(reply[:_STAMP_BYTES], words[0], entries)


def _words(text: bytes, at: int) -> Iterator[bytes]:
    while at < len(text):
        size = int.from_bytes(text[at : at + 4], "big")
        yield text[at + 4 : at + 4 + size]
        at += 4 + size
