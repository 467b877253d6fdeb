"""The documentation's site, built as `make site` builds it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.rigs.fleet import ROOT
from tests.rigs.waiting import DEADLINE_S


def build(folder: Path) -> subprocess.CompletedProcess[str]:
    """Build it into a folder. A broken link is a warning, and each warning ends it with 1."""
    return subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
