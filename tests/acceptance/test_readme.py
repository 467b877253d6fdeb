"""Pastes each block of the README into a shell of its own, in one folder, as a new user does.

Only the addresses of the servers and the names of exchange, queue and namespace differ.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.rigs.bridge import ROOT
from tests.rigs.pages import blocks
from tests.rigs.terminals import NewUser
from tests.rigs.waiting import until


@pytest.fixture
def user(tmp_path: Path, redis_url: str, rabbitmq_url: str) -> Iterator[NewUser]:
    """A new user, whose processes end with the test."""
    user = NewUser(tmp_path, redis_url, rabbitmq_url)
    try:
        yield user
    finally:
        user.close()


def test_each_block_of_the_readme_runs_when_it_is_pasted_alone(user: NewUser) -> None:
    demo, worker, consumer, client = map(user.here, blocks("README.md", "sh"))
    assert (ROOT / "README.md").read_text().count("```") == 2 * 4
    assert demo == "pip install 'delaybridge[demo]' && delaybridge demo\n"  # run by its own tests
    user.start("worker", worker, "sh")
    until((user.folder / "delaybridge.toml").exists, "the settings are written")
    listed = user.here("delaybridge worker ls --json")
    until(lambda: user.run(listed, "sh") not in ("", "[]\n"), "the worker runs", interval_s=0.2)
    for command in commands():  # before any message: none may need what another one leaves
        user.run(user.here(command), "sh")
    user.start("consumer", consumer, "sh")
    began_s = time.time()
    assert user.run(client, "sh") == "created\nrescheduled\ncancelled\n"
    # A message that is due before its queue exists is tried again.
    user.wait_printed("consumer", "order 42 is due")
    assert "warning" not in user.printed("worker")
    assert time.time() >= began_s + 3


def commands() -> list[str]:
    """The commands in the README's text that change something."""
    text = (ROOT / "README.md").read_text()
    found = re.findall(r"`(delaybridge (?:schedule|destination|recurring) [^`]*)`", text)
    assert len(found) == 3
    return found
