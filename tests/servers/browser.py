"""A browser for tests: Debian's Chromium, with fonts that show Latin and Chinese."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import nullcontext

import pytest

from tests.servers import debian
from tests.servers.sources import External, Source, serve

_PACKAGES = ("chromium", "fonts-dejavu-core", "fonts-wqy-microhei")
_NAMES = ("chromium", "chromium-browser", "google-chrome")


def install() -> None:
    """Install it, once; elsewhere one on PATH is used."""
    if debian.is_debian_root():
        debian.install(*_PACKAGES)


def sources() -> Iterator[Source]:
    for program in filter(None, map(shutil.which, _NAMES)):
        told = subprocess.run([program, "--version"], capture_output=True, text=True, check=False)
        if told.returncode == 0:
            path = program
            what = " ".join(told.stdout.split()[:2]).lower()
            yield Source(what=what, open=lambda path=path: nullcontext(External(path)))
            return


@pytest.fixture(scope="session")
def chromium() -> Iterator[str]:
    yield from serve("browser", sources())
