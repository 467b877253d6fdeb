"""An operator who has a shell, a settings file, and what `health` and `doctor` say."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from tests.rigs.command_line import Result
from tests.rigs.fleet import ROOT
from tests.rigs.waiting import DEADLINE_S, until
from tests.servers.rabbitmq import RabbitMQNode

LOOK_S = 1.0  # between two looks: each is a process
FOR_EVER = re.compile(r"delaybridge (scan|ingest|front|serve)\b")  # commands that stay


class OperatorShell:
    """Commands run in bash as they are pasted, 80 columns wide, beside `delaybridge.toml`.

    settings: that file, as lines. Commands that stay run in the background; all end with it.
    """

    def __init__(self, folder: Path, *settings: str, **environment: str) -> None:
        self.folder = folder
        (folder / "bin").mkdir()
        self.write(*settings)
        path = f"{folder / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}"
        own = {"PATH": path, "PYTHONPATH": str(ROOT), "COLUMNS": "80", "HOME": str(folder)}
        self._environment = {**os.environ, **own, **environment}
        self._processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        for number in range(len(self._processes)):
            self.signal(signal.SIGKILL, number)

    def write(self, *settings: str) -> None:
        """The settings file, from now on."""
        file = self.folder / "delaybridge.toml"
        file.write_text("\n".join([*settings, ""]))
        file.chmod(0o600)  # it has passwords

    def install(self, node: RabbitMQNode) -> None:
        """Put the broker's `rabbitmqadmin` on the path, and the library that it needs beside it.

        Not run in the node's own root folder, which has no certificates.
        """
        (library,) = sorted((node.root / "usr/lib").glob("*/libmimalloc.so.3"))[:1]
        (self.folder / "bin" / library.name).symlink_to(library.resolve())
        file = self.folder / "bin" / "rabbitmqadmin"
        program = shlex.quote(str(node.root / "usr/bin/rabbitmqadmin"))
        file.write_text(f'#!/bin/sh\nLD_LIBRARY_PATH={self.folder}/bin exec {program} "$@"\n')
        file.chmod(0o755)

    def run(self, command: str) -> Result:
        """Paste it, and wait until it ends."""
        done = subprocess.run(
            ["bash", "-c", command], cwd=self.folder, env=self._environment, text=True,
            capture_output=True, timeout=DEADLINE_S, check=False,
        )  # fmt: skip
        return Result(done.returncode, done.stdout, done.stderr)

    def start(self, command: str) -> None:
        """Paste it, and let it run."""
        with (self.folder / f"{len(self._processes)}.log").open("wb") as log:
            self._processes.append(
                subprocess.Popen(
                    ["bash", "-c", f"exec {command}"],
                    cwd=self.folder,
                    env=self._environment,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )  # fmt: skip
            )

    def signal(self, number: signal.Signals, process: int = -1) -> None:
        """To a command that was started, by default the last one; a kill is waited for."""
        one = self._processes[process]
        if one.poll() is None:
            os.killpg(one.pid, number)
        if number in (signal.SIGKILL, signal.SIGTERM):
            one.wait(DEADLINE_S)

    def send(self, destination: str, delay: str = "0s") -> None:
        """Schedule a message."""
        said = self.run(shlex.join(["delaybridge", "schedule", destination, "x", "--in", delay]))
        assert said.code == 0, said

    # what it is told

    def health(self) -> tuple[int, dict[str, Mapping[str, str]]]:
        """The exit code, and what is wrong by its code."""
        said = self.run("delaybridge --json health")
        found: list[dict[str, Any]] = said.objects[0]["troubles"] if said.out else []
        return said.code, {each["code"]: each for each in found}

    def becomes_red(self, *codes: str) -> dict[str, Mapping[str, str]]:
        """What `health` says, once it exits with 1 and names all of these."""

        def is_told() -> dict[str, Mapping[str, str]] | None:
            code, found = self.health()
            return found if code == 1 and found.keys() >= set(codes) else None

        return until(is_told, lambda: f"{codes}, and not {self.health()}", interval_s=LOOK_S)

    def becomes_green(self) -> dict[str, Mapping[str, str]]:
        """The notes of `health`, once it exits with 0."""

        def notes() -> list[dict[str, Mapping[str, str]]]:
            code, found = self.health()
            return [found] if code == 0 else []

        said = lambda: f"health is green, and not {self.health()}"  # noqa: E731
        return until(notes, said, interval_s=LOOK_S)[0]

    def doctor(self) -> dict[str, list[Mapping[str, str]]]:
        """What `doctor` finds, by its code."""
        found: dict[str, list[Mapping[str, str]]] = {}
        for each in self.run("delaybridge --json doctor").objects:
            found.setdefault(each["code"], []).append(each)
        return found

    def remedy(self, code: str) -> list[str]:
        """The commands that `doctor` gives for it, as a reader takes them from the text."""
        (found,) = self.doctor()[code]
        parts = re.split(r"\. (?=[A-Z])", found["remedy"])
        return [part.rpartition(": ")[2] for part in parts if ": " in part]

    def follow(self, code: str) -> None:
        """Paste each command of the remedy; it must work."""
        commands = self.remedy(code)
        assert commands
        for command in commands:
            if FOR_EVER.match(command):
                self.start(command)
            else:
                said = self.run(command)
                assert said.code == 0, (command, said)
