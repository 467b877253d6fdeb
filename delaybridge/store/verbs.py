"""Every verb of the store, sans I/O: what is sent, and what the reply means.

A `Command` is one script call or plain command; whoever has a connection runs it (`store.py`).
The scripts are in lua/, one verb per file, under the same name. Each is safe to run twice, with
anything in between, so that every command may be sent again when its reply was lost.
"""

from __future__ import annotations

import random
import re
import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any, Generic, Literal, NamedTuple, TypeVar

from delaybridge.accept.accept import Accepted
from delaybridge.errors import ConfigError, DecodeError, StoreDamaged, printable
from delaybridge.message import Answer, OnConflict, State
from delaybridge.settings.namespace import check_buckets
from delaybridge.store import keys

T = TypeVar("T")
Held = Literal[True] | None
"""What an owner's verb says whose effect is the same however often it is executed."""

_OWNER = ("lease",)
_WHOLE = ("messages", "due", "mirror", "attempts", "parked", "dead", "dead_reason", "marks")
SCRIPT_KEYS: dict[str, tuple[str, ...]] = {
    "schedule": (*_WHOLE, "revoked", "calls", "sources"),
    "quarantine": ("messages", "dead", "dead_reason", "marks"),
    "cancel": (*_WHOLE, "revoked", "calls", "sources"),
    "reschedule": (
        *("messages", "due", "mirror", "attempts", "parked", "dead", "marks"),
        *("revoked", "calls", "sources"),
    ),
    "kick": ("messages", "due", "attempts", "dead", "dead_reason", "marks", "calls"),
    "discard": ("messages", "attempts", "dead", "dead_reason", "calls"),
    "get": ("messages", "mirror", "attempts", "parked", "dead", "dead_reason", "marks"),
    "page": ("listed", "messages", "attempts", "dead_reason", "marks"),
    "sample": ("messages",),
    "acquire": ("lease", "marks", "revoked"),
    "renew": ("lease", "due"),
    "release": ("lease",),
    "claim": (
        *("lease", "due", "mirror", "messages", "attempts", "dead", "dead_reason", "marks"),
        "calls",
    ),
    "fire": ("lease", "marks", "revoked"),
    "settle": ("lease", "mirror", "messages", "attempts", "calls"),
    "retry": ("lease", "due", "mirror", "messages", "attempts"),
    "park": ("lease", "mirror", "parked"),
    "unpark": ("lease", "parked", "due"),
    "bury": ("lease", "mirror", "attempts", "dead", "dead_reason"),
    "reclaim": (
        *("lease", "due", "mirror", "messages", "attempts", "dead", "dead_reason", "marks"),
    ),
    "trim": ("lease", "messages", "attempts", "dead", "dead_reason", "marks", "calls"),
    "announce": ("workers", "worker_info"),
}
_BEGINNING = 1100  # bytes of a record that hold its destination, however long that is
LISTED = {
    State.DELAYED: "due",
    State.IN_FLIGHT: "mirror",
    State.PARKED: "parked",
    State.DEAD: "dead",
}

HEAD_SIZE = 13
HEAD_VERSION = 1
BACKDATED = 2  # the same for what was due before it was accepted; when that was stands at the end
_VERSIONS = (HEAD_VERSION, BACKDATED)
_HEAD = struct.Struct(">Bd")
_TIME = struct.Struct(">d")
_ANSWERS = {
    0: Answer.UNKNOWN,
    1: Answer.CREATED,
    2: Answer.DUPLICATE,
    3: Answer.CONFLICT,
    4: Answer.REPLACED,
    5: Answer.IN_FLIGHT,
    6: Answer.CANCELLED,
    7: Answer.CANCELLED_MAYBE_DELIVERED,
    8: Answer.RESCHEDULED,
    9: Answer.RESCHEDULED_MAYBE_DELIVERED,
    10: Answer.DEAD,
    11: Answer.KICKED,
    12: Answer.DISCARDED,
    13: Answer.UNREADABLE,
    14: Answer.FOREIGN,
}
_POLICY = {OnConflict.FAIL: 0, OnConflict.KEEP: 1, OnConflict.REPLACE: 2}
_WAIT = 3  # as FAIL, but an id whose message is fired is in flight, whatever its content
_WAIT_MAYBE = 4  # likewise, and an earlier publish of the message may have arrived
_BIRTH = re.compile(rb"([1-9][0-9]{0,4}):([0-9a-f]{16})")
_TRIED = re.compile(rb"([0-9]{1,9}):([01]):([0-9]{0,15})")
_MOST = 2**53  # scores below it are exact
_OFFSET = struct.Struct(">Q")
Arg = str | bytes | int | float


