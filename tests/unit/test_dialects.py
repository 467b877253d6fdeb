"""Dialects: a package adds one by an entry point, and `serve.compat` chooses it by name."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest

from delaybridge.errors import ConfigError
from delaybridge.serve.server.serving import dialect_endpoints
from delaybridge.settings.settings import Settings
from tests.rigs.pages import blocks

(MODULE,) = blocks("docs/http.md", title="A dialect of your own")
ENTRY = "[delaybridge.dialects]\nother = other_dialect:DIALECT\n"


def test_another_package_adds_the_dialect_of_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = tmp_path / "other_dialect-1.0.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: other-dialect\nVersion: 1.0\n"
    )
    (installed / "entry_points.txt").write_text(ENTRY)
    (tmp_path / "other_dialect.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    put, delete = dialect_endpoints(Settings.load(overrides={"serve": {"compat": "other"}}))
    assert (put.method, put.path, put.is_for_tenants) == ("POST", "/put", True)
    assert (delete.method, delete.path) == ("POST", "/delete")


def test_the_dialect_of_the_page_schedules_and_cancels() -> None:
    space: dict[str, Any] = {}
    exec(MODULE, space)
    client, cancel = Mock(schedule=AsyncMock(return_value=Mock(id="7"))), AsyncMock()
    job = Mock(body=b'{"topic": "a", "body": "b", "delay": "1s"}', client=client)
    assert asyncio.run(space["put"](job)) == {"ok": True, "id": "7"}
    client.schedule.assert_awaited_once_with("pull:a", "b", delay="1s")
    job = Mock(body=b'{"id": "7"}', verb=Mock(return_value=cancel))
    assert asyncio.run(space["delete"](job)) == {"ok": True}
    cancel.assert_awaited_once_with("7")


def test_a_dialect_that_no_package_has_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"serve\.compat: 'nothing' is not a dialect; known are"):
        dialect_endpoints(Settings.load(overrides={"serve": {"compat": "nothing"}}))


def test_without_a_dialect_there_are_no_further_endpoints() -> None:
    assert dialect_endpoints(Settings()) == ()
