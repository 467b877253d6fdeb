"""The replies of scripts and commands as Python values.

Each `read_...` function takes a reply as Redis gives it. A reply of None to an owner's verb means
that the lease belongs to another worker and nothing was changed.
"""

from collections.abc import Mapping
from math import inf
from typing import Any, Literal, NamedTuple

from delaybridge.errors import StoreDamaged, StoreNewer, printable
from delaybridge.message import Answer, State
from delaybridge.store.protocol.layout import FORMAT, Layout, later_format, parse_record
from delaybridge.store.protocol.record import (
    MAX_SCORE,
    Failing,
    Tried,
    due_score,
    parse_failing,
    parse_tried,
    score_of,
)

Held = Literal[True] | None
"""The answer of an owner's verb that has the same effect however often it runs."""
# The numbers are those of lua/; 15 to 17 are not there: they say what a receipt was used for; nor
# those from 20 on: what came of a redirect.
ANSWERS = {
    0: Answer.UNKNOWN, 1: Answer.CREATED, 2: Answer.DUPLICATE, 3: Answer.CONFLICT,
    4: Answer.REPLACED, 5: Answer.IN_FLIGHT, 6: Answer.CANCELLED,
    7: Answer.CANCELLED_MAYBE_DELIVERED, 8: Answer.RESCHEDULED,
    9: Answer.RESCHEDULED_MAYBE_DELIVERED, 10: Answer.DEAD, 11: Answer.KICKED, 12: Answer.DISCARDED,
    13: Answer.UNREADABLE, 14: Answer.FOREIGN, 15: Answer.FINISHED, 16: Answer.EXTENDED,
    17: Answer.RELEASED, 18: Answer.KEPT, 20: Answer.REDIRECTED,
    21: Answer.REDIRECTED_MAYBE_DELIVERED, 22: Answer.REFUSED, 23: Answer.CHANGED,
}  # fmt: skip
_STATES = (State.DELAYED, State.IN_FLIGHT, State.PARKED, State.DEAD)


class Sample(NamedTuple):
    """messages: the number in the bucket, also dead ones.

    records: of some at random, (beginning of the payload, size, score; None if not delayed, end).
    """

    messages: int
    records: list[tuple[bytes, int, float | None, bytes]]


class Tallied(NamedTuple):
    """listed: messages of a bucket in one state; read: how many of them; counts: by destination.

    firsts: the lowest score of each destination among them.
    """

    listed: int
    read: int
    counts: Mapping[str, int]
    firsts: Mapping[str, float] = {}


class Claim(NamedTuple):
    """The answer to a claim. records: head and payload; more: not everything due was taken.

    next_score: of the next message in `due`, None if there is none. now_us: Redis' clock.
    """

    number: int
    ids: list[bytes]
    records: list[bytes]
    tried: list[bytes]
    next_score: float | None
    more: bool
    now_us: int = 0


class Fired(NamedTuple):
    """The answer to a fire. claimed: the last claim number; revoked: id -> turn."""

    claimed: int
    revoked: dict[bytes, int]
    now_us: int = 0


class Renewed(NamedTuple):
    """The answer to a renewal. next_score: of the next message in `due`, None if there is none.

    It is 0 if the store has a claim that the owner has not received: it is to claim at once.
    """

    held: bool
    next_score: float | None = None


class Acquired(NamedTuple):
    """The answer to an acquire. token: None if `holder` has the lease, for `left_ms` more.

    fresh: the bucket has no trace of an earlier owner. If it had one, its data was wiped.
    """

    token: str | None
    turn: int = 0
    fresh: bool = False
    left_ms: int = 0
    holder: str = ""
    stranger: bool = False  # the bucket has another birth id, and messages


class Reclaimed(NamedTuple):
    """The answer to a reclaim: how many are left. moved, fired: by this call, for the log.

    destinations: those of the moved ones, empty if a record cannot be read -> how many.
    """

    left: int
    moved: int
    fired: int
    destinations: Mapping[str, int] = {}


class Trimmed(NamedTuple):
    """The answer to a trim. dropped: the number deleted by this call, for the log."""

    dropped: int


class Row(NamedTuple):
    """One message as `get` and `page` show it. score: what its set is ordered by.

    reason: why it is dead, or for a message in another state how its last publish failed. is_given:
    a consumer of a pull topic had it last; until it is due again, it has it now.
    """

    id: str
    state: State
    score: float
    record: bytes
    tried: Tried
    reason: str
    fired: bool
    failing: Failing | None = None
    is_given: bool = False

    @property
    def score_ms(self) -> int:
        """The score as a time in ms, of a parked orphan its due time; 0 if it is out of range."""
        return int(due_score(self.score)) if 0 <= self.score < MAX_SCORE else 0


class Fleet(NamedTuple):
    """The answer to an announcement. announced: False if another process has this name.

    ousted: a fellow had ended this process's last announcement, since it took it for dead.
    expires_ms: name -> when that worker's announcement ends.
    """

    announced: bool
    now_us: int
    expires_ms: dict[str, int]
    ousted: bool = False


def read_answer(reply: int) -> Answer:
    return ANSWERS[reply]


def read_sample(reply: list[Any]) -> Sample:
    scores = [float(score) if score else None for score in reply[3::4]]
    return Sample(reply[0], list(zip(reply[1::4], reply[2::4], scores, reply[4::4], strict=True)))


