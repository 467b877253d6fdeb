"""Which worker deletes rows of the ledger, how old they are, and what a failure is told to."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from delaybridge.errors import LedgerUnavailable
from delaybridge.ledger.reconciling import forgetting
from delaybridge.ledger.reconciling.silence import Silence
from delaybridge.ledger.sql.numbering import Numbering
from delaybridge.scan.leases.session import Session
from delaybridge.store.protocol.verbs import Work
from tests.rigs.bucket_session import new_session

NOW_MS = 1_000_000_000
WEEK_S = 604_800.0


class Ledger:
    """asked: (before_ms, after) of each call for a page; there are rows up to `last`."""

    def __init__(self, last: int = 0, error: Exception | None = None) -> None:
        self.asked: list[tuple[int, int]] = []
        self.removed: list[int] = []
        self._last, self._error = last, error

    async def run_async(self, work: Work[Any]) -> Any:
        if self._error is not None:
            raise self._error
        return work.run(None)  # type: ignore[arg-type]

    def forget_removed(self, _: Any, before_ms: int) -> None:
        self.removed.append(before_ms)

    def forget(self, _: Any, before_ms: int, after: int, limit: int) -> int | None:
        self.asked.append((before_ms, after))
        return after + limit if after < self._last else None


async def a_turn(
    ledger: Ledger, sessions: Sequence[Session], retention_s: float, monkeypatch: Any
) -> Silence:
    """What is done until the next pause."""
    silence, paused = Silence(), asyncio.Event()

    async def store_ms(session: Session) -> int:
        return NOW_MS if session.bucket.number == 0 else 0

    async def pause(_: float) -> None:
        paused.set()
        await asyncio.Event().wait()

    recorder: Any = SimpleNamespace(
        ledger=ledger,
        records=SimpleNamespace(forget=ledger.forget, numbers=Numbering()),
        controls=SimpleNamespace(forget=ledger.forget_removed),
    )
    monkeypatch.setattr(forgetting, "asyncio", SimpleNamespace(sleep=pause))
    work = forgetting.forget(recorder, retention_s, lambda: sessions, store_ms, silence)
    running = asyncio.ensure_future(work)
    await asyncio.wait(
        [running, waiting := asyncio.ensure_future(paused.wait())],
        return_when=asyncio.FIRST_COMPLETED,
    )
    waiting.cancel()
    running.cancel()
    return silence


async def test_the_worker_with_bucket_0_deletes_page_by_page(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ledger, both = Ledger(last=1500), [new_session(3), new_session(0)]
    await a_turn(ledger, both, WEEK_S, monkeypatch)
    before_ms = NOW_MS - 604_800_000
    assert ledger.asked == [(before_ms, -1), (before_ms, 999), (before_ms, 1999)]
    assert ledger.removed == [before_ms], "of rules, too, by the clock of Redis"
    others = Ledger()
    await a_turn(others, [new_session(3)], WEEK_S, monkeypatch)
    assert others.asked == others.removed == []


async def test_all_is_kept_without_a_retention(monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = Ledger()
    await a_turn(ledger, [new_session(0)], 0.0, monkeypatch)
    assert ledger.asked == []


async def test_a_silent_database_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = Ledger(error=LedgerUnavailable("ledger: gone"))
    silence = await a_turn(ledger, [new_session(0)], WEEK_S, monkeypatch)
    assert silence.reason == "ledger: gone"