@dataclass(frozen=True, slots=True)
class Command(Generic[T]):
    """One script call (`plain` false), or one plain Redis command; `parse` reads its reply."""

    name: str
    keys: tuple[str, ...]
    args: Sequence[Arg]
    parse: Callable[[Any], T]
    plain: bool = False


class Tried(NamedTuple):
    """What is remembered of failed publishes. due_ms: as first asked for, None if never moved."""

    failures: int = 0
    maybe_delivered: bool = False
    due_ms: int | None = None


UNTRIED = Tried()


class Failing(NamedTuple):
    """How the last publish of a message failed that is tried again; since_ms: the first one."""

    since_ms: int
    destination: str
    error: str


class Sample(NamedTuple):
    """messages: how many there are. records: (beginning of the payload, size) of some of them."""

    messages: int
    records: list[tuple[bytes, int]]


class Claimed(NamedTuple):
    """The answer of a claim. records: head and payload; more: not everything due was taken.

    now_us: the store's clock, as in `Fired`.
    """

    number: int
    ids: list[bytes]
    records: list[bytes]
    tried: list[bytes]
    next_score: float | None
    more: bool
    now_us: int = 0


class Fired(NamedTuple):
    """The answer of a fire. claimed: the last claim number; revoked: id -> turn."""

    claimed: int
    revoked: dict[bytes, int]
    now_us: int = 0


class Renewed(NamedTuple):
    """The answer of a renewal. next_score: of the next due message, None if there is none."""

    held: bool
    next_score: float | None = None


class Acquired(NamedTuple):
    """The answer of an acquire. token: None if another holds the lease, for `left_ms` more.

    fresh: nobody ever took this bucket before; if somebody did, its data was wiped.
    """

    token: str | None
    turn: int = 0
    fresh: bool = False
    left_ms: int = 0
    holder: str = ""
    stranger: bool = False  # the bucket was born in another namespace


class Reclaimed(NamedTuple):
    """The answer of a reclaim: how many are left. moved, fired: by this execution, for the log."""

    left: int
    moved: int
    fired: int


class Trimmed(NamedTuple):
    """The answer of a trim. dropped: by this execution, for the log."""

    dropped: int


class Row(NamedTuple):
    """One message as `get` and `page` show it. score: what its set is ordered by.

    reason: why it is dead; of any other, how it failed last.
    """

    id: str
    state: State
    score: float
    record: bytes
    tried: Tried
    reason: str
    fired: bool
    failing: Failing | None = None

    @property
    def score_ms(self) -> int:
        """The score as a time; 0 for one that is none."""
        return int(self.score) if 0 <= self.score < _MOST else 0


class Fleet(NamedTuple):
    """The answer of an announcement. expires_ms: name -> when that worker's announcement ends."""

    announced: bool
    now_us: int
    expires_ms: dict[str, int]


class Item(NamedTuple):
    """A claimed message as owner verbs name it."""

    id: str
    claim: int
    score: float


def split_record(record: bytes) -> tuple[float, bytes]:
    """Score and payload of a stored record; DecodeError for a head that is not ours."""
    if len(record) >= HEAD_SIZE:
        version, score = _HEAD.unpack_from(record)
        if version in _VERSIONS and not 0 <= score < _MOST:
            raise DecodeError("undecodable", "record", "the head has no due time")
        if version == HEAD_VERSION:
            return score, record[HEAD_SIZE:]
        if version == BACKDATED:
            return score, record[HEAD_SIZE:-8]
    raise DecodeError("undecodable", "record", "the head has another format version")


def since_ms(record: bytes) -> int:
    """From when on a stored record is late: its due time, or later, when it was accepted."""
    score, _ = split_record(record)
    if record[0] != BACKDATED or len(record) < HEAD_SIZE + _TIME.size:
        return int(score)
    accepted_ms: float = _TIME.unpack_from(record, len(record) - _TIME.size)[0]
    return int(accepted_ms) if score < accepted_ms < _MOST else int(score)


