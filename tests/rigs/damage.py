"""Every kind of damage that people, bugs or other programs may do to the keys of a namespace."""

from __future__ import annotations

import struct
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from delaybridge.store.namespace.damage import TYPES
from delaybridge.store.protocol import keys, verbs

BUCKETS, SICK, HEALTHY = 2, 0, 1


def id_for(bucket: int, what: str) -> str:
    """An id that begins with `what` and belongs to that bucket."""
    ids = (f"{what}-{i}" for i in range(100))
    return next(id for id in ids if verbs.bucket_of(id.encode(), BUCKETS) == bucket)


KEPT = id_for(SICK, "kept")  # pending in the damaged bucket, due in an hour
NAN_HEAD = struct.pack(">Bd4s", 1, float("nan"), b"abcd")
INFINITE_HEAD = struct.pack(">Bd4s", 1, float("inf"), b"abcd")
LIVING_MS = 4_000_000_000_000  # an announcement that never runs out
BRIEFLY_MS = 1500


class Place(NamedTuple):
    """Where damage is done. number: of the bucket. lives_ms: how long a living process does."""

    redis: Any
    namespace: str
    number: int
    worker: str
    lives_ms: int = BRIEFLY_MS

    def key(self, name: str) -> str:
        """A key of the bucket, or of the namespace."""
        if name in keys.BUCKET_KEYS:
            return keys.bucket_key(self.namespace, self.number, name)
        return f"{{{self.namespace}}}:{name}"


Harm = Callable[[Place], Awaitable[Any]]


class Kind(NamedTuple):
    """One kind of damage to one key.

    is_named: named until it is mended or work heals it; else it affects one message only.
    named: the key that is named, if it is another.
    """

    key: str
    how: str
    harm: Harm
    is_named: bool = True
    named: str = ""

    @property
    def name(self) -> str:
        return f"{self.key}-{self.how}"


def _wrong_type(key: str) -> Harm:
    async def harm(place: Place) -> None:
        await place.redis.delete(place.key(key))
        if TYPES.get(key) == "string" or key == "birth":
            await place.redis.rpush(place.key(key), "x")
        else:
            await place.redis.set(place.key(key), "x")

    return harm


def _set(key: str, value: str | bytes) -> Harm:
    return lambda place: place.redis.set(place.key(key), value)


def _field(key: str, field: str | bytes, value: str | bytes) -> Harm:
    return lambda place: place.redis.hset(place.key(key), field, value)


def _without(key: str, *fields: str) -> Harm:
    return lambda place: place.redis.hdel(place.key(key), *fields)


def _member(key: str, member: str | bytes, score: float) -> Harm:
    return lambda place: place.redis.zadd(place.key(key), {member: score})


def _gone(key: str) -> Harm:
    return lambda place: place.redis.delete(place.key(key))


def _of_kept(key: str, value: bytes) -> Harm:
    """Damage to the entry of the pending message, which then becomes due."""

    async def harm(place: Place) -> None:
        await place.redis.hset(place.key(key), KEPT, value)
        await place.redis.zadd(place.key("due"), {KEPT: 1.0})

    return harm


def _info(value: bytes, *, own: bool = False, list: str = "worker") -> Harm:
    """The announcement of a living process."""

    async def harm(place: Place) -> None:
        name = place.worker if own else "other"
        if not own:
            members = {name: await _end_ms(place)}
            await place.redis.zadd(place.key(f"{list}s"), members)
        await place.redis.hset(place.key(f"{list}_info"), name, value)

    return harm


async def _end_ms(place: Place) -> int:
    seconds, _ = await place.redis.time()
    return int(seconds) * 1000 + place.lives_ms


def _kinds_of_marks() -> list[Kind]:
    fields = ("turn", "claimed", "fired_score", "fired_claim", "look")
    kinds = [Kind("marks", f"{f}-{v or 'empty'}", _field("marks", f, v)) for f in fields
             for v in ("x", "", "-1", "nan")]  # fmt: skip
    kinds += [Kind("marks", f"{f}-huge", _field("marks", f, "9" * 18)) for f in fields]
    kinds += [Kind("marks", f"without-{f}", _without("marks", f)) for f in ("turn", "claimed")]
    counters = ("scheduled", "cancelled", "rescheduled", "dropped")
    kinds += [Kind("marks", f"{f}-x", _field("marks", f, "x"), False) for f in counters]
    kinds += [Kind("marks", "scheduled-huge", _field("marks", "scheduled", "9" * 18 + "9"), False)]
    healing = ("fired_score", "fired_claim", "look", "birth")
    kinds += [Kind("marks", f"without-{f}", _without("marks", f), False) for f in healing]
    return [
        *kinds,
        Kind("marks", "turn-1", _field("marks", "turn", "1")),
        Kind("marks", "birth-of-another", _field("marks", "birth", "0" * 16)),
        Kind("marks", "gone", _gone("marks")),
    ]


