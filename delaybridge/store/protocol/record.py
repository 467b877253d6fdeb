"""Stored records, the `attempts` hash, and why messages do not go out."""

import struct
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from delaybridge import late
from delaybridge.accept.accept import Accepted
from delaybridge.errors import DecodeError
from delaybridge.message import PULL

HEAD_SIZE = 13
STAMP = slice(9, HEAD_SIZE)  # of the call that scheduled the message
HEAD_VERSION = 1
BACKDATED = 2  # due before it was accepted: the time of acceptance follows, in eight more bytes
MAX_SCORE = 2**53  # scores below it are exact
ORPHAN_SCORE = 2**52  # added to the score of a parked orphan: no session brings it back
_VERSIONS = (HEAD_VERSION, BACKDATED)
_HEAD = struct.Struct(">Bd")
_TIME = struct.Struct(">d")
_TRIED = late.pattern(rb"([0-9]{1,9}):([01]):([0-9]{0,15})(?::[0-9]{1,16})?")


class Carried(Accepted, frozen=True, gc=False):
    """A message that was tried elsewhere. tried, failing: of its attempts, as they are stored."""

    tried: str = ""
    failing: str = ""


FRACTIONS = [f"{rank / 256:.8f}"[1:] for rank in range(256)]
"""The part of a score that is its rank, exact, by rank."""


def runs_of(messages: Sequence[tuple[bytes, Accepted]]) -> list[str | int]:
    """Score and number of messages of each run."""
    runs: list[str | int] = []
    when, rank, begin = "", 0, 0
    if len({m.when for _, m in messages}) == len({m.rank for _, m in messages}) == 1:
        first = messages[0][1]  # most often all are of one run
        return [first.when + FRACTIONS[first.rank], len(messages)]
    for i, (_, message) in enumerate(messages):
        if message.when != when or message.rank != rank:
            if i:
                runs += (when + FRACTIONS[rank], i - begin)
            when, rank, begin = message.when, message.rank, i
    if messages:
        runs += (when + FRACTIONS[rank], len(messages) - begin)
    return runs


class Tried(NamedTuple):
    """How often publishing failed.

    due_ms: the due time first asked for, None if neither a back-off nor a spread has moved it yet.
    """

    failures: int = 0
    maybe_delivered: bool = False
    due_ms: int | None = None


UNTRIED = Tried()


class Failing(NamedTuple):
    """The last failed publish of a message that is tried again.

    since_ms: when it failed first, in epoch milliseconds.
    """

    since_ms: int
    destination: str
    error: str


def split_record(record: bytes) -> tuple[float, bytes]:
    """Score and payload of a stored record; DecodeError if the head cannot be read."""
    what = "the head is cut short"
    if len(record) >= HEAD_SIZE:
        version, score = _HEAD.unpack_from(record)
        what = f"the head has format {version}, of another version of delaybridge"
        if version == HEAD_VERSION and 0 <= score < MAX_SCORE:
            return score, record[HEAD_SIZE:]
        if version in _VERSIONS and not 0 <= score < MAX_SCORE:
            raise DecodeError("undecodable", "record", "the head has no due time")
        if version == BACKDATED:
            return score, record[HEAD_SIZE:-8]
    raise DecodeError("undecodable", "record", what)


def joined_record(score: float, stamp: int, payload: bytes) -> bytes:
    """A record as it is stored: what `split_record` takes apart."""
    return _HEAD.pack(HEAD_VERSION, score) + stamp.to_bytes(HEAD_SIZE - _HEAD.size) + payload


def since_ms(record: bytes) -> int:
    """The time a record is late from: its due time, or when it was accepted if that is later.

    DecodeError if the head cannot be read.
    """
    score, _ = split_record(record)
    if record[0] != BACKDATED or len(record) < HEAD_SIZE + _TIME.size:
        return int(score)
    accepted_ms: float = _TIME.unpack_from(record, len(record) - _TIME.size)[0]
    return int(accepted_ms) if score < accepted_ms < MAX_SCORE else int(score)


def score_of(record: bytes) -> float:
    """The score in a record's head, unchecked; 0 if the record is too short to have one."""
    return float(_HEAD.unpack_from(record)[1]) if len(record) >= _HEAD.size else 0.0


