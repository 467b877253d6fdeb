"""What a worker tells the ledger of several buckets, and tells others about them."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest

from delaybridge.errors import StoreError, StoreUnavailable
from delaybridge.ledger.comparing.agreement import Compared
from delaybridge.ledger.reconciling.happened import Happened
from delaybridge.ledger.reconciling.reconciling import Drift, Reconciling
from delaybridge.ledger.sql.numbering import Numbering
from delaybridge.scan.leases.session import Session
from tests.rigs.bucket_session import new_session


class Side:
    """A worker that holds three buckets. errors: of Redis, by bucket. told: the buckets told of."""

    def __init__(self) -> None:
        self.sessions = [new_session(n) for n in range(3)]
        for session in self.sessions:
            session.reclaimed()
        self.errors: dict[int, Exception] = {}
        self.told: list[int] = []
        nothing: Any = SimpleNamespace(namespace="ns", numbers=Numbering())
        recorder: Any = SimpleNamespace(
            records=nothing, cold=nothing, ledger=nothing, hot_window_ms=0
        )
        self.reconciling = Reconciling(nothing, recorder, Happened("w"))
        self.reconciling.sessions = lambda: self.sessions
        older: Any = SimpleNamespace(notice_loss=self._look, note_told=self._look)
        self.reconciling._older = older
        self.reconciling._tell = self._tell  # type: ignore[method-assign]

    async def _look(self) -> bool:
        return False

    async def _tell(self, session: Session) -> None:
        if (error := self.errors.get(session.bucket.number)) is not None:
            raise error
        self.told.append(session.bucket.number)


async def test_a_bucket_that_redis_refuses_holds_up_no_other(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    side = Side()
    side.errors[0] = StoreError("WRONGTYPE")
    for _ in range(2):
        await side.reconciling._tell_all()
    assert side.told == [1, 2] * 2
    assert caplog.text.count("bucket_not_told bucket=0 ") == 1
    del side.errors[0]
    await side.reconciling._tell_all()
    assert side.told[4:] == [0, 1, 2]
    side.errors[0] = StoreError("WRONGTYPE")
    await side.reconciling._tell_all()
    assert caplog.text.count("bucket_not_told bucket=0 ") == 2
    side.errors[0] = StoreUnavailable("redis: no answer")
    with pytest.raises(StoreUnavailable):  # it would take the time of each
        await side.reconciling._tell_all()


def test_of_buckets_that_another_holds_nothing_is_told() -> None:
    side = Side()
    for n in range(3):
        side.reconciling.drift[n] = Drift(1, Compared(without_row=2))
    side.sessions[0].alive = False
    del side.sessions[1]
    side.reconciling._forget_sessions()
    assert {*side.reconciling.drift} == {2}
    assert side.reconciling.announced()["without_row"] == 2
