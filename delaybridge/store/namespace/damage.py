"""The right contents of each key of a bucket, and how to mend a key with other contents.

`commands` returns a few cheap commands for one bucket, `found` reads their replies. A worker looks
at a bucket whose verb was refused; `stats`, `health` and `doctor` look at all of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from types import MappingProxyType
from typing import Any, NamedTuple

from delaybridge import late
from delaybridge.errors import StoreError, printable
from delaybridge.store.protocol import keys
from delaybridge.store.protocol.bucket import Bucket
from delaybridge.store.protocol.verbs import RedisCommand, plain

TYPES = {
    **dict.fromkeys(("messages", "attempts", "dead_reason", "sources"), "hash"),
    **dict.fromkeys(("due", "parked", "dead", "calls", "mirror", "revoked", "ready"), "zset"),
    **dict.fromkeys(("gone", "delivered"), "zset"),
    "lease": "string",
    "marks": "hash",
}
"""Key -> type, in the order in which they are read.

The marks come last: the bucket's counter only grows, so no number read before can be above it.
"""
_MARKS = ("turn", "claimed", "fired_claim", "fired_score", "look", "birth")
_READS_OF_TYPE: dict[str, tuple[tuple[str, ...], ...]] = {
    "hash": (("HLEN",),),
    "zset": (("ZRANGE", "0", "0", "WITHSCORES"), ("ZRANGE", "-1", "-1", "WITHSCORES")),
    "string": (("GET",),),
}
READS = {key: _READS_OF_TYPE[kind] for key, kind in TYPES.items()} | {
    "marks": (("HMGET", *_MARKS),)
}
_COUNTED = ("mirror", "revoked")  # their scores are numbers drawn from the bucket's counter
_TOKEN = late.pattern(rb"[^\x00-\x1f]+:[0-9A-Za-z]+:([1-9][0-9]{0,15})")
_WHOLE = late.pattern(rb"[1-9][0-9]{0,15}")
_SCORE = late.pattern(rb"[0-9]{1,16}(\.[0-9]{1,40})?")
_DRAWN = ("turn", "claimed", "fired_claim")
_FORMS = {**dict.fromkeys(_DRAWN, _WHOLE), **dict.fromkeys(("fired_score", "look"), _SCORE)}
_MOST = 2**53  # above it neither a score nor a script counts exactly
_CHARS = 60


class Damage(NamedTuple):
    """A key with contents that delaybridge never wrote.

    remedy: what to do by hand. effect: what stops meanwhile. counter: of marks whose counter is
    lost or too low: the fields that `remedy` sets.
    """

    key: str
    what: str
    remedy: str
    effect: str = "its bucket waits, the others go on"
    counter: Mapping[str, str] = MappingProxyType({})

    def __str__(self) -> str:
        return f"{self.key} {self.what}"


def commands(bucket: Bucket) -> list[RedisCommand[Any]]:
    """Commands that show the damage in a bucket, to be run as `Each`; for `found`."""
    return [plain(verb, bucket.key(key), *args) for key in TYPES for verb, *args in READS[key]]


def found(bucket: Bucket, replies: Sequence[Any], *, was_owned: bool = False) -> list[Damage]:
    """The damage that the replies to `commands` show. was_owned: a worker has held this bucket."""
    each = iter(replies)
    read = {key: [next(each) for _ in READS[key]] for key in TYPES}
    sound = {
        key: own for key, own in read.items() if not any(isinstance(r, StoreError) for r in own)
    }
    damage = [_of(bucket, key, f"is not a {TYPES[key]}") for key in TYPES if key not in sound]
    ends = {key: _ends(own) for key, own in sound.items() if TYPES[key] == "zset"}
    (lease,) = sound.get("lease", [None])
    damage += _odd_scores(bucket, ends)
    damage += _odd_lease(bucket, lease)
    for marks in sound.get("marks", []):
        is_empty = sound.get("messages") == [0]
        damage += _odd_birth(bucket, marks[-1], is_free=is_empty and not was_owned)
        drawn = _drawn(ends, lease)
        # Only an owner writes the other marks. A client leaves the birth id with its first message.
        was_owned = was_owned or bool(drawn) or any(marks[:-1])
        if was_owned or (marks[-1] is None and not is_empty):
            damage += _odd_marks(bucket, marks, drawn)
    return damage


def _ends(replies: Sequence[Any]) -> list[tuple[bytes, float]]:
    """The lowest and the highest entry of a zset, by score."""
    return [(member, float(score)) for member, score in filter(None, replies)]


def _drawn(ends: Mapping[str, Sequence[tuple[bytes, float]]], lease: bytes | None) -> list[float]:
    """Numbers that the bucket's counter gave out, as far as keys other than the marks tell."""
    drawn = [score for key in _COUNTED for _, score in ends.get(key, ()) if score < _MOST]
    token = _TOKEN.fullmatch(lease or b"")
    return [*drawn, float(token[1])] if token else drawn