def parse_tried(text: bytes) -> Tried:
    """What the `attempts` hash says of one message; unreadable, it may have been delivered."""
    if not text:
        return UNTRIED
    found = _TRIED.fullmatch(text)
    if found is None:
        return Tried(0, True, None)
    count, maybe, due_ms = found.groups()
    return Tried(int(count), maybe == b"1", int(due_ms) if due_ms else None)


def parse_failing(text: str) -> Failing | None:
    """What the `attempts` hash says of a message's last error; None if nothing."""
    since_ms, _, said = text.partition("\n")
    destination, _, error = said.partition("\n")
    return Failing(int(since_ms), destination, error) if since_ms.isdecimal() else None


def new_stamp() -> bytes:
    """A call stamp: drawn once a call, kept when the call is sent again."""
    # Python seeds this generator anew in a forked process: two never draw the same series.
    return random.getrandbits(32).to_bytes(4, "big")


class Source(NamedTuple):
    """Where messages or a call were read, and at which offsets: ascending, from call to call."""

    name: str
    offsets: Sequence[int]


NOWHERE = Source("", ())


class Bucket:
    """The verbs of one bucket. Owner verbs return None where the lease is lost.

    A command sent again, because its reply was lost, gives the answer that the lost reply carried.
    now_ms, wherever it appears: None is the store's clock; tests pass a number.
    """

    def __init__(self, namespace: str, number: int, birth: str) -> None:
        self.number, self.birth = number, birth
        self._wake = keys.wake(namespace)
        name = {key: keys.bucket_key(namespace, number, key) for key in keys.BUCKET_KEYS}
        self._keys = {
            script: tuple(name[key] for key in used)
            for script, used in SCRIPT_KEYS.items()
            if script not in ("page", "announce")
        }
        self._page_keys = {
            state: (name[listed], *(name[key] for key in SCRIPT_KEYS["page"][1:]))
            for state, listed in LISTED.items()
        }
        self._name = name

    def key(self, name: str) -> str:
        """The key `name` (one of `keys.BUCKET_KEYS`) of this bucket."""
        return self._name[name]

    # clients

    def schedule(
        self,
        messages: Sequence[tuple[bytes, Accepted]],
        policy: OnConflict | None = OnConflict.FAIL,
        *,
        source: Source = NOWHERE,
        reach: str = "",
        maybe: bool = False,
        first: bool = False,
        now_ms: int | None = None,
    ) -> Command[list[tuple[Answer, int]] | None]:
        """Accept (stamp, message) pairs: answer and due time each; None: read the birth anew.

        policy None: as FAIL, but for an id whose message is fired: that is `in_flight`, to be
        scheduled again once it is settled. source: what was scheduled from there before is left
        out and answered `duplicate`, also where it was published already; the answers end with the
        first `conflict`, `foreign` or `in_flight`: that one was not read, and what follows it was
        not looked at. reach: patterns of the destinations that the caller may send to, as JSON; a
        pending message that is bound for none of them is `foreign`, whatever the policy. maybe: an
        earlier publish of these messages, whose outcome is unknown, may have arrived.
        """
        waits = _WAIT_MAYBE if maybe else _WAIT
        args: list[Arg] = [
            *(_now(now_ms), waits if policy is None else _POLICY[policy]),
            *(self.birth, int(first), self._wake, self.number),
            *(source.name, b"".join(map(_OFFSET.pack, source.offsets)), reach),
        ]
        for stamp, message in messages:
            args += (stamp, message.id, message.when, message.rank, message.payload)
        return self._call("schedule", args, _scheduled)

    def quarantine(
        self,
        messages: Iterable[tuple[bytes, str, bytes, str]],
        *,
        first: bool = False,
        now_ms: int | None = None,
    ) -> Command[list[Answer] | None]:
        """Keep (stamp, id, payload, reason) in the dead set: `created`, or `conflict` (the id)."""
        args: list[Arg] = [_now(now_ms), self.birth, int(first)]
        for message in messages:
            args += message
        return self._call("quarantine", args, _answers)

    def cancel(
        self,
        stamp: bytes,
        id: str,
        *,
        source: str = "",
        offset: int = 0,
        otherwise: bool = False,
        reach: str = "",
        now_ms: int | None = None,
    ) -> Command[Answer]:
        """Remove a message that was not fired. A call read from a source acts once.

        otherwise: answered `unknown` or `foreign` it does not count as read; what is done instead
        will. reach: as for `schedule`.
        """
        args = (_now(now_ms), stamp, id, source, offset, int(otherwise), reach)
        return self._call("cancel", args, _answer)

    def reschedule(
        self,
        stamp: bytes,
        id: str,
        when: str,
        *,
        source: str = "",
        offset: int = 0,
        reach: str = "",
        now_ms: int | None = None,
    ) -> Command[Answer]:
        """Give a message that was not fired another due time. source, reach: as for `cancel`."""
        args = (
            *(_now(now_ms), stamp, id, when, self._wake, self.number),
            *(source, offset, reach),
        )
        return self._call("reschedule", args, _answer)

    def kick(
        self, stamp: bytes, id: str, delay_ms: int = 0, *, now_ms: int | None = None
    ) -> Command[Answer]:
        """Bring a message back from the dead set."""
        args = (_now(now_ms), stamp, id, delay_ms, self._wake, self.number)
        return self._call("kick", args, _answer)

    def discard(self, stamp: bytes, id: str, *, now_ms: int | None = None) -> Command[Answer]:
        """Forget a message of the dead set."""
        return self._call("discard", (_now(now_ms), stamp, id), _answer)

    def get(self, id: str) -> Command[Row | None]:
        """Where a message is."""
        return self._call("get", (id,), lambda reply: _got(id, reply))

    def sample(self, limit: int) -> Command[Sample]:
        """How many messages there are, and a few of them at random."""
        return self._call("sample", (limit, _BEGINNING), _sampled)

    def page(
        self,
        state: State,
        *,
        limit: int,
        after: tuple[float, str] | None = None,
        low: float | None = None,
        high: float | None = None,
        max_bytes: int = 4 * 2**20,
    ) -> Command[tuple[list[Row], bool]]:
        """Messages in one state by score and id, and whether there are more."""
        args = (
            "-inf" if low is None else repr(low),
            "+inf" if high is None else repr(high),
            *(("", "") if after is None else (repr(after[0]), after[1])),
            limit,
            max_bytes,
        )
        keys_ = self._page_keys[state]
        return Command("page", keys_, args, lambda reply: _paged(state, reply))

    # the lease

    def acquire(self, owner: str, ttl_ms: int) -> Command[Acquired]:
        """Take the lease if nobody holds it. owner: `worker:random`, random anew each time."""
        args = (owner, ttl_ms, self.birth)
        return self._call("acquire", args, lambda reply: _acquired(owner, reply))

    def renew(self, token: str, ttl_ms: int) -> Command[Renewed]:
        """Keep the lease, if it is still ours."""
        return self._call("renew", (token, ttl_ms), _renewed)

    def release(self, token: str) -> Command[Literal[True]]:
        """Give the lease back; True: it is not held under this token (any more)."""
        return self._call("release", (token, self._wake), _done)

    # the owner

    def claim(
        self,
        token: str,
        ttl_ms: int,
        have: int,
        *,
        ahead_ms: int,
        limit: int,
        max_bytes: int,
        pace_ms: int = 0,
        margin_ms: int = 0,
        now_ms: int | None = None,
    ) -> Command[Claimed | None]:
        """Move what is due soon into the mirror and return it."""
        args = (
            *(token, ttl_ms, _now(now_ms), have, ahead_ms, limit, max_bytes),
            *(pace_ms, margin_ms),
        )
        return self._call("claim", args, _claimed)

    def fire(
        self,
        token: str,
        ttl_ms: int,
        watermark: float,
        have: int,
        seen: int,
        *,
        now_ms: int | None = None,
    ) -> Command[Fired | None]:
        """Count everything up to the watermark as handed over; learn what was revoked."""
        args = (token, ttl_ms, repr(watermark), have, seen, _now(now_ms))
        return self._call("fire", args, _fired)

    def settle(
        self, token: str, ttl_ms: int, groups: Iterable[tuple[int, Sequence[str]]]
    ) -> Command[Held]:
        """Forget confirmed messages, given as (claim number, ids)."""
        return self._call("settle", _groups(token, ttl_ms, None, 0, groups), _held)

    def settle_once(
        self,
        token: str,
        ttl_ms: int,
        groups: Iterable[tuple[int, Sequence[str]]],
        *,
        now_ms: int | None = None,
    ) -> Command[set[str] | None]:
        """Forget messages about to be published at most once: the ids that may be published.

        They are those that these claims settled, in this execution or an earlier one of the same
        call, whose reply was lost. So whoever gets an answer publishes each copy once; a copy whose
        answer never comes (its session is over) is not published at all.
        """
        return self._call("settle", _groups(token, ttl_ms, now_ms, 1, groups), _ids)

    def retry(
        self,
        token: str,
        ttl_ms: int,
        items: Iterable[tuple[Item, int | None, bool, str]],
        *,
        now_ms: int | None = None,
    ) -> Command[Held]:
        """Put back (item, back-off in ms or None = not attempted, may have been delivered, error).

        error: destination and last error, parted by a newline.
        """
        args: list[Arg] = [token, ttl_ms, _now(now_ms)]
        for item, delay_ms, maybe, error in items:
            delay: Arg = "" if delay_ms is None else delay_ms
            args += (item.id, item.claim, repr(item.score), delay, int(maybe), error)
        return self._call("retry", args, _held)

    def park(self, token: str, ttl_ms: int, items: Iterable[Item]) -> Command[Held]:
        """Set items aside while their broker takes nothing."""
        args: list[Arg] = [token, ttl_ms]
        for item in items:
            args += (item.id, item.claim, repr(item.score))
        return self._call("park", args, _held)

    def unpark(
        self, token: str, ttl_ms: int, *, limit: int = 1000, ids: Sequence[str] = ()
    ) -> Command[int | None]:
        """Move parked messages back to due, those named or the earliest: how many are left."""
        return self._call("unpark", (token, ttl_ms, limit, *ids), _number)

    def bury(
        self,
        token: str,
        ttl_ms: int,
        items: Iterable[tuple[Item, bool, bool, str]],
        *,
        now_ms: int | None = None,
    ) -> Command[Held]:
        """Give up (item, attempt counted, may have been delivered, reason)."""
        args: list[Arg] = [token, ttl_ms, _now(now_ms)]
        for item, counted, maybe, reason in items:
            args += (item.id, item.claim, int(counted), int(maybe), reason)
        return self._call("bury", args, _held)

    def reclaim(
        self, token: str, ttl_ms: int, limit: int = 500, *, now_ms: int | None = None
    ) -> Command[Reclaimed | None]:
        """Put back what dead sessions left in the mirror."""
        args = (token, ttl_ms, _now(now_ms), limit)
        return self._call("reclaim", args, lambda r: None if r is None else Reclaimed(*r))

    def trim(
        self,
        token: str,
        ttl_ms: int,
        *,
        keep: int | None,
        age_ms: int | None,
        limit: int = 100,
        now_ms: int | None = None,
    ) -> Command[Trimmed | None]:
        """Drop dead messages beyond these bounds, the oldest first."""
        bounds: list[Arg] = ["" if bound is None else bound for bound in (keep, age_ms)]
        args = (token, ttl_ms, _now(now_ms), *bounds, limit)
        return self._call("trim", args, lambda r: None if r is None else Trimmed(r))

    # counts

    def counts(self) -> list[Command[Any]]:
        """ZCARD of due, mirror, parked, dead; first due and parked score; holder, PTTL, dropped."""
        name = self._name
        sizes = [_plain("ZCARD", name[k], parse=int) for k in ("due", "mirror", "parked", "dead")]
        heads = [
            _plain("ZRANGE", name[k], 0, 0, "WITHSCORES", parse=_head_score)
            for k in ("due", "parked")
        ]
        lease: list[Command[Any]] = [
            self.holder(),
            _plain("PTTL", name["lease"], parse=int),
            _plain("HGET", name["marks"], "dropped", parse=_count),
        ]
        return [*sizes, *heads, *lease]

    def why_dead(self, id: str) -> Command[str]:
        """Why it was buried, empty if nothing is known of it."""
        parse: Callable[[Any], str] = lambda r: (r or b"").decode(errors="replace")  # noqa: E731
        return _plain("HGET", self._name["dead_reason"], id, parse=parse)

    def holder(self) -> Command[str | None]:
        """Which worker holds the lease."""
        return _plain("GET", self._name["lease"], parse=_holder)

    def failing(self, most: int) -> Command[tuple[dict[bytes, Failing], bool]]:
        """Messages that are tried again, about so many; and whether these are all of them."""
        asked = (0, "MATCH", "*\0", "COUNT", 2 * most)  # two fields each
        return _plain("HSCAN", self._name["attempts"], *asked, parse=_failing)

    def tried(self, ids: Iterable[bytes]) -> Command[list[bytes | None]]:
        """What `attempts` has of each, None if nothing."""
        return _plain("HMGET", self._name["attempts"], *ids, parse=lambda reply: reply)

    def _call(self, script: str, args: Sequence[Arg], parse: Callable[[Any], T]) -> Command[T]:
        return Command(script, self._keys[script], args, parse)


