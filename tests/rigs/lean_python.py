"""A Python with only some of the installed packages, as an image or a plain install has them.

Run as a program, it reads JSON lines [arguments, word] and runs each command line in a process of
its own; one with a word is stopped once it has printed that. It prints [code, output] of each.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from importlib import import_module
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
_NAME = re.compile(r"[A-Za-z0-9._-]+")


class Ran(NamedTuple):
    """How a command line ended, and what it printed."""

    code: int
    output: str


def locked() -> set[str]:
    """The packages of the image."""
    lock = (ROOT / "requirements.lock").read_text()
    return set(re.findall(r"^([\w.-]+)==", lock, re.MULTILINE))


def needed(requirements: Iterable[str]) -> set[str]:
    """The packages that these requirements bring, all the way down."""
    from packaging.requirements import Requirement

    found: set[str] = set()
    left = [(Requirement(text), "") for text in requirements]
    while left:
        requirement, extra = left.pop()
        if requirement.marker and not requirement.marker.evaluate({"extra": extra}):
            continue
        try:
            below = distribution(requirement.name).requires or []
        except PackageNotFoundError:
            continue
        found.add(requirement.name.lower().replace("_", "-"))
        for extra in ("", *requirement.extras):
            left += [(Requirement(text), extra) for text in below
                     if extra or "extra ==" not in text]  # fmt: skip
    return found


def make_site(folder: Path, packages: Iterable[str]) -> Path:
    """A folder for PYTHONPATH with links to the files of these packages."""
    folder.mkdir()
    for name in packages:
        try:
            one = distribution(name)
        except PackageNotFoundError:  # of another platform
            continue
        for path in _parts(one):
            link = folder / path
            if not link.is_symlink():
                link.parent.mkdir(parents=True, exist_ok=True)
                link.symlink_to(str(one.locate_file(str(path))))
    return folder


def _parts(one: Distribution) -> Iterator[Path]:
    """Files and folders that are this package's alone: several may share a namespace."""
    for file in one.files or ():
        path = Path(*file.parts[:1])
        for part in file.parts[1:]:
            inside = Path(str(one.locate_file(str(path))))
            if path.suffix == ".dist-info" or (inside / "__init__.py").exists():
                break
            path /= part
        if file.parts[0] != ".." and path.suffix != ".pth":
            yield path


def run_all(
    site: Path, commands: Sequence[tuple[list[str], str]], environment: dict[str, str]
) -> list[Ran]:
    """Run command lines with the packages of the site alone, one after another."""
    ran = subprocess.run(
        [sys.executable, "-S", __file__],
        input="\n".join(json.dumps(command) for command in commands),
        env={"PATH": os.environ["PATH"], "PYTHONPATH": f"{site}:{ROOT}", **environment},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        cwd=site.parent,
    )
    return [Ran(*json.loads(line)) for line in ran.stdout.splitlines()]


def _run(arguments: list[str], word: str) -> tuple[int, str]:
    reading, writing = os.pipe()
    if not (pid := os.fork()):
        from delaybridge.operate.cli import main

        for number in (1, 2):
            os.dup2(writing, number)
        os.close(0)
        os._exit(main(arguments))
    os.close(writing)
    output = b""
    while data := os.read(reading, 65_536):
        output += data
        if word and word.encode() in output:
            os.kill(pid, signal.SIGTERM)
            word = ""
    os.close(reading)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), output.decode()


if __name__ == "__main__":
    # What many commands need, once for all of them; a command meets an ImportError of its own.
    for room in (
        "client.client",
        "store.redis.store",
        "settings.settings",
        "ledger.sql.schema",
        "operate.cli.messages.ledger",
    ):
        with suppress(ImportError):
            import_module(f"delaybridge.{room}")
    for line in sys.stdin.read().splitlines():
        print(json.dumps(_run(*json.loads(line))), flush=True)