def _odd_scores(
    bucket: Bucket, ends: Mapping[str, Sequence[tuple[bytes, float]]]
) -> Iterator[Damage]:
    """One entry of each zset whose score is out of range."""
    for key, entries in ends.items():
        odd = next(((member, score) for member, score in entries if not _may_be(key, score)), None)
        if odd is not None:
            yield _odd_score(bucket, key, *odd)


def _odd_score(bucket: Bucket, key: str, member: bytes, score: float) -> Damage:
    name, entry = bucket.key(key), _shown(member)
    if key in ("revoked", "calls", "delivered"):
        remedy = f"redis-cli ZREM '{name}' {entry}"
    else:  # due long ago; in the mirror, claimed by a dead owner, so the next one reclaims it
        remedy = f"redis-cli ZADD '{name}' 1 {entry}"
    return _of(bucket, key, f"has the entry {entry} with the score {score:g}", remedy)


def _odd_lease(bucket: Bucket, lease: bytes | None) -> Iterator[Damage]:
    if lease is not None and not _TOKEN.fullmatch(lease):
        yield _of(bucket, "lease", f"holds {_shown(lease)}, which is not a token")


def _odd_birth(bucket: Bucket, birth: bytes | None, *, is_free: bool) -> Iterator[Damage]:
    """is_free: whoever comes next takes the bucket over, as it was wiped and is empty."""
    if birth is not None and birth != bucket.birth.encode() and not is_free:
        remedy = f"redis-cli HSET '{bucket.key('marks')}' birth {bucket.birth}"
        yield _of(bucket, "marks", f"has another namespace's birth id, {_shown(birth)}", remedy)


def _odd_marks(
    bucket: Bucket, values: Sequence[bytes | None], drawn: Sequence[float]
) -> Iterator[Damage]:
    """Damage to the bucket's counter and watermark. drawn: numbers that the counter gave out."""
    marks = {name: v for name, v in zip(_MARKS[:-1], values, strict=False) if v is not None}
    odd = [name for name, value in marks.items() if not _FORMS[name].fullmatch(value)]
    drawn = [*drawn, *(float(marks[name]) for name in _DRAWN if name in marks and name not in odd)]
    highest = max(drawn, default=0.0)
    if odd:
        what = f"has {odd[0]} {_shown(marks[odd[0]])}"
    elif missing := [name for name in ("turn", "claimed") if name not in marks]:
        what = f"lacks {missing[0]}"
    elif highest > float(marks["turn"]):
        what = f"has turn {_shown(marks['turn'])}, but {highest:.0f} was drawn before"
    else:
        return
    # With this watermark every message in flight counts as possibly delivered, so none is lost. The
    # next owner draws numbers above all that were drawn.
    next_ = int(max([0.0, *(n for n in drawn if n < _MOST)])) + 1
    counter = dict.fromkeys(_DRAWN, str(next_))
    counter |= {"fired_score": str(_MOST - 1), "look": "0", "birth": bucket.birth}
    words = " ".join(f"{name} {value}" for name, value in counter.items())
    found = _of(bucket, "marks", what, f"redis-cli HSET '{bucket.key('marks')}' {words}")
    yield found._replace(counter=counter)


def with_counter(bucket: Bucket, found: Damage) -> RedisCommand[Any]:
    """Does what `remedy` says of a lost counter; for whoever has the lease.

    What was in flight counts as possibly delivered, and comes again.
    """
    return plain("HSET", bucket.key("marks"), *chain(*found.counter.items()))


def _may_be(key: str, score: float) -> bool:
    if key in _COUNTED:
        return 1 <= score < _MOST and score.is_integer()
    return 0 <= score < _MOST


def _of(bucket: Bucket, key: str, what: str, remedy: str = "") -> Damage:
    name = bucket.key(key)
    return Damage(name, what, remedy or f"move it away: redis-cli RENAME '{name}' '{name}.damaged'")


def _shown(value: bytes) -> str:
    return repr(printable(value[:_CHARS].decode(errors="backslashreplace")))


def of_birth(namespace: str) -> Damage:
    """The damage of a namespace whose record cannot be read."""
    name, marks = keys.birth(namespace), keys.bucket_key(namespace, 0, "marks")
    remedy = f"redis-cli HGET '{marks}' birth, then redis-cli SET '{name}' COUNT:ID"
    return Damage(name, "is not `bucket count:birth id`", remedy, "no process can start")
