"""A program in a real terminal: a private tmux, driven by keys, whose screen can be read."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import uuid
from collections.abc import Sequence
from contextlib import AbstractContextManager

import pytest

from tests.rigs.waiting import DeadlineExceeded, until
from tests.servers import debian


def installed() -> str:
    """The path of tmux, which is installed if this may be done; otherwise skips the test."""
    if shutil.which("tmux") is None and debian.is_debian_root():
        debian.install("tmux")
    found = shutil.which("tmux")
    if found is None:
        pytest.skip("tmux is not installed: apt-get install tmux")
    return found


class Tmux(AbstractContextManager):
    """A shell in a terminal of a server of its own."""

    def __init__(self, width: int = 80, height: int = 24) -> None:
        self._command = [installed(), "-L", f"test-{uuid.uuid4().hex[:8]}", "-f", "/dev/null", "-u"]
        shell = ["env", "PS1=$ ", "bash", "--norc", "--noprofile"]
        self.run("new-session", "-d", "-s", "t", "-x", str(width), "-y", str(height), *shell)

    def __exit__(self, *exc: object) -> None:
        subprocess.run([*self._command, "kill-server"], check=False, capture_output=True)

    def run(self, *words: str) -> str:
        """A command of tmux itself; its output."""
        command = [*self._command, *words]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    def start(self, command: Sequence[str]) -> None:
        """Type a command line."""
        self.run("send-keys", "-t", "t", "-l", f"clear; {shlex.join(command)}; echo ended-$?")
        self.press("Enter")

    def press(self, *keys: str) -> None:
        """Press keys, named as tmux names them."""
        self.run("send-keys", "-t", "t", *keys)

    def resize(self, width: int, height: int) -> None:
        self.run("resize-window", "-t", "t", "-x", str(width), "-y", str(height))

    @property
    def screen(self) -> str:
        """What is on the screen, line by line, without blanks at the ends of lines."""
        return self.run("capture-pane", "-p", "-t", "t")

    def shows(self, *texts: str, without: str = "\0") -> str:
        """Wait until all of these are on the screen; returns it."""

        def found() -> str:
            screen = self.screen
            return screen if all(t in screen for t in texts) and without not in screen else ""

        try:
            return until(found, f"the screen shows {texts}", interval_s=0.1)
        except DeadlineExceeded as exc:
            raise DeadlineExceeded(f"{exc}\n{self.screen}") from None

    def is_usable(self) -> None:
        """Wait until the shell echoes what is typed, line by line, on its own screen."""
        count = r"stty -a | tr ' ' '\n' | grep -cE '^(icanon|echo);?$'"
        self.run("send-keys", "-t", "t", "-l", count)
        self.press("Enter")
        self.shows("grep -cE", "\n2\n")
        shown = self.run("display-message", "-p", "-t", "t", "#{alternate_on} #{cursor_flag}")
        assert shown.split() == ["0", "1"], "its screen is the usual one, the cursor is visible"
