"""Dialects: a package adds one by an entry point, and `serve.compat` chooses it by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from delaybridge.errors import ConfigError
from delaybridge.serve.server.serving import dialect_endpoints
from delaybridge.settings.settings import Settings

_MODULE = """
from delaybridge.serve.dialects.dialect import Dialect

DIALECT = Dialect(lambda text: {"error": text})

@DIALECT("POST /put", "Store a job", body=bytes)
async def put(call):
    return {"ok": True}
"""
_ENTRY = "[delaybridge.dialects]\nother = other_dialect:DIALECT\n"


def test_another_package_adds_a_dialect(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed = tmp_path / "other_dialect-1.0.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: other-dialect\nVersion: 1.0\n"
    )
    (installed / "entry_points.txt").write_text(_ENTRY)
    (tmp_path / "other_dialect.py").write_text(_MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    (put,) = dialect_endpoints(Settings.load(overrides={"serve": {"compat": "other"}}))
    assert (put.method, put.path, put.is_for_tenants) == ("POST", "/put", True)


def test_a_dialect_that_no_package_has_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"serve\.compat: 'nothing' is not a dialect; known are"):
        dialect_endpoints(Settings.load(overrides={"serve": {"compat": "nothing"}}))


def test_without_a_dialect_there_are_no_further_endpoints() -> None:
    assert dialect_endpoints(Settings()) == ()