def due_score(score: float) -> float:
    """The score of a parked message without what keeps an orphan parked."""
    return score - ORPHAN_SCORE if score >= ORPHAN_SCORE else score


def parse_tried(text: bytes) -> Tried:
    """An entry of the `attempts` hash. If unreadable, it counts as "may have been delivered"."""
    if not text:
        return UNTRIED
    found = _TRIED.fullmatch(text)
    if found is None:
        return Tried(0, True, None)
    count, maybe, due_ms = found.groups()
    return Tried(int(count), maybe == b"1", int(due_ms) if due_ms else None)


def parse_failing(text: str) -> Failing | None:
    """The last error in the `attempts` hash (time, destination, error); None if unreadable."""
    since_ms, _, rest = text.partition("\n")
    destination, _, error = rest.partition("\n")
    return Failing(int(since_ms), destination, error) if since_ms.isdecimal() else None


_WORD = late.pattern(r"ingress:\w+|[^:\n]+")
LACKING = "no_broker"
UNRECEIVED = "unreceived: no consumer has received it yet"
LIMITED = "limited"
ORPHANED = "orphaned"
REFUSES = "refuses"
SLOW = "slow: its destination takes messages more slowly than they fall due"


class ForDeadSet(NamedTuple):
    """A message on its way into the dead set, in the words of `lua/quarantine.lua`."""

    stamp: bytes
    id: str
    payload: bytes
    reason: str
    score: str | int | float = ""
    dead_ms: str | int | float = ""
    tried: str = ""
    head: bytes = b""


class Trouble(NamedTuple):
    """A destination (`NAME:`: a whole broker) whose messages do not go out, and the reason.

    The worker parks them, or the destination refuses each one.
    """

    destination: str
    reason: str
    worker: str

    @property
    def is_by_rule(self) -> bool:
        """Whether a rule of the destination is the reason."""
        return first_word(self.reason) == LIMITED

    @property
    def is_refusal(self) -> bool:
        """Whether the destination refuses them; they are tried again."""
        return first_word(self.reason) == REFUSES


class WorkerTroubles(NamedTuple):
    """The part of a worker's announcement about messages that do not go out.

    brokers: name of each broker -> why it is unavailable, None if it is available; None as a whole
    if the worker's version does not announce it. parked: lane -> why its messages are parked.
    paused: the places that it keeps paused; None if its version knows no rules of destinations.
    refused: lane -> why its last messages failed, if none was confirmed since.
    """

    brokers: Mapping[str, str | None] | None = None
    parked: Mapping[str, str] = {}
    paused: tuple[str, ...] | None = None
    refused: Mapping[str, str] = {}

    def why(self, destination: str) -> str:
        """Why a message to this destination is parked, as far as the worker has announced it."""
        name = destination.partition(":")[0]
        if name == PULL:
            return UNRECEIVED
        if self.brokers is not None and name not in self.brokers:
            return f"{LACKING}: its worker has no broker named {name!r}"
        if reason := (self.brokers or {}).get(name):
            return reason
        for label, reason in self.parked.items():
            if destination == label or destination.startswith(f"{label}/"):
                return reason
        return self.parked.get(other_kind(name), SLOW)

    def troubles(self, worker: str) -> list[Trouble]:
        """The same as a list: whole brokers first, then destinations, those that refuse last."""
        brokers = [(f"{name}:", why) for name, why in (self.brokers or {}).items() if why]
        refused = [
            (label, f"{REFUSES}: {why}")
            for label, why in self.refused.items()
            if why and label not in self.parked
        ]
        return [Trouble(*each, worker) for each in [*brokers, *self.parked.items(), *refused]]


def other_kind(broker: str) -> str:
    """The lane of messages whose broker was of another kind when they were scheduled."""
    return f"{broker}: of another kind"


def first_word(reason: str) -> str:
    """The word that reasons are grouped by: `unroutable` for `unroutable: 312 NO_ROUTE`.

    For quarantined messages it includes the code: `ingress:bad_header`.
    """
    found = _WORD.match(reason)
    return found[0] if found else ""
