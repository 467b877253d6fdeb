"""What the ledger's model knows in one state."""

from __future__ import annotations

from typing import NamedTuple

Stamp = int
LIVE, PUBLISHED, CANCELLED = "live", "published", "cancelled"


class Store(NamedTuple):
    """The bucket. has: the stamp of the message, if it is there. gone: (stamp, generation)."""

    has: Stamp | None = None
    gone: frozenset[tuple[Stamp, int]] = frozenset()
    undone: frozenset[Stamp] = frozenset()  # cancelled calls, as `calls` has them
    generation: int = 0
    healed: int = -1  # the run under which it was compared, and which comparison; -1: never


class Doing(NamedTuple):
    """What somebody is in the middle of. at: its next step; the rest: what it knows."""

    at: str
    generation: int = 0
    healed: int = -1
    rows: tuple[Stamp, ...] = ()
    run: int = -1  # of the server, when its owner began


class LedgerState(NamedTuple):
    """Everything. run: of the server. session: that under which its owner may publish, or -1.

    known: the last generation that the owner knows the ledger to have. answered: to both clients.
    delivered: how often; forgot: Redis went back, so a message may come twice, unless a worker that
    delivered it remembers. holder: of two workers the one that has the bucket, or had it last.
    memories: who remembers a delivery, and has not told it. is_lost: one who did has ended.
    was_silent: the ledger did not answer, so who rebuilds a bucket waits for the others. is_early:
    one rebuilt it, had no reason to wait, and another had something to tell.
    """

    store: Store = Store()
    snapshot: Store | None = None
    run: int = 0
    row: str = ""
    scheduling: Doing | None = Doing("row")
    cancelling: Doing | None = Doing("redis")
    owner: Doing | None = None
    session: int = -1
    known: int = -1
    restoring: Doing | None = None
    answered: frozenset[str] = frozenset()
    delivered: int = 0
    forgot: bool = False
    faults: int = 0
    restores: int = 0
    seals: int = 0
    comparisons: int = 0
    violated: str = ""
    was_answered: bool = False  # the schedule, when the message was delivered first
    holder: int = 0
    moves: int = 0
    memories: frozenset[int] = frozenset()
    is_lost: bool = False
    is_early: bool = False
    silent: bool = False
    was_silent: bool = False
    silences: int = 0


changed, with_store, doing_with = LedgerState._replace, Store._replace, Doing._replace
STAMP = 1
COMPARISONS = 100  # more than there are
Step = tuple[str, LedgerState]
