"""What every process does with its store before it works: opens the namespace and checks Redis."""

from __future__ import annotations

import logging

from delaybridge.errors import LedgerUnavailable
from delaybridge.ledger import Ledger, Work
from delaybridge.store import gate, rights
from delaybridge.store.calls import Calls
from delaybridge.store.store import AsyncStore
from delaybridge.worker.eventlog import say


async def open_namespace(store: AsyncStore, calls: Calls, role: str) -> None:
    """Open the namespace, as a `role` of `rights.ROLES`.

    Raises ConfigError if a setting of Redis contradicts `durability`, or the tables of the ledger
    have another version, and StoreDenied if the user lacks rights. What is lacking besides is
    logged: it may pass, and what is stored can be delivered meanwhile.
    """
    if store.recorder is not None:
        await check_ledger(store.recorder.ledger)
    await store.complete(calls.open())
    await store.complete(rights.check(calls.namespace, role, calls.placement))
    for each in await store.complete(gate.look(calls.durability, calls.placement)):
        say(logging.WARNING, "not_durable", reason=str(each), hint=each.remedy)


async def check_ledger(ledger: Ledger) -> None:
    """ConfigError if its tables are missing or have another version; its silence is logged."""
    try:
        await ledger.run_async(Work(lambda on: None))
    except LedgerUnavailable as exc:
        say(logging.WARNING, "ledger_silent", reason=str(exc))
