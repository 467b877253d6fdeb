"""The version after this one: a copy of the package that writes what a later one may write."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.rigs.fleet import ROOT
from tests.rigs.waiting import DEADLINE_S

NEXT = "9.9.0"
NEW_FORMAT = "NEXT_FORMAT"  # set: its namespaces have format 2
_RECORD = 'return f"{layout.here.size}:{birth}"'
# File -> what it says, and what the next version says instead.
CHANGES = {
    "__init__.py": ('__version__ = "', f'__version__ = "{NEXT}"  # was "'),
    "message.py": ("    dead_letter: str |", "    hedge_ms: int = 0\n    dead_letter: str |"),
    "worker/service.py": ('{"host": host,', '{"later": {"a": [1]}, "host": host,'),
    "carry/line.py": ("VERSION = 1\n", "VERSION = 2\n"),
    "operate/views/transfer.py": ("VERSION = 1\n", "VERSION = 2\n"),
    "store/protocol/layout.py": (
        _RECORD, _RECORD.replace('f"', f'("v2:" if "{NEW_FORMAT}" in __import__("os").environ '
                                       'else "") + f"'),
    ),
}  # fmt: skip
READS_BOTH = ('rf"([1-9]', 'rf"(?:v2:)?([1-9]'), ('r"v([1-9]', 'r"v([3-9]')


def put_next_version(folder: Path) -> None:
    """Put the next version there: its `delaybridge` and `lua`."""
    shutil.copytree(ROOT / "lua", folder / "lua")
    ignored = shutil.ignore_patterns("__pycache__", "static", "*.mo")
    shutil.copytree(ROOT / "delaybridge", folder / "delaybridge", ignore=ignored)
    for name, change in CHANGES.items():
        changes = (change, *READS_BOTH) if name.endswith("layout.py") else (change,)
        path = folder / "delaybridge" / name
        text = path.read_text()
        for old, new in changes:
            assert text.count(old) == 1, f"{name}: {old}"
            text = text.replace(old, new)
        path.write_text(text)


def run_next(folder: Path, program: str, **environment: str) -> str:
    """What a program prints that imports the version in this folder."""
    paths = os.pathsep.join([str(folder), str(ROOT)])
    ended = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": paths, **environment},
        cwd=folder, capture_output=True, text=True, timeout=DEADLINE_S, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    return ended.stdout
