"""A ledger answers again once nothing has been refused for a while."""

from __future__ import annotations

import logging
import time

import pytest

from delaybridge.errors import LedgerUnavailable, StoreUnavailable
from delaybridge.ledger.reconciling.silence import Silence


def test_it_ends_when_nothing_was_refused_since(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    silence = Silence()
    silence.begins(StoreUnavailable("of Redis"))
    assert silence.reason == ""
    silence.begins(LedgerUnavailable("full"))
    now_s = time.monotonic()
    for since_s in (now_s - 10, now_s):
        silence.ends(since_s)
        assert silence.reason == "full"
    silence.begins(LedgerUnavailable("still full"))
    silence.ends(time.monotonic() + 1)
    assert silence.reason == ""
    assert caplog.text.count("ledger_silent") == caplog.text.count("ledger_answers") == 1