def birth(namespace: str, buckets: int, id: str) -> list[Command[Any]]:
    """Write the namespace's record if there is none, and read it: (bucket count, birth id)."""
    name = keys.birth(namespace)
    return [
        _plain("SET", name, f"{buckets}:{id}", "NX", parse=bool),
        _plain("GET", name, parse=lambda reply: _birth(name, reply)),
    ]


def read_birth(namespace: str) -> Command[tuple[int, str] | None]:
    """The namespace's record, None if there is none."""
    name = keys.birth(namespace)
    return _plain("GET", name, parse=lambda reply: _birth(name, reply))


def announce(
    namespace: str,
    name: str,
    instance: str,
    ttl_ms: int,
    info: bytes = b"",
    *,
    ingests: bool = False,
    now_ms: int | None = None,
) -> Command[Fleet]:
    """Say that this worker (or ingest process) lives; with ttl_ms 0, that it leaves."""
    args = (_now(now_ms), name, instance, ttl_ms, info, keys.wake(namespace))
    return Command("announce", _members(namespace, ingests), args, _fleet)


def fleet(namespace: str, *, ingests: bool = False) -> list[Command[Any]]:
    """What workers (or ingest processes) say of themselves, and when each one's word runs out."""
    members, info = _members(namespace, ingests)
    return [
        _plain("HGETALL", info, parse=_mapping),
        _plain("ZRANGE", members, 0, -1, "WITHSCORES", parse=lambda reply: reply),
    ]


