"""`python -m tests.servers [NAME]...` installs the servers for tests, once; part of `make test`.

It is not an error if a server cannot be installed: tests use another source or are skipped, or,
with `--require`, fail.
"""

from __future__ import annotations

import subprocess
import sys
import time

from tests.servers import debian
from tests.servers.plugin import SERVERS, SOURCES
from tests.servers.process import ServerFailed

REMEDIES = {
    "redis": "put redis-server on PATH, start Docker, or set DELAYBRIDGE_TEST_REDIS_URL",
    "rabbitmq": "run this as root on Debian, install RabbitMQ here, start Docker, "
    "or set DELAYBRIDGE_TEST_RABBITMQ_URL",
    "kafka": "install Java and Maven here and run this again, put kafka-server-start.sh on PATH, "
    "start Docker, or set DELAYBRIDGE_TEST_KAFKA_URL",
    "clients": "install Node and npm here and run this again",
    "languages": "run this as root on Debian, or install Go, Java, Maven, PHP with php-amqplib "
    "and Ruby with Bunny",
    "browser": "run this as root on Debian, or put chromium on PATH",
    "prometheus": "run this on Debian",
    "postgres": "run this as root on Debian, or set DELAYBRIDGE_TEST_POSTGRES_URL",
    "mariadb": "run this as root on Debian, or set DELAYBRIDGE_TEST_MARIADB_URL",
    "engines": "run this as root on Debian, or set DELAYBRIDGE_TEST_ENGINE_URL",
    "kubernetes": "install Go here and run `python -m tests.servers kubernetes`",
}
LATE = {"kubernetes", "engines"}  # installed if they are named: `make test-all` does
NONE = "none; its tests will be skipped"


def main(names: list[str]) -> None:
    """Install the named servers (default: all but LATE), and print what the tests will use."""
    for name in names or [name for name in SERVERS if name not in LATE]:
        began = time.monotonic()
        try:
            SERVERS[name].install()
        except (subprocess.CalledProcessError, OSError, LookupError, ServerFailed) as failure:
            _say(f"{name}: not installed: {failure}")
        source = next(SOURCES[name](), None)
        _say(f"{name}: {source or NONE} [{time.monotonic() - began:.1f} s]")
        if source is None or source.stand_in:
            _say(f"  to test with a real one: {REMEDIES[name]}")


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    if not debian.is_debian_root():
        _say("not root on Debian: Debian packages are not installed, only downloads")
    main(sys.argv[1:])
