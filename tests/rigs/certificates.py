"""A throw-away authority and a server certificate for 127.0.0.1, made by openssl."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import NamedTuple


class Certificates(NamedTuple):
    """PEM files. key is PKCS 8, without a password."""

    authority: Path
    certificate: Path
    key: Path


def make(folder: Path, names: str = "IP:127.0.0.1") -> Certificates:
    """names: of the server, as openssl writes them."""
    made = Certificates(folder / "ca.pem", folder / "server.pem", folder / "server.key")
    new_key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    ca_key = folder / "ca.key"
    _openssl(
        *("req", "-x509", *new_key, "-days", "2", "-subj", "/CN=delaybridge test authority"),
        *("-keyout", str(ca_key), "-out", str(made.authority)),
    )
    _openssl(
        *("req", "-x509", *new_key, "-days", "2", "-subj", "/CN=127.0.0.1"),
        *("-addext", f"subjectAltName={names}", "-addext", "basicConstraints=CA:FALSE"),
        *("-CA", str(made.authority), "-CAkey", str(ca_key)),
        *("-keyout", str(made.key), "-out", str(made.certificate)),
    )
    for path in made:
        path.chmod(0o644)
    return made


def _openssl(*arguments: str) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True)
