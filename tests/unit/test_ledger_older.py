"""What a ledger with an older past has alone is ended once, however many tasks ask."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from delaybridge.ledger.comparing import older_ledger
from delaybridge.ledger.comparing.older_ledger import LedgerPast
from delaybridge.ledger.reconciling.older_ledger import OlderLedger

BACK_MS, NOW_MS = 1_000_000, 2_000_000


class LostSome:
    """A store and a ledger: the ledger has lost what it was told until BACK_MS."""

    def __init__(self) -> None:
        self.ended: list[int] = []
        self.noted: dict[int, int] = {}

    async def run(self, commands: Any) -> Any:
        bucket = int(commands[0].args[3])
        return LedgerPast(back_ms=BACK_MS, ended_ms=self.noted.get(bucket, 0)), NOW_MS * 1000

    async def run_one(self, command: Any) -> Any:
        if command.name == "HSET":
            self.noted[command.args[1]] = command.args[2]
        return LedgerPast(back_ms=BACK_MS)

    async def run_async(self, _: object) -> int:
        return NOW_MS

    async def complete(self, bucket: int) -> int:
        await asyncio.sleep(0)
        self.ended.append(bucket)
        return 1


async def test_the_promoter_and_the_reconciler_do_not_both_end_the_rows_of_a_bucket(
    monkeypatch: Any,
) -> None:
    """What Redis lost since the first did would be ended, too, instead of restored."""
    monkeypatch.setattr(older_ledger, "end_rows", lambda bucket, *_: bucket.number)
    lost: Any = LostSome()
    records = SimpleNamespace(namespace="n", note_told=print)
    recorder: Any = SimpleNamespace(ledger=lost, records=records, cold=None)
    older = OlderLedger(lost, recorder, "w")
    older._is_settled = True
    sessions: list[Any] = [
        SimpleNamespace(bucket=SimpleNamespace(number=n, key=lambda name: name)) for n in (1, 2, 1)
    ]
    assert all(await asyncio.gather(*map(older.may_restore, sessions)))
    assert sorted(lost.ended) == [1, 2]
