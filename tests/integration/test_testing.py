"""`delaybridge.testing` as its users have it: the page, the fixture, drop-ins, time."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from delaybridge import Client, ConfigError, MessageError, Settings
from delaybridge.testing import Bridge
from tests.rigs.lean_python import ROOT
from tests.rigs.pages import blocks

PYTEST = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "error"]


@pytest.fixture
def bridge() -> Iterator[Bridge]:
    with Bridge(now="2030-01-01T00:00:00Z") as made:
        yield made


def run_pytest(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    plugin = ["-p", "delaybridge.pytest_plugin"]
    alone = {"PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    return subprocess.run(
        [*PYTEST, *plugin, *arguments],
        cwd=folder, env={**os.environ, **alone}, capture_output=True, text=True,
    )


def test_the_programs_of_the_page_pass_as_tests(tmp_path: Path) -> None:
    programs = blocks("docs/testing.md")
    for number, program in enumerate(programs):
        (tmp_path / f"test_block_{number}.py").write_text(program)
    ran = run_pytest(tmp_path)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert len(programs) >= 6


def test_the_plugin_imports_nothing_until_a_bridge_is_asked_for(tmp_path: Path) -> None:
    (tmp_path / "test_x.py").write_text(
        "import sys\n"
        "def test_none(): assert not {'redis', 'fakeredis', 'msgspec'} & sys.modules.keys()\n"
        "def test_lacking(monkeypatch, request):\n"
        "    monkeypatch.setitem(sys.modules, 'fakeredis', None)\n"
        "    request.getfixturevalue('bridge')\n"
    )
    ran = run_pytest(tmp_path)
    assert "1 passed, 1 error" in ran.stdout or "1 failed, 1 passed" in ran.stdout, ran.stdout
    assert 'pip install "delaybridge[testing]"' in ran.stdout
