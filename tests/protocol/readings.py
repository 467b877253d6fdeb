"""The replies of Redis, and a bucket's keys, as the model has them."""

from __future__ import annotations

import struct
from typing import Any

from delaybridge.message import Answer
from delaybridge.store.protocol.replies import ANSWERS
from tests.protocol.bucket import BEGUN, Content, Gone, Record, Revocation
from tests.protocol.calls import Call, ClientCall, Copy, OwnerCall
from tests.protocol.consumer_verbs import Received
from tests.protocol.ledger_verbs import Sealed, Tallied
from tests.protocol.owner_verbs import MISSED, Claimed, Counted, Fired
from tests.protocol.units import (
    NAMES,
    START_MS,
    TICK_MS,
    head_of,
    healed_of,
    look_of,
    maybe_score_of,
    score_of,
    token_of,
    tried_of,
)

PUBLISHED = 1  # in `gone`

READ = """
local function zset(i) return redis.call('ZRANGE', KEYS[i], 0, -1, 'WITHSCORES') end
local function hash(i) return redis.call('HGETALL', KEYS[i]) end
return {
  hash(2), zset(1), zset(3), zset(5), zset(6), hash(4), zset(10), zset(15), zset(11), zset(14),
  redis.call('GET', KEYS[8]),
  redis.call('HMGET', KEYS[9], 'turn', 'claimed', 'fired_score', 'fired_claim', 'look'),
  redis.call('ZRANGE', KEYS[13], 0, -1), hash(7),
  redis.call('HMGET', KEYS[9], 'dedup_ms', 'generation', 'healed'),
}
"""
"""A script that reads a bucket; KEYS: `keys.BUCKET_KEYS`."""


