"""Where a server for the tests can come from, as a value; nothing starts before it is opened."""

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
REMEDY = "`make servers` gets what it can, and says what is left to do"


class Running(Protocol):
    """A server that answers at `url`."""

    @property
    def url(self) -> str: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One way to get a server. `what` names it in the header line, so it is known unstarted."""

    what: str
    open: Callable[[], AbstractContextManager[Running]]
    stand_in: bool = False

    def __str__(self) -> str:
        return f"{self.what} STAND-IN" if self.stand_in else self.what


class NoServer(LookupError):
    """A test wants a node of its own, and there is nothing here to run one from."""

    def __init__(self, name: str) -> None:
        """name: the server's, as `--require` spells it."""
        super().__init__(f"no {name} here to run a node from; {REMEDY}")
        self.name = name


@dataclass(frozen=True, slots=True)
class Given:
    """A server that somebody else runs."""

    url: str


def from_environment(name: str) -> Iterator[Source]:
    """The server in DELAYBRIDGE_TEST_<NAME>_URL, if the variable is set; it is left running."""
    variable = f"DELAYBRIDGE_TEST_{name.upper()}_URL"
    if url := os.environ.get(variable):
        yield Source(what=f"given ({variable})", open=lambda: nullcontext(Given(url)))


@cache
def docker_answers() -> bool:
    """Whether a Docker engine answers; the client is often installed without one."""
    if shutil.which("docker") is None:
        return False
    try:
        asked = subprocess.run(
            ["docker", "info", "--format", "{{.ServerVersion}}"],
            capture_output=True,
            timeout=DOCKER_INFO_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return False
    return asked.returncode == 0


def serve(name: str, sources: Iterator[Source]) -> Iterator[str]:
    """Start the first of the sources for as long as a session fixture lives, and give its URL."""
    source = next(sources, None)
    if source is None:
        pytest.skip(f"no {name} here; {REMEDY}")
    with source.open() as server:
        yield server.url
