"""The bucket's content, as the model has it, and the changes common to several verbs.

A message is a small number. Time is in ticks. A score is twice the due tick, plus 1 for a low
priority: the fraction of a millisecond that orders messages due together.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeVar

from delaybridge.message import Answer
from tests.protocol.rules import Rules

T = TypeVar("T")
Token = tuple[int, int]  # random part, turn
NEVER = 10**9  # ticks
QUIET, LONGEST, EVERY = 1, 2, 2  # ticks: of every debounce, of every throttle
GATHERS = ("debounce", "throttle")  # policies
BEGUN = "begun"  # in `calls`: a gathered message was created


class Record(NamedTuple):
    """What `messages` holds: the score that a message has, or was claimed with, and its stamp.

    until: the tick until which it may be postponed; 0: it is throttled; -1: it is not gathered.
    """

    score: int
    stamp: int
    until: int = -1


class Revocation(NamedTuple):
    """turn: what the store keeps. score: of the copy, for mutants that match by it."""

    turn: int
    score: int


class Gone(NamedTuple):
    """A message that left, as `gone` has it. published: else it was withdrawn."""

    id: int
    stamp: int
    generation: int
    published: bool


class Content(NamedTuple):
    """Everything in a bucket. Tuples without a comment have one entry for each id; None: no entry.

    reasons: why it is dead is known. attempts: whether an earlier publish may have arrived, and how
    many failed. receipts: of their last delivery to a consumer. calls: of (stamp, id, answer).
    notes: of (claim, id): settled at most once. ready: of (score, id), also of messages that have
    gone elsewhere since. delivered: until which tick an id counts as delivered. window: for how
    many ticks the owner keeps that; 0: it does not. generation: of `gone`; 0: there is no ledger.
    healed: the comparison that began or ended last. spans: of throttles, until which tick.
    """

    messages: tuple[Record | None, ...]
    due: tuple[int | None, ...]
    mirror: tuple[int | None, ...]
    parked: tuple[int | None, ...]
    dead: tuple[bool, ...]
    reasons: tuple[bool, ...]
    attempts: tuple[tuple[bool, int] | None, ...]
    revoked: tuple[Revocation | None, ...]
    receipts: tuple[int | None, ...]
    delivered: tuple[int | None, ...]
    calls: tuple[tuple[int, int, Answer | str], ...] = ()
    notes: tuple[tuple[int, int], ...] = ()
    ready: tuple[tuple[int, int], ...] = ()
    lease: Token | None = None
    turn: int = 0
    claimed: int = 0
    fired_score: int = -1
    fired_claim: int = -1
    look: int = 0
    window: int = 0
    generation: int = 0
    healed: int = 0
    gone: tuple[Gone, ...] = ()
    spans: tuple[int | None, ...] = ()


class Effect(NamedTuple):
    """A change that somebody outside may notice."""

    kind: str  # accepted | undone | moved | kicked | in_flight | reclaimed | ended
    # given | finished | extended | released | taken | pending | known | mended | restored | dropped
    id: int
    stamp: int
    claim: int = 0  # in the mirror
    score: int = 0  # the new one; of what is replaced the old one
    flag: bool = False  # may have been delivered | fired | answered `duplicate`


def empty(ids: int) -> Content:
    none = (None,) * ids
    no = (False,) * ids
    return Content(none, none, none, none, no, no, none, none, none, none, spans=none)


def is_orphan(content: Content | Bucket, i: int) -> bool:
    """Whether a message is in no set."""
    places = (content.due[i], content.mirror[i], content.parked[i])
    return content.messages[i] is not None and places == (None,) * 3 and not content.dead[i]


def put(values: tuple[T, ...], i: int, value: T) -> tuple[T, ...]:
    return values[:i] + (value,) + values[i + 1 :]


class Bucket:
    """A bucket that changes. effects, woken: of the last call; woken: the score that it was for."""

    __slots__ = (*Content._fields, "rules", "effects", "woken")

    def __init__(self, content: Content, rules: Rules) -> None:
        (self.messages, self.due, self.mirror, self.parked, self.dead, self.reasons, self.attempts,
         self.revoked, self.receipts, self.delivered, self.calls, self.notes, self.ready,
         self.lease, self.turn, self.claimed, self.fired_score, self.fired_claim, self.look,
         self.window, self.generation, self.healed, self.gone, self.spans) = content  # fmt: skip
        self.rules = rules
        self.effects: list[Effect] = []
        self.woken: int | None = None

    @property
    def content(self) -> Content:
        return Content(
            self.messages, self.due, self.mirror, self.parked, self.dead, self.reasons,
            self.attempts, self.revoked, self.receipts, self.delivered, self.calls, self.notes,
            self.ready, self.lease, self.turn, self.claimed, self.fired_score, self.fired_claim,
            self.look, self.window, self.generation, self.healed, self.gone, self.spans,
        )  # fmt: skip

    def set(self, name: str, i: int, value: Any) -> None:
        setattr(self, name, put(getattr(self, name), i, value))

    def record(self, i: int) -> Record:
        record = self.messages[i]
        assert record is not None
        return record

    def holds(self, token: Token) -> bool:
        if self.rules.new_token or self.lease is None:
            return self.lease == token
        return self.lease[0] == token[0]

    def is_fired(self, i: int) -> bool:
        """Whether a message counts as handed to the broker."""
        claim = self.mirror[i]
        if claim is None or self.record(i).score > self.fired_score:
            return False
        return claim <= self.fired_claim or not self.rules.fired_pair

    def is_orphan(self, i: int) -> bool:
        """Whether a message is in no set: a key has vanished."""
        return is_orphan(self, i)

    def maybe(self, i: int) -> bool:
        tried = self.attempts[i]
        return (tried is not None and tried[0]) or self._may_be_fired(i)

    def _may_be_fired(self, i: int) -> bool:
        """Of a message in no set nobody knows whether it was in the mirror."""
        may_be = self.rules.maybe_fired and self.is_orphan(i)
        return may_be and self.record(i).score <= self.fired_score

    def note_maybe(self, i: int) -> None:
        """Remember what `maybe` says now."""
        if self.maybe(i):
            _, failures = self.attempts[i] or (False, 0)
            self.set("attempts", i, (True, failures))

    def count_attempt(self, i: int, maybe: bool) -> None:
        before, failures = self.attempts[i] or (False, 0)
        self.set("attempts", i, (before or maybe, failures + 1))
        self.set("receipts", i, None)

    def next_turn(self) -> int:
        self.turn += 1
        return self.turn

    def next_score(self) -> int | None:
        return min((score for score in self.due if score is not None), default=None)

    def move(self, i: int, score: int) -> None:
        """Into `due`, with another score."""
        self.set("messages", i, self.record(i)._replace(score=score))
        self.set("due", i, score)

    def revoke(self, i: int) -> None:
        """Take a message out of the set that it is in; a copy on a wheel is revoked."""
        if self.mirror[i] is not None or (self.rules.revokes_orphans and self.is_orphan(i)):
            self.set("revoked", i, Revocation(self.next_turn(), self.record(i).score))
            self.set("mirror", i, None)
        self.set("due", i, None)
        self.set("parked", i, None)
        self.set("dead", i, False)
        self.set("reasons", i, False)

    def remove(self, i: int) -> None:
        """A message that is in no set any more."""
        for name in ("messages", "attempts", "receipts"):
            self.set(name, i, None)

    def leave(self, i: int, *, published: bool, stamp: int | None = None) -> None:
        """Keep a message that goes for the ledger. stamp: of one that is not here."""
        stamp = self.record(i).stamp if stamp is None else stamp
        if self.generation:
            kept = [each for each in self.gone if each[:2] != (i, stamp)]
            self.gone = tuple(sorted([*kept, Gone(i, stamp, self.generation, published)]))

    def deliver(self, i: int, now: int) -> None:
        """Note that a message of this id was delivered; what has expired is forgotten."""
        if self.window and self.rules.notes_delivered:
            before = self.delivered[i] if self.rules.keeps_longer else None
            self.set("delivered", i, max(before or 0, now + self.window))
            self.forget_expired(now)

    def forget_expired(self, now: int) -> None:
        """What is over of delivered ids, and of spans."""
        for name in ("delivered", "spans"):
            entries = (u if u is not None and u > now else None for u in getattr(self, name))
            setattr(self, name, tuple(entries))

    def was_delivered(self, i: int, now: int) -> bool:
        until = self.delivered[i]
        return self.window > 0 and until is not None and (until > now or not self.rules.expires)

    def remember(self, stamp: int, i: int, answer: Answer | str) -> None:
        kept = [call for call in self.calls if call[:2] != (stamp, i)]
        self.calls = tuple(sorted([*kept, (stamp, i, answer)]))

    def past(self, stamp: int, i: int) -> Any:
        """The answer of a call that took effect, if it is sent again.

        What met a message in flight is forgotten: that may be gone.
        """
        if self.rules.stamps:
            for call in self.calls:
                if call[0] == stamp and call[1] == i:
                    if call[2] is not Answer.IN_FLIGHT:
                        return call[2]
                    self.calls = tuple(each for each in self.calls if each != call)
        return None

    def has_ended(self, stamp: int, i: int) -> bool:
        """Whether a call's message left, or was refused; one that replaced another was stored, and
        so was a gathered one."""
        answers = [call[2] for call in self.calls if call[:2] == (stamp, i)]
        return any(each[:2] == (i, stamp) for each in self.gone) or any(
            answer not in (Answer.REPLACED, Answer.KEPT, BEGUN) for answer in answers
        )

    def wake(self, score: int, head: int | None) -> None:
        """Wake an idle owner for a new head. head: the earliest score before."""
        is_head = head is None or score < head
        if is_head and score < 2 * self.look and self.rules.wakes:
            self.woken = score