def _members(namespace: str, ingests: bool) -> tuple[str, str]:
    if ingests:
        return keys.ingests(namespace), keys.ingest_info(namespace)
    return keys.workers(namespace), keys.worker_info(namespace)


def store_time() -> Command[int]:
    """The store's clock in microseconds since the epoch."""
    return _plain("TIME", parse=lambda reply: int(reply[0]) * 1_000_000 + int(reply[1]))


def info(section: str) -> Command[dict[str, str]]:
    """One section of INFO."""
    return _plain("INFO", section, parse=_info)


def _plain(name: str, *args: Arg, parse: Callable[[Any], T]) -> Command[T]:
    return Command(name, (), args, parse, plain=True)


def _now(now_ms: int | None) -> Arg:
    return "" if now_ms is None else now_ms


def _groups(
    token: str,
    ttl_ms: int,
    now_ms: int | None,
    once: int,
    groups: Iterable[tuple[int, Sequence[str]]],
) -> list[Arg]:
    args: list[Arg] = [token, ttl_ms, _now(now_ms), once]
    for claim, ids in groups:
        args += (claim, len(ids), *ids)
    return args


def _answer(reply: int) -> Answer:
    return _ANSWERS[reply]


def _sampled(reply: list[Any]) -> Sample:
    return Sample(reply[0], list(zip(reply[1::2], reply[2::2], strict=True)))


