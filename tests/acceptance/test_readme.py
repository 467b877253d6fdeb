"""Pastes each block of the README into a shell of its own, in one folder, as a new user does.

Only the addresses of the servers and the names of exchange, queue and namespace differ.
"""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.rigs.bridge import ROOT
from tests.rigs.crew import PATIENT_PROCESS
from tests.rigs.pages import blocks
from tests.rigs.terminals import Terminals
from tests.rigs.waiting import until

PATIENT = [
    f"{name.removeprefix('DELAYBRIDGE_').lower().replace('__', '.')} = {value}\n"
    for name, value in PATIENT_PROCESS.items()
]


class NewUser(Terminals):
    """Knows the README, and has no variable of delaybridge."""

    def __init__(self, folder: Path, redis_url: str, rabbitmq_url: str) -> None:
        super().__init__(folder, {})
        self.name = f"t-{uuid.uuid4().hex[:12]}"
        self._redis_url, self._rabbitmq_url = redis_url, rabbitmq_url

    def here(self, text: str) -> str:
        """What the README says, for the servers of this test."""
        rest = [f'namespace = "{self.name}"\n', *PATIENT]
        text = text.replace('redis.url = "', "".join(rest) + 'redis.url = "')
        text = text.replace("redis://localhost:6379/0", self._redis_url)
        text = text.replace("amqp://guest:guest@localhost/", self._rabbitmq_url)
        return text.replace("orders", self.name)


@pytest.fixture
def user(tmp_path: Path, redis_url: str, rabbitmq_url: str) -> Iterator[NewUser]:
    """A new user, whose processes end with the test."""
    user = NewUser(tmp_path, redis_url, rabbitmq_url)
    try:
        yield user
    finally:
        user.close()


def test_each_block_of_the_readme_runs_when_it_is_pasted_alone(user: NewUser) -> None:
    worker, consumer, call = map(user.here, blocks("README.md", "sh"))
    (client,) = map(user.here, blocks("README.md"))
    user.start("worker", worker, "sh")
    until((user.folder / "delaybridge.toml").exists, "the settings are written")
    user.start("consumer", consumer, "sh")
    began_s = time.time()
    assert user.run(call, "sh") == "created\n"
    assert user.run(client) == "cancelled\n"
    for command in commands():
        user.run(user.here(command), "sh")
    # A message that is due before its queue exists is tried again.
    user.wait_printed("consumer", "order 42 is due")
    assert time.time() >= began_s + 3


def commands() -> list[str]:
    """The README's other commands: in its text, and in the block that steers."""
    text = (ROOT / "README.md").read_text()
    inline = re.findall(r"`(delaybridge schedule [^`]*)`", text)
    steering = re.findall(r"^    (delaybridge .*)$", text, re.MULTILINE)
    assert len(inline) == 1
    assert len(steering) == 3
    return inline + steering
