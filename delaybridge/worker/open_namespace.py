"""What every process does with its store before it works: opens the namespace and checks Redis."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from delaybridge.errors import LedgerUnavailable, StoreUnavailable
from delaybridge.store.calls import Calls
from delaybridge.store.namespace import gate
from delaybridge.store.namespace.namespace import refuse_eviction_anywhere
from delaybridge.store.protocol.recorder import Ledger
from delaybridge.store.protocol.verbs import Work
from delaybridge.store.redis.store import AsyncStore
from delaybridge.worker.eventlog import say
from delaybridge.worker.parts import Part
from delaybridge.worker.service import Service

_AGAIN_S = 1.0


async def open_namespace(store: AsyncStore, calls: Calls, parts: Iterable[Part]) -> None:
    """Open the namespace, for a process with these parts.

    Raises ConfigError if a setting of Redis contradicts `durability`, or the tables of the ledger
    have another version, and whatever a part objects to. What is lacking besides is logged: it may
    pass, and what is stored can be delivered meanwhile.
    """
    if store.recorder is not None:
        await check_ledger(store.recorder.ledger)
    await _open(store, calls, parts)


async def _open(store: AsyncStore, calls: Calls, parts: Iterable[Part]) -> None:
    await store.complete(calls.open())
    for part in parts:
        await store.complete(part.check(calls))
    await store.complete(refuse_eviction_anywhere(calls.placement))
    for each in await store.complete(gate.find_shortfalls(calls.durability, calls.placement)):
        say(logging.WARNING, "not_durable", reason=str(each), hint=each.remedy)


async def wait_for_namespace(store: AsyncStore, calls: Calls, service: Service) -> bool:
    """As `open_namespace`; False: the service was stopped before.

    Redis may have lost the namespace's record while the database is away: only the ledger knows how
    many buckets there are. Then it waits, for the database or for a process that knows it, too.
    """
    try:
        await open_namespace(store, calls, service.parts)
        return True
    except LedgerUnavailable as exc:
        service.awaits = str(exc)
    hint = "redis has no record of the namespace; the ledger knows how it was"
    say(logging.WARNING, "namespace_awaited", reason=service.awaits, hint=hint)
    while not service.stopping.is_set():
        await service.pause(_AGAIN_S)
        try:
            await _open(store, calls, service.parts)
        except StoreUnavailable as exc:
            service.awaits = str(exc)
        else:
            service.awaits = ""
            return True
    return False


async def make_again(store: AsyncStore, calls: Calls) -> None:
    """Write the record of a wiped namespace as it was, and read it.

    No ledger is asked, which may be away, too: its birth id is the one that the ledger has.
    """
    await store.run_each(calls.as_known(), redis_only=True)
    await store.complete(calls.open(again=True))


async def check_ledger(ledger: Ledger) -> None:
    """ConfigError if its tables are missing or have another version; its silence is logged."""
    try:
        await ledger.run_async(Work(lambda on: None))
    except LedgerUnavailable as exc:
        say(logging.WARNING, "ledger_silent", reason=str(exc))