def _answers(reply: list[int]) -> list[Answer] | None:
    return None if reply and reply[0] < 0 else [_ANSWERS[answer] for answer in reply]


def _scheduled(reply: list[int]) -> list[tuple[Answer, int]] | None:
    if reply and reply[0] < 0:
        return None
    return [(_ANSWERS[reply[i]], reply[i + 1]) for i in range(0, len(reply), 2)]


def _done(_: Any) -> Literal[True]:
    return True


def _held(reply: int | None) -> Held:
    return None if reply is None else True


def _number(reply: int | None) -> int | None:
    return reply


def _ids(reply: list[bytes] | None) -> set[str] | None:
    return None if reply is None else {id.decode() for id in reply}


def _acquired(owner: str, reply: list[Any]) -> Acquired:
    if reply[0] == 1:
        return Acquired(f"{owner}:{reply[1]}", reply[1], fresh=reply[1] == 1)
    if reply[0] == 0:
        return Acquired(None, left_ms=reply[1], holder=reply[2].decode(errors="replace"))
    return Acquired(None, stranger=True)


def _renewed(reply: bytes | None) -> Renewed:
    if reply is None:
        return Renewed(held=False)
    return Renewed(held=True, next_score=_finite(reply) if reply else None)


def _claimed(reply: list[Any] | None) -> Claimed | None:
    if reply is None:
        return None
    number, ids, records, tried, next_due, more, now_us = reply
    next_score = _finite(next_due) if next_due else None
    return Claimed(number, ids, records, tried, next_score, more == 1, now_us)


