"""Leaving: what left the buckets becomes over in the ledger, with its history."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from delaybridge.errors import LedgerRefused
from delaybridge.ledger.comparing.healing import Left
from delaybridge.ledger.sql.rows import DELAYED, IN_FLIGHT, OVER, PUBLISHED, RowName, Step
from delaybridge.store.protocol.recorder import Ledger
from delaybridge.store.protocol.verbs import Work

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from delaybridge.ledger.sql.records import Records

_MOST = 5000  # messages in one transaction, and a page more


class LeftPage(NamedTuple):
    """What left a bucket. at_ms: when, if this worker knows it.

    may_be_told: the ledger may know some of it, from a call without an answer.
    """

    bucket: int
    found: Sequence[Left]
    at_ms: Mapping[RowName, int]
    may_be_told: bool


class Leaving:
    """Tells the ledger. Pages that wait at a time are written in one transaction."""

    def __init__(self, ledger: Ledger, records: Records, worker: str) -> None:
        self._ledger, self._write_left = ledger, partial(write_left, records, worker)
        self._pages: list[LeftPage] = []
        self._writing: asyncio.Task[None] | None = None  # of these pages, if it has not begun
        self._turns = asyncio.Lock()

    async def tell(self, page: LeftPage) -> None:
        """Return when the ledger has it. Raises what the ledger raises."""
        if self._writing is None or sum(len(each.found) for each in self._pages) >= _MOST:
            self._pages = []
            self._writing = asyncio.create_task(self._write(self._pages))
        self._pages.append(page)
        try:
            await asyncio.shield(self._writing)
        except LedgerRefused:  # one that is refused holds up no other
            await self._ledger.run_async(Work(partial(self._write_left, [page])))

    async def _write(self, pages: list[LeftPage]) -> None:
        async with self._turns:
            if pages is self._pages:
                self._writing = None
            await self._ledger.run_async(Work(partial(self._write_left, pages)))


def write_left(records: Records, worker: str, pages: Sequence[LeftPage], on: Connection) -> None:
    """Write down what left, but for what is known to be told."""
    now_ms = time.time_ns() // 1_000_000
    left: dict[RowName, tuple[str, int]] = {}
    doubted: list[RowName] = []
    for bucket, found, at_ms, may_be_told in pages:
        for each in found:
            name = bucket, each.id, int.from_bytes(each.stamp, "big")
            left[name] = each.state, at_ms.get(name, now_ms)
            if may_be_told:
                doubted.append(name)
    known = records.states(on, doubted) if doubted else {}
    by_state = defaultdict[str, list[RowName]](list)
    steps = []
    for name, (state, ms) in left.items():
        if name not in known or known[name][0] not in OVER:
            by_state[state].append(name)
            before = IN_FLIGHT if state == PUBLISHED else DELAYED
            steps.append(Step(name[1], before, state, ms, worker, name[0]))
    for state, own in by_state.items():
        records.change(on, own, state, now_ms)
    records.note(on, steps)
