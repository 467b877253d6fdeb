"""Failpoints: what is set is done once, at the place and the time that were named."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from delaybridge import failpoints

PACKAGE = Path(failpoints.__file__).parent
PROGRAM = """
from delaybridge import failpoints
for turn in range(3):
    failpoints.reach("claim.after")
    print(turn, flush=True)
"""


def run(text: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", PROGRAM]
    environment = {failpoints.VARIABLE: text}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_a_process_ends_the_second_time_that_it_is_at_the_place() -> None:
    ended = run("claim.after=exit:2;fire.after=exit")
    assert (ended.returncode, ended.stdout) == (failpoints.EXIT_CODE, "0\n")


def test_a_process_blocks_once() -> None:
    assert run("claim.after=sleep:1").stdout == "0\n1\n2\n"


@pytest.mark.parametrize("text", ["claim.after", "no.place=exit", "claim.after=fly"])
def test_what_is_not_understood_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="claim|place"):
        failpoints.read(text)


def test_every_place_is_in_the_code_once() -> None:
    sources = "".join(path.read_text() for path in PACKAGE.rglob("*.py"))
    places = re.findall(r"failpoints\.reach\(\"(.*)\"\)", sources)
    assert sorted(places) == sorted(failpoints.NAMES)