def _fired(reply: list[Any] | None) -> Fired | None:
    if reply is None:
        return None
    revoked = {reply[i]: int(reply[i + 1]) for i in range(2, len(reply), 2)}
    return Fired(reply[0], revoked, reply[1])


def _score(record: bytes) -> float:
    return float(_HEAD.unpack_from(record)[1]) if len(record) >= _HEAD.size else 0.0


_STATES = (State.DELAYED, State.IN_FLIGHT, State.PARKED, State.DEAD)


def _got(id: str, reply: list[Any] | None) -> Row | None:
    if reply is None:
        return None
    state, record, tried, reason, buried, fired = reply
    score = float(buried) if buried else _score(record)
    return _row(id, _STATES[state], score, record, tried, reason, fired)


def _paged(state: State, reply: list[Any]) -> tuple[list[Row], bool]:
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
    return Row(id, state, score, record, parse_tried(tried), why, fired == 1, failing)


def _fleet(reply: list[Any]) -> Fleet:
    expires_ms = {
        reply[i].decode(errors="backslashreplace"): reply[i + 1] for i in range(3, len(reply), 2)
    }
    return Fleet(reply[0] == 1, reply[1] * 1_000_000 + reply[2], expires_ms)


def _birth(name: str, reply: bytes | None) -> tuple[int, str] | None:
    if reply is None:
        return None
    found = _BIRTH.fullmatch(reply)
    try:
        count = check_buckets(int(found[1]) if found else 0)
    except ConfigError:
        what = printable(reply[:60].decode(errors="backslashreplace"))
        raise StoreDamaged(
            f"redis: {name} holds {what!r}, which is no bucket count and birth id"
        ) from None
    return count, found[2].decode() if found else ""


def _head_score(reply: list[Any]) -> float | None:
    return _finite(reply[1]) if reply else None


def _finite(score: bytes) -> float | None:
    """A score; infinite ones, which only a hand writes, are none, or due."""
    found = float(score)
    return max(0.0, found) if found < inf else None


def _count(reply: bytes | None) -> int:
    return int(reply) if reply is not None and reply.isdigit() else 0


def _holder(reply: bytes | None) -> str | None:
    return None if reply is None else reply.decode(errors="replace").rsplit(":", 2)[0]


def _failing(reply: list[Any]) -> tuple[dict[bytes, Failing], bool]:
    cursor, fields = reply
    texts = zip(fields[::2], fields[1::2], strict=True)
    found = {field[:-1]: parse_failing(text.decode(errors="replace")) for field, text in texts}
    return {id: failing for id, failing in found.items() if failing}, int(cursor) == 0


def _mapping(reply: list[bytes]) -> dict[bytes, bytes]:
    return dict(zip(reply[::2], reply[1::2], strict=True))


def _info(reply: bytes) -> dict[str, str]:
    lines = (line.partition(":") for line in reply.decode().splitlines() if ":" in line)
    return {name: value for name, _, value in lines}
