"""What every process does with its store before it works: opens the namespace and checks Redis."""

from __future__ import annotations

import logging

from delaybridge.errors import LedgerUnavailable, StoreUnavailable
from delaybridge.store.calls import Calls
from delaybridge.store.namespace import gate, rights
from delaybridge.store.protocol.command import Work
from delaybridge.store.protocol.recorder import Ledger
from delaybridge.store.redis.store import AsyncStore
from delaybridge.worker.eventlog import say
from delaybridge.worker.service import Service

_AGAIN_S = 1.0


async def open_namespace(store: AsyncStore, calls: Calls, role: str) -> None:
    """Open the namespace, as a `role` of `rights.ROLES`.

    Raises ConfigError if a setting of Redis contradicts `durability`, or the tables of the ledger
    have another version, and StoreDenied if the user lacks rights. What is lacking besides is
    logged: it may pass, and what is stored can be delivered meanwhile.
    """
    if store.recorder is not None:
        await check_ledger(store.recorder.ledger)
    await _open(store, calls, role)


async def _open(store: AsyncStore, calls: Calls, role: str) -> None:
    await store.complete(calls.open())
    await store.complete(rights.check(calls.namespace, role, calls.placement))
    for each in await store.complete(gate.look(calls.durability, calls.placement)):
        say(logging.WARNING, "not_durable", reason=str(each), hint=each.remedy)


async def wait_for_namespace(store: AsyncStore, calls: Calls, role: str, service: Service) -> bool:
    """As `open_namespace`; False: the service was stopped before.

    Redis may have lost the namespace's record while the database is away: only the ledger knows how
    many buckets there are. Then it waits, for the database or for a process that knows it, too.
    """
    try:
        await open_namespace(store, calls, role)
        return True
    except LedgerUnavailable as exc:
        service.awaits = str(exc)
    hint = "redis has no record of the namespace; the ledger knows how it was"
    say(logging.WARNING, "namespace_awaited", reason=service.awaits, hint=hint)
    while not service.stopping.is_set():
        await service.pause(_AGAIN_S)
        try:
            await _open(store, calls, role)
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