def content_of(reply: Any, said: Content) -> Content:
    """What READ answered. said: by the model, which also knows the score of a revoked copy."""
    ids = len(said.messages)
    parts = [dict(zip(part[::2], part[1::2], strict=True)) for part in reply[:10]]
    messages, due, mirror, parked, dead, tried, revoked, delivered = (
        [part.get(name.encode()) for name in NAMES[:ids]] for part in parts[:8]
    )
    lease, marks, ready, reasons, (window_ms, generation, healed) = reply[10:]
    turn, claimed, fired_score, fired_claim, look = marks
    calls, notes = _calls(parts[8])
    return Content(
        messages=tuple(record and Record(*head_of(record)) for record in messages),
        due=tuple(map(maybe_score_of, due)),
        mirror=tuple(claim and int(float(claim)) for claim in mirror),
        parked=tuple(map(maybe_score_of, parked)),
        dead=tuple(at is not None for at in dead),
        reasons=tuple(name.encode() in reasons[::2] for name in NAMES[:ids]),
        attempts=tuple(text and tried_of(text) for text in tried),
        revoked=tuple(map(_revocation, revoked, said.revoked)),
        receipts=tuple(map(_receipt, tried)),
        delivered=tuple(until and score_of(float(until)) // 2 for until in delivered),
        calls=calls,
        notes=notes,
        ready=tuple(map(_entry, ready)),
        lease=lease and token_of(lease),
        turn=int(turn or 0),
        claimed=int(claimed or 0),
        fired_score=maybe_score_of(fired_score) if fired_score else -1,
        fired_claim=int(fired_claim or -1),
        look=look_of(look) if look else 0,
        window=int(window_ms or 0) // TICK_MS,
        generation=int(generation or 0),
        healed=healed_of(healed),
        gone=_gone(parts[9]),
        spans=tuple(
            end and score_of(float(end)) // 2
            for end in (parts[7].get(name.encode() + b"\0") for name in NAMES[:ids])
        ),
    )


def _gone(entries: dict[bytes, bytes]) -> tuple[Gone, ...]:
    found = []
    for name, score in entries.items():
        generation, how = divmod(float(score), 1)
        stamp, id = int.from_bytes(name[:4]), NAMES.index(name[4:].decode())
        found.append(Gone(id, stamp, int(generation), how == PUBLISHED / 256))
    return tuple(sorted(found))


def _revocation(turn: bytes | None, said: Revocation | None) -> Revocation | None:
    return turn and Revocation(int(float(turn)), said.score if said else -1)


def _receipt(tried: bytes | None) -> int | None:
    _, _, _, *last = (tried or b":::").split(b":")
    return int(last[0]) if last and last[0] else None


def _entry(member: bytes) -> tuple[int, int]:
    _, _, entry = member.partition(b"\0")
    (score,) = struct.unpack_from(">d", entry)
    return score_of(score), NAMES.index(entry[8:].decode())


def _calls(
    entries: dict[bytes, bytes],
) -> tuple[tuple[tuple[int, int, Answer | str], ...], tuple[tuple[int, int], ...]]:
    """Calls that took effect, and notes of claims settled at most once."""
    calls, notes = list[tuple[int, int, Answer | str]](), []
    for name, score in entries.items():
        if name.endswith(b"\0"):
            claim, id = name[:-1].decode().split(":")
            notes.append((int(claim), NAMES.index(id)))
        else:
            answer = ANSWERS.get(int(float(score) % 1 * 256), BEGUN)
            stamp, id = int.from_bytes(name[:4]), name[4:].decode()
            calls.append((stamp, NAMES.index(id), answer))
    return tuple(sorted(calls)), tuple(sorted(notes))


def answer_of(call: Call, reply: Any, said: Any) -> Any:
    """The answer to a call. said: the model's."""
    if isinstance(call, ClientCall):
        return _of_client(call, reply)
    if call.verb == "acquire":
        return (call.token[0], reply[1]) if reply[0] == 1 else None
    return None if reply is None else _of_owner(call, reply, said)


def _of_client(call: ClientCall, reply: Any) -> Any:
    if call.verb == "receive":
        return [_received(*reply[i : i + 4]) for i in range(0, len(reply), 4)]
    if call.verb == "restore":
        return None if reply == [-2] else tuple(reply)
    if call.verb == "tally":
        return _tallied(reply)
    if call.row is not None:
        return ANSWERS[reply[0]], int.from_bytes(reply[1]) if reply[1] else -1
    if call.verb != "schedule":
        return ANSWERS[reply]
    return [ANSWERS[reply[i]] for i in range(0, len(reply), 3) for _ in range(reply[i + 2])]


def _tallied(reply: Any) -> Tallied:
    size, read, *found = reply
    return Tallied(size, read, *found[1:2], *map(_listed, map(float, found[2:])))


def _listed(number: float) -> int:
    """A score of a message, or the number of its claim."""
    return score_of(number) if number >= START_MS else int(number)


def _received(id: bytes, record: bytes, count: int, until_ms: int) -> Received:
    until = score_of(until_ms) // 2
    return Received(NAMES.index(id.decode()), Record(*head_of(record)), count, until)


def _of_owner(call: OwnerCall, reply: Any, said: Any) -> Any:
    match call.verb:
        case "claim":
            return _claimed(reply)
        case "fire":
            return _fired(reply, said)
        case "renew":
            return (MISSED if reply == b"0" else maybe_score_of(reply),)
        case "reclaim":
            return tuple(reply[:3])
        case "count":
            return Counted(*reply[:6])
        case "seal":
            return Sealed(reply[0], reply[1], healed_of(reply[2]))
        case "drop":
            return (reply,)
        case "mend":
            return tuple(reply[3:5])
        case "unpark":
            return (reply,)
        case "release":
            return reply == 1
        case "settle_once":
            return frozenset(NAMES.index(id.decode()) for id in reply)
    return True


def _claimed(reply: Any) -> Claimed:
    number, ids, records, _, next_due, more, _ = reply
    copies = [
        Copy(NAMES.index(id.decode()), number, *head_of(record)[:2])
        for id, record in zip(ids, records, strict=True)
    ]
    return Claimed(number, tuple(copies), maybe_score_of(next_due), more == 1)


def _fired(reply: Any, said: Fired | None) -> Fired:
    scores = {(id, turn): score for id, turn, score in said.revoked} if said else {}
    found = [(NAMES.index(reply[i].decode()), int(reply[i + 1])) for i in range(2, len(reply), 2)]
    revoked = tuple((id, turn, scores.get((id, turn), -1)) for id, turn in sorted(found))
    return Fired(reply[0], revoked)
