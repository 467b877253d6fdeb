"""What left several buckets is told to the ledger in few transactions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from delaybridge.errors import LedgerRefused, LedgerUnavailable
from delaybridge.ledger.comparing.healing import Left
from delaybridge.ledger.reconciling import leaving
from delaybridge.ledger.reconciling.leaving import Leaving, LeftPage
from delaybridge.ledger.sql.rows import PUBLISHED
from delaybridge.store.protocol.verbs import Work


def page(bucket: int, count: int = 1) -> LeftPage:
    return LeftPage(
        bucket, [Left(f"m{n}", b"\0\0\0\1", PUBLISHED) for n in range(count)], {}, False
    )


class Written:
    """A ledger that notes the buckets of each transaction. error: raised for such buckets."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(leaving, "write_left", self._write_left)
        self.transactions: list[list[int]] = []
        self.error: Callable[[Sequence[int]], Exception | None] = lambda _: None
        records: Any = None
        ledger: Any = self
        self.leaving = Leaving(ledger, records, "w")

    def _write_left(self, *arguments: Any) -> None:
        _, _, pages, _ = arguments
        self.transactions.append([each.bucket for each in pages])
        if (error := self.error(self.transactions[-1])) is not None:
            raise error

    async def run_async(self, work: Work[Any]) -> None:
        await asyncio.sleep(0)
        work.run(None)

    async def told(self, *pages: LeftPage) -> list[Any]:
        """How each of them ends."""
        return await asyncio.gather(*map(self.leaving.tell, pages), return_exceptions=True)


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> Written:
    return Written(monkeypatch)


async def test_what_waits_at_a_time_is_one_transaction_of_bounded_size(
    written: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leaving, "_MOST", 10)
    assert await written.told(*(page(n, 4) for n in range(7))) == [None] * 7
    assert written.transactions == [[0, 1, 2], [3, 4, 5], [6]]
    assert await written.told(page(8)) == [None]
    assert written.transactions[3:] == [[8]]


async def test_a_bucket_that_the_ledger_refuses_holds_up_no_other(written: Written) -> None:
    written.error = lambda buckets: LedgerRefused("no text") if 1 in buckets else None
    first, refused, last = await written.told(page(0), page(1), page(2))
    assert (first, last) == (None, None) and isinstance(refused, LedgerRefused)
    assert written.transactions == [[0, 1, 2], [0], [1], [2]]
    assert isinstance(*await written.told(page(1)), LedgerRefused)


async def test_who_waits_for_a_ledger_that_does_not_answer_hears_of_it_and_others_go_on(
    written: Written,
) -> None:
    written.error = lambda _: LedgerUnavailable("ledger: gone")
    found = await written.told(page(0), page(1))
    assert {type(each) for each in found} == {LedgerUnavailable}
    assert written.transactions == [[0, 1]]
    written.error = lambda _: None
    gone, stays = (asyncio.create_task(written.leaving.tell(page(n))) for n in (2, 3))
    await asyncio.sleep(0)
    gone.cancel()
    await stays
    assert gone.cancelled() or gone.cancelling()
    assert written.transactions[1:] == [[2, 3]]