def read_tallied(reply: list[Any]) -> Tallied:
    names = [name.decode(errors="replace") for name in reply[2::3]]
    firsts = map(float, reply[4::3])
    counts = dict(zip(names, reply[3::3], strict=True))
    return Tallied(reply[0], reply[1], counts, dict(zip(names, firsts, strict=True)))


def read_answers(reply: list[int]) -> list[Answer] | None:
    return None if reply and reply[0] < 0 else [ANSWERS[answer] for answer in reply]


def read_scheduled(reply: list[int]) -> list[tuple[Answer, int]] | None:
    if reply and reply[0] < 0:
        return None
    found: list[tuple[Answer, int]] = []
    for i in range(0, len(reply), 3):
        found += [(ANSWERS[reply[i]], reply[i + 1])] * reply[i + 2]
    return found


def read_held(reply: int | None) -> Held:
    return None if reply is None else True


def read_ids(reply: list[bytes] | None) -> set[str] | None:
    return None if reply is None else {id.decode() for id in reply}


def read_acquired(owner: str, reply: list[Any]) -> Acquired:
    if reply[0] == 1:
        return Acquired(f"{owner}:{reply[1]}", reply[1], fresh=reply[1] == 1)
    if reply[0] == 0:
        return Acquired(None, left_ms=reply[1], holder=reply[2].decode(errors="replace"))
    return Acquired(None, stranger=True)


def read_renewed(reply: bytes | None) -> Renewed:
    if reply is None:
        return Renewed(held=False)
    return Renewed(held=True, next_score=_finite(reply) if reply else None)


def read_claimed(reply: list[Any] | None) -> Claim | None:
    if reply is None:
        return None
    number, ids, records, tried, next_due, more, now_us = reply
    next_score = _finite(next_due) if next_due else None
    return Claim(number, ids, records, tried, next_score, more == 1, now_us)


def read_fired(reply: list[Any] | None) -> Fired | None:
    if reply is None:
        return None
    revoked = {reply[i]: int(reply[i + 1]) for i in range(2, len(reply), 2)}
    return Fired(reply[0], revoked, reply[1])


def read_message(id: str, reply: list[Any] | None) -> Row | None:
    if reply is None:
        return None
    state, record, tried, reason, buried, fired = reply
    score = float(buried) if buried else score_of(record)
    return _row(id, _STATES[state], score, record, tried, reason, fired)


def read_page(state: State, reply: list[Any]) -> tuple[list[Row], bool]:
    rows = []
    for i in range(1, len(reply), 6):
        id, score, record, tried, reason, fired = reply[i : i + 6]
        found = id.decode(errors="replace"), state, float(score), record
        rows.append(_row(*found, tried, reason, fired))
    return rows, reply[0] == 1


def _row(
    id: str, state: State, score: float, record: bytes, tried: bytes, reason: bytes, fired: int
) -> Row:
    why = reason.decode(errors="replace")
    failing = None if state is State.DEAD else parse_failing(why)
    if failing is not None:
        why = failing.error
    is_given = tried.count(b":") == 3
    return Row(id, state, score, record, parse_tried(tried), why, fired == 1, failing, is_given)


def read_fleet(reply: list[Any]) -> Fleet:
    expires_ms = {
        reply[i].decode(errors="backslashreplace"): reply[i + 1] for i in range(3, len(reply), 2)
    }
    return Fleet(reply[0] > 0, reply[1] * 1_000_000 + reply[2], expires_ms, reply[0] == 2)


def read_allowed(reply: list[int]) -> list[tuple[int, int]]:
    return list(zip(reply[::2], reply[1::2], strict=True))


def read_reclaimed(reply: list[Any] | None) -> Reclaimed | None:
    if reply is None:
        return None
    left, moved, fired, *found = reply
    names = [name.decode(errors="replace") for name in found[::2]]
    return Reclaimed(left, moved, fired, dict(zip(names, found[1::2], strict=True)))


def read_birth(name: str, reply: bytes | None) -> tuple[int, str] | None:
    found = read_layout(name, reply)
    return None if found is None else (found[0].here.size, found[1])


def read_layout(name: str, reply: bytes | None) -> tuple[Layout, str] | None:
    if reply is None:
        return None
    text = reply.decode(errors="backslashreplace")
    if later := later_format(text):
        raise StoreNewer(
            f"redis: {name} has format {later}, this version reads format {FORMAT}: "
            "install the version of delaybridge that wrote it"
        )
    if (found := parse_record(text)) is None:
        what = printable(reply[:60].decode(errors="backslashreplace"))
        raise StoreDamaged(
            f"redis: {name} holds {what!r}, which is not a bucket count and birth id"
        )
    return found


def read_first_score(reply: list[Any]) -> float | None:
    return _finite(reply[1]) if reply else None


def _finite(score: bytes) -> float | None:
    """A score. Infinite ones, only ever written by hand, count as none (+inf) or as due (-inf)."""
    found = float(score)
    return max(0.0, found) if found < inf else None


def read_count(reply: bytes | None) -> int:
    return int(reply) if reply is not None and reply.isdigit() else 0


def read_holder(reply: bytes | None) -> str | None:
    return None if reply is None else reply.decode(errors="replace").rsplit(":", 2)[0]


def read_text(reply: bytes | None) -> str:
    return (reply or b"").decode(errors="replace")


def read_mapping(reply: list[bytes]) -> dict[bytes, bytes]:
    return dict(zip(reply[::2], reply[1::2], strict=True))


def read_info(reply: bytes) -> dict[str, str]:
    lines = (line.partition(":") for line in reply.decode().splitlines() if ":" in line)
    return {name: value for name, _, value in lines}
