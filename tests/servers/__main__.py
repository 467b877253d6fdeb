"""`python -m tests.servers [NAME]...`: install what the recipes need, once; part of `make test`.

A server that cannot be had here is no error: the tests fall back or skip, and `--require` decides.
"""

from __future__ import annotations

import subprocess
import sys
import time

from tests.servers import clients, debian, kafka, rabbitmq, redis
from tests.servers.plugin import SOURCES

INSTALL = {
    "redis": redis.install,
    "rabbitmq": rabbitmq.install,
    "kafka": kafka.install,
    "clients": clients.install,
}


def main(names: list[str]) -> None:
    """Install the named servers, all by default, and say what the tests will use."""
    for name in names or INSTALL:
        began = time.monotonic()
        try:
            INSTALL[name]()
        except (subprocess.CalledProcessError, OSError, LookupError) as failure:
            _say(f"{name}: not installed: {failure}")
        source = next(SOURCES[name](), "none; its tests will be skipped")
        _say(f"{name}: {source} [{time.monotonic() - began:.1f} s]")


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    if not debian.is_debian_root():
        _say("not root on Debian: only what is here already can be used")
    main(sys.argv[1:])
