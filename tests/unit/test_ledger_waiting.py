"""How many buckets wait for the ledger, and what the log says of them."""

from __future__ import annotations

import logging

import pytest

from delaybridge.errors import LedgerUnavailable
from delaybridge.ledger.reconciling.silence import Silence
from delaybridge.ledger.reconciling.waiting import WaitingBuckets
from tests.rigs.bucket_session import new_session


async def ask() -> None:
    """Nobody wants to know."""


def test_what_waits_is_told_again_only_if_more_do(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    silence = Silence()
    waiting, sessions = WaitingBuckets(ask, silence), [new_session(n) for n in range(5)]

    def told(*, end: int = 0, begin: int = 0) -> list[str]:
        caplog.clear()
        for session in sessions[:begin]:
            waiting.begins(session)
        for session in sessions[:end]:
            waiting.ends(session)
        waiting.tell()
        return [each.getMessage() for each in caplog.records]

    assert told(begin=1) == [], "it may be asked just now"
    silence.begins(LedgerUnavailable("ledger: gone"))
    (first,) = told(begin=1)
    assert "buckets_wait buckets=1 " in first and "ledger: gone" in first
    (more,) = told(begin=5)
    assert "buckets=5" in more
    assert told(end=2) == told(begin=2) == []
    sessions[4].alive = False
    assert len(waiting) == 4
    assert told(end=5) == [] and len(waiting) == 0
    (again,) = told(begin=3)
    assert "buckets=3" in again
