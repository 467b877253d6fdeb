"""Installs Debian packages, and finds the mirror that this machine uses."""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path

from tests.servers.folders import cache_folder, locked

LOCK_TIMEOUT_S = 300


def is_debian_root() -> bool:
    """Whether this is Debian and this process may install packages."""
    return os.geteuid() == 0 and Path("/etc/debian_version").exists()


def install(*packages: str) -> None:
    """Install the packages that are missing; updates the package lists only if one is missing."""
    with locked(cache_folder() / "apt.lock"):
        missing = [package for package in packages if not _is_installed(package)]
        if missing:
            _apt_get("update", "-qq")
            _apt_get("install", "-qq", "--no-install-recommends", *missing)


def unpack(package: str, folder: Path) -> None:
    """Download a package, without those it depends on, and unpack it; this starts no service."""
    with tempfile.TemporaryDirectory(dir=folder.parent) as unfinished:
        download = ["apt-get", "download", "-qq", "-o", "APT::Sandbox::User=root", package]
        # The package lists may be missing, or older than the mirror.
        if subprocess.run(download, cwd=unfinished, capture_output=True).returncode != 0:
            with locked(cache_folder() / "apt.lock"):
                _apt_get("update", "-qq")
            subprocess.run(download, cwd=unfinished, stdout=subprocess.DEVNULL, check=True)
        (file,) = Path(unfinished).glob("*.deb")
        unpacked = Path(unfinished) / "unpacked"
        subprocess.run(["dpkg-deb", "--extract", file, unpacked], check=True)
        unpacked.rename(folder)


def mirror() -> str:
    """The address of the Debian archive in this machine's apt sources."""
    command = ["apt-get", "indextargets", "--format", "$(REPO_URI) $(LABEL) $(COMPONENT)"]
    targets = subprocess.run(
        [*command, "Created-By: Packages"], capture_output=True, text=True, check=True
    ).stdout
    for target in targets.splitlines():
        uri, *kind = target.split()
        if kind == ["Debian", "main"]:
            return uri
    raise LookupError("apt's sources contain no Debian archive")


def _is_installed(package: str) -> bool:
    query = ["dpkg-query", "--show", "--showformat", "${db:Status-Status}", package]
    return subprocess.run(query, capture_output=True, check=False).stdout == b"installed"


def _apt_get(*arguments: str) -> None:
    subprocess.run(
        ["apt-get", "-y", "-o", f"DPkg::Lock::Timeout={LOCK_TIMEOUT_S}", *arguments],
        env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        check=True,
    )
