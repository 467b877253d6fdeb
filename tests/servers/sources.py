"""The ways to get a server for the tests; a server starts only when its source is opened."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cache
from typing import Protocol

import pytest

DOCKER_INFO_TIMEOUT_S = 3.0
REMEDY = "run `make servers`: it installs all it can, and prints the rest to do by hand"


class Running(Protocol):
    """A server that answers at `url`."""

    @property
    def url(self) -> str: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One way to get a server. `what` describes it in the header line, before it is started."""

    what: str
    open: Callable[[], AbstractContextManager[Running]]
    stand_in: bool = False

    def __str__(self) -> str:
        return f"{self.what} STAND-IN" if self.stand_in else self.what


class NoServer(LookupError):
    """A test needs a private node, and no installation of this server was found."""

    def __init__(self, name: str) -> None:
        """name: the server's name, as in `--require`."""
        super().__init__(f"no installation of {name} for a private node; {REMEDY}")
        self.name = name


@dataclass(frozen=True, slots=True)
class External:
    """A server that is already running, and is left running."""

    url: str


def variable(name: str) -> str:
    """The variable of the environment that names a server to use."""
    return f"DELAYBRIDGE_TEST_{name.upper()}_URL"


def from_environment(name: str) -> Iterator[Source]:
    """The server at DELAYBRIDGE_TEST_<NAME>_URL, if the variable is set."""
    if url := os.environ.get(variable(name)):
        yield Source(what=f"given ({variable(name)})", open=lambda: nullcontext(External(url)))


@cache
def docker_answers() -> bool:
    """Whether a Docker engine answers; `docker` is often installed without one."""
    if shutil.which("docker") is None:
        return False
    try:
        info = subprocess.run(
            ["docker", "info", "--format", "{{.ServerVersion}}"],
            capture_output=True,
            timeout=DOCKER_INFO_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return False
    return info.returncode == 0


def serve(name: str, sources: Iterator[Source]) -> Iterator[str]:
    """Yield the URL of the first source's server, running until the fixture ends; or skip."""
    source = next(sources, None)
    if source is None:
        pytest.skip(f"no {name} found; {REMEDY}")
    with source.open() as server:
        yield server.url
