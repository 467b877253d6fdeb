"""The bounds of an exploration: what clients may call, how often each fault happens, until when."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from tests.protocol.owner_verbs import Reach
from tests.protocol.rules import Rules


class Order(NamedTuple):
    """A call that clients may make. targets: of (id, score)."""

    verb: str
    targets: tuple[tuple[int, int], ...]
    policy: str = "fail"


class Faults(NamedTuple):
    """How often each may still happen."""

    crash: int = 0  # of a worker
    pause: int = 0  # the lease of a living owner runs out
    lost: int = 0  # a reply does not arrive; the caller knows
    twice: int = 0  # a request is executed once more, at any later time
    unknown: int = 0  # a publish has an unknown outcome
    refused: int = 0  # a publish fails for certain
    wake: int = 0  # a wake-up does not arrive
    vanish: int = 0  # of a key of the bucket: one that says in which state its messages are
    rollback: int = 0  # a replica that lags takes over: the store returns to an earlier state
    wipe: int = 0  # the store is empty
    erase: int = 0  # all that the keys say of one message is deleted, but its attempts


@dataclass(frozen=True)
class Bounds:
    """One exploration.

    ends: the last tick. lead: a fire may be sent that many ticks before the due time. verbs: which
    may lose a reply or be executed twice; empty: all. once: every message is delivered at most
    once. sleeps: an owner claims only when it has promised to look, or was woken. stale: an owner
    whose lease is lost sends its calls all the same (they change nothing; for replays). pulls: of a
    pull topic, which consumers receive from. windows: for how many ticks owners keep delivered ids;
    each may have any of these. ledger: every message has a row; only for traces: `ledger.py`
    explores it.
    """

    name: str
    orders: tuple[Order, ...]
    calls: int
    ids: int = 1
    workers: int = 1
    ends: int = 3
    reach: Reach = Reach(2, 2)
    lead: int = 0
    faults: Faults = Faults()
    verbs: frozenset[str] = frozenset()
    graceful: bool = False
    buries: bool = False
    parks: bool = False
    once: bool = False
    sleeps: bool = False
    pulls: bool = False
    windows: tuple[int, ...] = (0,)
    ledger: bool = False
    stale: bool = False
    rules: Rules = Rules()

    @property
    def rolls_back(self) -> bool:
        return self.faults.rollback + self.faults.wipe > 0


X, Y = 0, 1


def schedule(id: int, score: int, policy: str = "fail") -> Order:
    return Order("schedule", ((id, score),), policy)


def together(*targets: tuple[int, int], policy: str = "fail") -> Order:
    """Several messages in one call."""
    return Order("schedule", targets, policy)


def touch(id: int, due: int = 0) -> Order:
    """Replace the message that is there by itself; executed once more, it may be another one.

    due: when it was due as it was read; 0: as now.
    """
    return Order("schedule", ((id, due),), "touch")


def debounce(id: int, low: int = 0) -> Order:
    """low: 1 for a low priority."""
    return Order("schedule", ((id, low),), "debounce")


def throttle(id: int, low: int = 0) -> Order:
    return Order("schedule", ((id, low),), "throttle")


def cancel(id: int) -> Order:
    return Order("cancel", ((id, 0),))


def reschedule(id: int, score: int) -> Order:
    return Order("reschedule", ((id, score),))


def kick(id: int) -> Order:
    return Order("kick", ((id, 0),))