def _kinds_of_sets() -> list[Kind]:
    kinds = []
    for key in ("due", "parked", "dead", "calls", "mirror", "revoked"):
        moves_on = key in ("due", "parked")  # claimed, found to have no record, and buried
        kinds += [
            Kind(key, "infinite", _member(key, "odd", float("inf"))),
            Kind(key, "minus-infinite", _member(key, "odd", float("-inf")), not moves_on),
            Kind(key, "no-text", _member(key, b"\xff\xfe", 5.0), False),
            Kind(key, "empty", _member(key, b"", 5.0), False),
        ]
    counted = ("mirror", "revoked")
    kinds += [Kind(key, "fraction", _member(key, "odd", 0.5)) for key in counted]
    above = 10**12
    kinds += [
        Kind(key, "above-the-turn", _member(key, "odd", above), named="marks") for key in counted
    ]
    return kinds


def _kinds_of_hashes() -> list[Kind]:
    records = {
        "empty": b"",
        "short": b"\x01ab",
        "another-version": b"\x09" + b"a" * 30,
        "not-a-time": NAN_HEAD + b"rest",
        "infinite": INFINITE_HEAD + b"rest",
        "garbage": b"\x01" + struct.pack(">d4s", 1.0, b"abcd") + b"\xc1\xff",
    }
    tried = {"text": b"x", "fields": b"1:2:3:4", "no-text": b"\xff", "huge": b"9" * 40 + b":0:"}
    return [
        *(Kind("messages", how, _of_kept("messages", v), False) for how, v in records.items()),
        *(Kind("attempts", how, _of_kept("attempts", v), False) for how, v in tried.items()),
        Kind("dead_reason", "no-text", _field("dead_reason", KEPT, b"\xff"), False),
        Kind("sources", "text", _field("sources", "s", "x"), False),
        Kind("lease", "text", _set("lease", "garbage"), False),
        Kind("lease", "no-text", _set("lease", b"\xff\xfe"), False),
    ]


def _kinds_of_the_fleet() -> list[Kind]:
    announced = {
        "no-json": b"0123456789abcdef{]",
        "a-list": b"0123456789abcdef[]",
        "no-instance": b"garbage",
        "nothing": b"0123456789abcdef{}",
        "other-types": b'0123456789abcdef{"host": 7, "pid": "x", "version": null, "sources": 3}',
        "odd-sources": b'0123456789abcdef{"sources": [3, {"source": 5, "total": "x", "new": 1}]}',
        "odd-faults": b'0123456789abcdef{"sources": [{"faults": [3, "a"]}, {"faults": "x"}]}',
        "deep": b"0123456789abcdef" + b'{"a":' * 100_000,
        "huge-numbers": b'0123456789abcdef{"pid": 1e400, "started_ms": 99999999999999999999}',
    }
    kinds = []
    for list in ("worker", "ingest"):
        kinds += [
            Kind(f"{list}_info", how, _info(value, list=list), False)
            for how, value in announced.items()
        ]
        kinds += [
            Kind(f"{list}s", "no-text", _member(f"{list}s", b"\xff", LIVING_MS), False),
            Kind(f"{list}s", "infinite", _member(f"{list}s", "ghost", float("inf")), False),
            Kind(f"{list}s", "gone", _gone(f"{list}s"), False),
            Kind(f"{list}_info", "gone", _gone(f"{list}_info"), False),
        ]
    own = ("no-json", "no-instance", "a-list", "nothing")
    kinds += [Kind("worker_info", f"own-{h}", _info(announced[h], own=True), False) for h in own]
    texts = (
        "",
        "x",
        "99999999999:0123456789abcdef",
        "3:0123456789abcdef",
        "2:",
        "-2:a",
        "2",
        "\xff",
    )
    kinds += [Kind("birth", text[:16] or "empty", _set("birth", text)) for text in texts]
    noise = ("", "x", "1 2 3", "99999 9999999999999999", "-1 5", "\xff", "1 " + "9" * 5000)
    for text in noise:
        publish: Harm = lambda place, t=text: place.redis.publish(place.key("wake"), t)  # noqa: E731
        kinds.append(Kind("wake", text[:10] or "empty", publish, False))
    return kinds


LISTS = ("workers", "worker_info", "ingests", "ingest_info", "fronts", "front_info")
KINDS = [
    *(Kind(key, "wrong-type", _wrong_type(key)) for key in (*keys.BUCKET_KEYS, *LISTS, "birth")),
    *_kinds_of_marks(),
    *_kinds_of_sets(),
    *_kinds_of_hashes(),
    *_kinds_of_the_fleet(),
]
