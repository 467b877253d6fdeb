"""Which parts a process has: lists by kind of process, made by name also in a child process."""

from __future__ import annotations

from collections.abc import Sequence

from delaybridge.operate.parts.broadcast import Broadcast
from delaybridge.operate.parts.counting import Counting
from delaybridge.operate.parts.pace import CountedPace
from delaybridge.operate.parts.rights import RightsCheck
from delaybridge.operate.parts.sampler import Sampler
from delaybridge.recurring.rounds import RecurringRuns
from delaybridge.resize.mover import Mover
from delaybridge.settings.settings import Settings
from delaybridge.worker.parts import Part
from delaybridge.worker.service import Identity


def worker_parts(settings: Settings, identity: Identity) -> Sequence[Part]:
    """Those of a worker, in the order in which they begin and beat."""
    counting, recurring = Counting(), RecurringRuns()
    who = settings.namespace, identity.name, identity.instance
    parts: list[Part] = [
        RightsCheck("worker"),
        counting,
        Broadcast(settings.namespace, identity),
        recurring,
        Sampler(*who, counting.counts),
        CountedPace(counting.counts),
        Mover(),
    ]
    if settings.has_ledger:
        from delaybridge.ledger.reconciling.part import WorkerLedger

        parts.append(WorkerLedger(settings, identity, lambda: recurring.agree))
    return parts


def ingest_parts(settings: Settings, identity: Identity) -> Sequence[Part]:
    """Those of an ingest process."""
    role = "front" if settings.ingest.front else "producer"
    return [RightsCheck(role), Counting(), Broadcast(settings.namespace, identity)]


def front_parts(settings: Settings, identity: Identity) -> Sequence[Part]:
    """Those of a front's process."""
    return []
