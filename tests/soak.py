"""`make soak-tests N=5`: the fast tier N times, by turns alone and beside a burning neighbour.

The table of all runs is kept in `tests/soak.json`, by a hash of everything else that git tracks: so
it grows over as many sittings as it takes, and a change of anything begins a new one. Exit code 1
if a run of the present state had a red test.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.servers import debian

ROOT = Path(__file__).parents[1]
KEPT = Path(__file__).with_suffix(".json")
BURNING = ("stress-ng", "--cpu", "2", "--timeout", "0")


def main(times: int) -> int:
    """Run the fast tier so often, keep each run, and print the table of the present state."""
    if shutil.which(BURNING[0]) is None:
        debian.install(BURNING[0])
    state = state_of_tree()
    for _ in range(times):
        known = [run for run in kept() if run["state"] == state]
        burns = sum(run["burning"] for run in known) <= len(known) / 2  # half of all runs
        KEPT.write_text(json.dumps([*kept(), run_once(state, burns=burns)], indent=1) + "\n")
    runs = [run for run in kept() if run["state"] == state]
    print_table(runs)
    return int(any(run["reds"] or run["exit"] for run in runs))


def state_of_tree() -> str:
    """A hash of all that git tracks, except the table itself."""
    tracked = subprocess.check_output(["git", "ls-files", "-s"], cwd=ROOT, text=True)
    changed = subprocess.check_output(["git", "diff", "HEAD", "--", ":!tests/soak.json"], cwd=ROOT)
    lines = [line for line in tracked.splitlines() if not line.endswith(f"tests/{KEPT.name}")]
    return hashlib.sha256("\n".join(lines).encode() + changed).hexdigest()[:12]


def kept() -> list[dict[str, Any]]:
    return json.loads(KEPT.read_text()) if KEPT.exists() else []


def run_once(state: str, *, burns: bool) -> dict[str, Any]:
    """One run, in the words of the table."""
    began = time.monotonic()
    at = datetime.now(UTC).isoformat(timespec="seconds")
    with tempfile.TemporaryDirectory() as folder, neighbour(burns=burns):
        results = Path(folder) / "results.xml"
        environment = {**os.environ, "PYTEST_ADDOPTS": f"--junitxml={results}"}
        ended = subprocess.run(["make", "test"], cwd=ROOT, env=environment, check=False)
        cases = list(ET.parse(results).iter("testcase")) if results.exists() else []
    return {
        "state": state,
        "at": at,
        "burning": burns,
        "seconds": round(time.monotonic() - began),
        "exit": ended.returncode,
        "tests": len(cases),
        "skipped": sum(case.find("skipped") is not None for case in cases),
        "repeated": sum(case.find(".//property[@name='repeated']") is not None for case in cases),
        "reds": sorted(name_of(case) for case in cases if is_red(case)),
    }


@contextmanager
def neighbour(*, burns: bool) -> Iterator[None]:
    """Two processes that use every core, if wanted."""
    process = subprocess.Popen(BURNING, stdout=subprocess.DEVNULL) if burns else None
    try:
        yield
    finally:
        if process is not None:
            process.terminate()
            process.wait()


def is_red(case: ET.Element) -> bool:
    return case.find("failure") is not None or case.find("error") is not None


def name_of(case: ET.Element) -> str:
    return f"{case.get('classname')}::{case.get('name')}"


def print_table(runs: list[dict[str, Any]]) -> None:
    """The runs, and below them each test that was ever red."""
    for run in runs:
        beside = "burning" if run["burning"] else "alone"
        print(
            f"{run['at']}  {beside:7}  {run['seconds'] // 60:2}:{run['seconds'] % 60:02} min  "
            f"{run['tests']} tests, {run['skipped']} skipped, {run['repeated']} repeated, "
            f"{len(run['reds'])} red, exit {run['exit']}"
        )
    reds = Counter(red for run in runs for red in run["reds"])
    for name, count in reds.most_common():
        print(f"  red {count} of {len(runs)}: {name}")


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 1))
