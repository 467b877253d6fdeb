"""A Debian with Python and nothing else, where a new user begins.

`empty_root` makes the folder once with debootstrap, and nothing writes to it afterwards. Commands
run chrooted in it, in mount and process namespaces of their own, with a folder of the test on /srv.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.servers import debian
from tests.servers.folders import cache_folder, locked

SUITE = "trixie"
HOME = "/srv"
_WITH = "python3,python3-venv,ca-certificates"
# How the host asks for names and checks certificates: pip reaches its index as it does here.
_FROM_HOST = ("etc/resolv.conf", "etc/ssl/certs/ca-certificates.crt")
# Arguments: home, root folder, command...
_IN_ROOT = 'mount --bind "$1" "$2/srv"; root=$2; shift 2; exec chroot "$root" "$@"'


@pytest.fixture(scope="session")
def empty_root() -> Path:
    """The folder. Skips where none can be made: it takes a Debian, and its superuser."""
    if not debian.is_debian_root():
        pytest.skip("needs root on Debian")
    root = cache_folder() / f"empty-{SUITE}"
    with locked(cache_folder() / "empty.lock"):
        if not root.exists():
            debian.install("debootstrap")
            with tempfile.TemporaryDirectory(prefix="empty-", dir=cache_folder()) as unfinished:
                _build(Path(unfinished) / "root")
                (Path(unfinished) / "root").rename(root)
    return root


def _build(root: Path) -> None:
    # The mount namespace ensures that an interrupted build leaves no mount in the folder.
    what = ["--variant=minbase", f"--include={_WITH}", SUITE, str(root), debian.mirror()]
    subprocess.run(
        ["unshare", "--mount", "debootstrap", *what],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        check=True,
    )
    for name in _FROM_HOST:
        shutil.copy(f"/{name}", root / name)


def in_root(root: Path, home: Path, command: Sequence[str]) -> list[str]:
    """The command line that runs a command in the root, with that folder as its /srv."""
    namespaces = ["--mount", "--pid", "--fork", "--kill-child=KILL", f"--mount-proc={root}/proc"]
    return ["unshare", *namespaces, "sh", "-ec", _IN_ROOT, "sh", str(home), str(root), *command]
