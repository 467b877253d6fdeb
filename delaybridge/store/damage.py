"""What each key of a bucket must hold, and what to do where it holds something else.

`look` is a few cheap commands for one bucket, `found` reads their replies; both are sans-IO. A
worker looks at a bucket whose verb was refused, `stats`, `health` and `doctor` look at all.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from delaybridge.errors import StoreError, printable
from delaybridge.store import keys, registry
from delaybridge.store.command import RedisCommand, plain
from delaybridge.store.verbs import Bucket

TYPES = {
    **dict.fromkeys(("messages", "attempts", "dead_reason", "sources"), "hash"),
    **dict.fromkeys(("due", "parked", "dead", "calls", "mirror", "revoked"), "zset"),
    "lease": "string",
    "marks": "hash",
}
"""Last the marks: numbers only grow, so none read before is above the turn in them."""
_MARKS = ("turn", "claimed", "fired_claim", "fired_score", "look", "birth")
READS: dict[str, tuple[tuple[str, ...], ...]] = {
    **{key: (("HLEN",),) for key, kind in TYPES.items() if kind == "hash"},
    **{
        key: (("ZRANGE", "0", "0", "WITHSCORES"), ("ZRANGE", "-1", "-1", "WITHSCORES"))
        for key, kind in TYPES.items()
        if kind == "zset"
    },
    "lease": (("GET",),),
    "marks": (("HMGET", *_MARKS),),
}
_LISTS = (
    (keys.workers, "ZCARD"),
    (keys.worker_info, "HLEN"),
    (keys.ingests, "ZCARD"),
    (keys.ingest_info, "HLEN"),
)
_KIND_OF_VERB = {"ZCARD": "zset", "HLEN": "hash"}
_COUNTED = ("mirror", "revoked")  # their scores are numbers drawn from the bucket's counter
_TOKEN = re.compile(rb"[^\x00-\x1f]+:[0-9A-Za-z]+:([1-9][0-9]{0,15})")
_WHOLE = re.compile(rb"[1-9][0-9]{0,15}")
_SCORE = re.compile(rb"[0-9]{1,16}(\.[0-9]{1,40})?")
_DRAWN = ("turn", "claimed", "fired_claim")
_FORMS = {**dict.fromkeys(_DRAWN, _WHOLE), **dict.fromkeys(("fired_score", "look"), _SCORE)}
_MOST = 2**53  # beyond it neither a score nor a script counts exactly
_CHARS = 60


class Damage(NamedTuple):
    """A key that holds what delaybridge never wrote there. remedy: what to do by hand."""

    key: str
    what: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.key} {self.what}"


def look(bucket: Bucket) -> list[RedisCommand[Any]]:
    """Commands that show what is damaged in a bucket, to be run as `Each`; for `found`."""
    return [plain(verb, bucket.key(key), *args) for key in TYPES for verb, *args in READS[key]]


def found(bucket: Bucket, replies: Sequence[Any], *, was_owned: bool = False) -> list[Damage]:
    """What the replies to `look` show. was_owned: the bucket had an owner, so it has marks."""
    answers = iter(replies)
    read = {key: [next(answers) for _ in READS[key]] for key in TYPES}
    sound = {key: of for key, of in read.items() if not any(isinstance(r, StoreError) for r in of)}
    damage = [_of(bucket, key, f"is not a {TYPES[key]}") for key in TYPES if key not in sound]
    ends = {key: _ends(sound.get(key, [])) for key, kind in TYPES.items() if kind == "zset"}
    for key, found_ends in ends.items():
        odd = [end for end in found_ends if not _may_be(key, end[1])]
        damage += [_odd_score(bucket, key, *end) for end in odd[:1]]
    drawn = [score for key in _COUNTED for _, score in ends[key] if score < _MOST]
    (lease,) = sound.get("lease", [None])
    token = _TOKEN.fullmatch(lease or b"")
    if token:
        drawn.append(float(token[1]))
    elif lease is not None:
        damage.append(_of(bucket, "lease", f"holds {_shown(lease)}, which is no token"))
    for marks in sound.get("marks", []):
        # Messages alone tell of no owner, but of a client, which leaves its birth id.
        is_fresh = not (was_owned or drawn or any(marks[:-1]))
        is_bare = is_fresh and (marks[-1] is not None or sound.get("messages") == [0])
        damage += _odd_birth(bucket, marks[-1])
        damage += [] if is_bare else _odd_marks(bucket, marks, drawn)
    return damage


def _ends(replies: Sequence[Any]) -> list[tuple[bytes, float]]:
    """The lowest and the highest entry of a zset, by score."""
    return [(member, float(score)) for member, score in filter(None, replies)]


def _odd_score(bucket: Bucket, key: str, member: bytes, score: float) -> Damage:
    name, entry = bucket.key(key), _shown(member)
    # Due long ago; in the mirror, left by a dead owner: the next one takes it back.
    remedy = f"redis-cli ZADD '{name}' 1 {entry}"
    if key in ("revoked", "calls"):
        remedy = f"redis-cli ZREM '{name}' {entry}"
    return _of(bucket, key, f"has the entry {entry} with the score {score:g}", remedy)


def _odd_birth(bucket: Bucket, birth: bytes | None) -> Iterator[Damage]:
    if birth is not None and birth != bucket.birth.encode():
        remedy = f"redis-cli HSET '{bucket.key('marks')}' birth {bucket.birth}"
        yield _of(bucket, "marks", f"has the birth id {_shown(birth)} of another", remedy)


def _odd_marks(
    bucket: Bucket, values: Sequence[bytes | None], drawn: Sequence[float]
) -> Iterator[Damage]:
    """What is wrong with the bucket's counter and watermark. drawn: numbers it gave out."""
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
    # All that is in flight then counts as possibly delivered; the next owner draws its own numbers.
    next_ = int(max([0.0, *(n for n in drawn if n < _MOST)])) + 1
    remedy = (
        f"redis-cli HSET '{bucket.key('marks')}' turn {next_} claimed {next_} "
        f"fired_claim {next_} fired_score {_MOST - 1} look 0 birth {bucket.birth}"
    )
    yield _of(bucket, "marks", what, remedy)


