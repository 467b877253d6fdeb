"""A recorder is looked up when a durability asks for one, and named if it is missing."""

from __future__ import annotations

import sys

import pytest

from delaybridge.errors import ConfigError
from delaybridge.settings.durability import check_durability
from delaybridge.store.protocol.recorder import ledger_of, open_recorder

ASKED = "sqlite://", "n", 1.0, 3600.0
WITH_LEDGER = check_durability("ledger")


@pytest.mark.parametrize("text", ["memory", "aof", "aof-fsync", "replicated:2"])
def test_no_other_durability_asks_for_one(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "delaybridge.ledger.recording.recorder", None)
    assert open_recorder(check_durability(text), *ASKED) is None


def test_the_package_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "delaybridge.ledger.recording.recorder", None)
    with pytest.raises(ConfigError, match=r"needs delaybridge\.ledger, which is not installed"):
        open_recorder(WITH_LEDGER, *ASKED)


def test_work_without_a_recorder_is_refused() -> None:
    with pytest.raises(ConfigError, match="not configured"):
        ledger_of(None)
