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


class OwnerCall(NamedTuple):
    """A verb of an owner. seen: a turn, or what a mutant acknowledges. maybe: of retry, bury."""

    verb: str
    token: Token
    have: int = 0
    score: int = 0
    seen: object = 0
    copies: tuple[Copy, ...] = ()
    delay: int | None = None
    maybe: bool = False


class Target(NamedTuple):
    """What a client's call does to one message."""

    id: int
    score: int
    stamp: int


class ClientCall(NamedTuple):
    """A verb of a client, or of a consumer.

    policy: for schedule. receipt, ttr: of consumers; a target's score is then a delay.
    """

    verb: str
    targets: tuple[Target, ...]
    policy: str = "fail"
    receipt: int = -1
    ttr: int = 0


Call = OwnerCall | ClientCall
