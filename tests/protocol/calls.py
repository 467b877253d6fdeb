"""The calls that a bucket gets. The same value is executed by the model and sent to Redis."""

from __future__ import annotations

from typing import NamedTuple

from tests.protocol.bucket import Token


class Copy(NamedTuple):
    """A claimed message on an owner's wheel.

    generation: how often it had been rescheduled, which only the witness knows. allowed: whether
    the store really allowed its publish.
    """

    id: int
    claim: int
    score: int
    stamp: int
    generation: int = 0
    allowed: bool = False


class Lacking(NamedTuple):
    """A live row, as a restore has it. brought: with its payload; else it is looked for."""

    id: int
    stamp: int
    score: int
    brought: bool
    is_dead: bool


class Reading(NamedTuple):
    """What somebody read of a bucket, and then of the ledger."""

    generation: int
    healed: int
    rows: tuple[Lacking, ...]


class OwnerCall(NamedTuple):
    """A verb of an owner. seen: a turn, or what a mutant acknowledges. maybe: of retry, bury.

    window: of acquire. known, healed: of seal. ended: of drop, (id, stamp).
    """

    verb: str
    token: Token
    have: int = 0
    score: int = 0
    seen: object = 0
    copies: tuple[Copy, ...] = ()
    delay: int | None = None
    maybe: bool = False
    window: int = 0
    known: int | None = None
    healed: int = 0
    ended: tuple[tuple[int, int], ...] = ()


class Target(NamedTuple):
    """What a client's call does to one message."""

    id: int
    score: int
    stamp: int


class ClientCall(NamedTuple):
    """A verb of a client, or of a consumer.

    policy: for schedule; of tally: which set. receipt, ttr: of consumers; a target's score is then
    a delay. has_row: the messages have rows in the ledger. row: of a cancel, the stamp of a row;
    -1: it only answers with the stamp of what it removed. reading: of restore. only: of a replace,
    the stamp of the one message that it may replace.
    """

    verb: str
    targets: tuple[Target, ...]
    policy: str = "fail"
    receipt: int = -1
    ttr: int = 0
    has_row: bool = False
    row: int | None = None
    reading: Reading | None = None
    only: int | None = None


Call = OwnerCall | ClientCall
