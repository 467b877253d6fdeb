"""From nothing: the wheel in an empty Debian, the README's demo, and a tutorial word by word.

Only the servers' addresses and names differ, and pip finds the wheel in the folder.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.rigs.pages import blocks
from tests.rigs.terminals import NewUser
from tests.servers.empty_root import HOME, in_root

PAGE = "docs/tutorial-rabbitmq.md"
pytestmark = pytest.mark.slow


class Newcomer(NewUser):
    """Has a machine with Python alone, and activates the environment in each terminal."""

    def __init__(self, root: Path, folder: Path, redis_url: str, rabbitmq_url: str) -> None:
        super().__init__(folder, redis_url, rabbitmq_url)
        self._root = root
        of_pip = {name: value for name, value in os.environ.items() if name.startswith("PIP_")}
        path = f"{HOME}/venv/bin:/usr/bin:/bin"  # an activated environment
        here = {"PATH": path, "HOME": HOME, "LC_ALL": "C.UTF-8", "PIP_FIND_LINKS": HOME}
        outside = {"PATH": os.environ["PATH"]}  # of unshare and chroot
        self.environment = of_pip | outside
        self._within = [f"{name}={value}" for name, value in here.items()]

    def command(self, code: str, language: str) -> Sequence[str]:
        """As in a terminal of that machine."""
        shell = ["bash", "-euc", f"cd {HOME}\n{code}"]
        return in_root(self._root, self.folder, ["/usr/bin/env", *self._within, *shell])

    def follow(self, log: str, code: str) -> str:
        """Run what may take minutes; returns what it printed. It must exit with 0."""
        self.start(log, code, "sh")
        assert self.processes[-1].wait() == 0, self.printed(log)
        return self.printed(log)


@pytest.fixture
def newcomer(
    tmp_path: Path, empty_root: Path, redis_url: str, rabbitmq_url: str
) -> Iterator[Newcomer]:
    newcomer = Newcomer(empty_root, tmp_path, redis_url, rabbitmq_url)
    build = [sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", str(tmp_path)]
    subprocess.run([*build, str(Path(__file__).parents[2])], check=True, capture_output=True)
    try:
        yield newcomer
    finally:
        newcomer.close()


def test_a_new_user_delays_a_message_ends_the_worker_and_follows_the_remedy(
    newcomer: Newcomer,
) -> None:
    install, worker, consumer, shell, *_, last = map(newcomer.here, blocks(PAGE, "sh"))
    newcomer.follow("install", install)
    newcomer.start("worker", worker, "sh")
    newcomer.wait_printed("worker", "lease_acquired")
    newcomer.start("consumer", consumer, "sh")
    newcomer.run(shell, "sh")
    newcomer.wait_printed("consumer", "order 42 is due {")
    os.killpg(newcomer.processes[1].pid, signal.SIGINT)  # Ctrl-C
    newcomer.wait_printed("worker", "lease_released")
    assert "what to do: delaybridge doctor" in newcomer.follow("health", last)
    wrong = newcomer.follow("doctor", "delaybridge doctor || true")
    assert "have no worker. Start one: delaybridge scan" in wrong
    newcomer.start("again", "delaybridge scan --with-ingest", "sh")
    newcomer.wait_printed("consumer", "late, not lost")
    demo, *_ = blocks("README.md", "sh")
    assert newcomer.follow("demo", demo).splitlines()[-1] == "PASS"