def _may_be(key: str, score: float) -> bool:
    if key in _COUNTED:
        return 1 <= score < _MOST and score.is_integer()
    return 0 <= score < _MOST


def _of(bucket: Bucket, key: str, what: str, remedy: str = "") -> Damage:
    name = bucket.key(key)
    return Damage(name, what, remedy or f"move it away: redis-cli RENAME '{name}' '{name}.damaged'")


def _shown(value: bytes) -> str:
    return repr(printable(value[:_CHARS].decode(errors="backslashreplace")))


def look_at_lists(namespace: str) -> list[RedisCommand[Any]]:
    """The same for the lists of workers and ingest processes; for `found_in_lists`."""
    return [registry.read_birth(namespace), *(plain(verb, of(namespace)) for of, verb in _LISTS)]


def found_in_lists(namespace: str, replies: Sequence[Any]) -> list[Damage]:
    """What is damaged there. A worker that cannot read them goes on with what it holds."""
    birth, *lists = replies
    damage = [
        Damage(of(namespace), f"is not a {_KIND_OF_VERB[verb]}", f"redis-cli DEL '{of(namespace)}'")
        for (of, verb), reply in zip(_LISTS, lists, strict=True)
        if isinstance(reply, StoreError)
    ]
    if isinstance(birth, StoreError):
        damage.append(of_birth(namespace))
    return damage


def of_birth(namespace: str) -> Damage:
    """The namespace's own record, where it cannot be read."""
    name, marks = keys.birth(namespace), keys.bucket_key(namespace, 0, "marks")
    remedy = f"redis-cli HGET '{marks}' birth, then redis-cli SET '{name}' COUNT:ID"
    return Damage(name, "is not `bucket count:birth id`", remedy)
