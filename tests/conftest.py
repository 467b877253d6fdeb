"""Fixtures for every test. The servers' fixtures are in `tests/servers/`, one file each."""

from __future__ import annotations

import logging
import os
import signal
import sys
import uuid
from collections.abc import Iterator
from fnmatch import fnmatchcase

import pytest
from hypothesis import HealthCheck, settings

pytest_plugins = [
    "pytester",
    "tests.rigs.stall",
    "tests.rigs.screen",
    "tests.servers.redis",
    "tests.servers.engines",
    "tests.servers.sentinel",
    "tests.servers.cluster",
    "tests.servers.clock",
    "tests.servers.rabbitmq",
    "tests.servers.empty_root",
    "tests.servers.kafka",
    "tests.servers.browser",
    "tests.servers.clients",
    "tests.servers.prometheus",
    "tests.servers.postgres",
    "tests.servers.mariadb",
    "tests.servers.kubernetes",
    "tests.servers.plugin",  # last: it imports the others, which pytest must do first
]

# A shared machine may be starved for a while: how long an example takes says nothing.
_calm = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("delaybridge", _calm, max_examples=40)
settings.register_profile("long", _calm, max_examples=300)  # make test-all
settings.register_profile("fuzz", _calm, max_examples=3000)  # make fuzz
settings.load_profile("delaybridge")

KEPT = ("DELAYBRIDGE_TEST_", "DELAYBRIDGE_CACHE")

# Settings of the person who runs the tests must not reach them, nor the workers they start.
for _name in list(os.environ):
    if _name.startswith("DELAYBRIDGE_") and not _name.startswith(KEPT):
        del os.environ[_name]

# Where Python keeps no bytecode, each of hundreds of processes compiles the package again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# A job in the background ignores Ctrl-C, and so would the processes that tests interrupt.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_configure() -> None:
    """A starved machine is no silent server: by default who asks one waits longer for it.

    A test's event loop ends in a limited time, or names the task that does not.
    """
    import asyncio

    import pika

    from delaybridge import AsyncClient, Client  # only now that the environment is clean
    from delaybridge.front import vhost
    from delaybridge.store.redis.store import AsyncStore, Store
    from tests.rigs.waiting import PATIENCE_S, end_all_of

    asyncio.runners._cancel_all_tasks = end_all_of  # type: ignore[attr-defined]
    for kind in (Client, AsyncClient, Store, AsyncStore):
        kind.__init__.__kwdefaults__["timeout_s"] = PATIENCE_S
    vhost.ASK_S = vhost.MAKE_S = PATIENCE_S
    # Of plain connections: those of the product say their own.
    pika.connection.Parameters.DEFAULT_SOCKET_TIMEOUT = PATIENCE_S
    pika.connection.Parameters.DEFAULT_STACK_TIMEOUT = PATIENCE_S


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark as slow what is so with some of its parameters only."""
    called = getattr(item, "callspec", None)
    patterns = [each for mark in item.iter_markers("slow_with") for each in mark.args]
    if called is not None and any(fnmatchcase(called.id, pattern) for pattern in patterns):
        item.add_marker("slow")


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    """A command that ran in this process has set up a log, on a stream that is closed by now."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.fixture
def namespace() -> str:
    """A namespace that no other test, nor another run against the same Redis, uses."""
    return f"t-{uuid.uuid4().hex[:16]}"


@pytest.fixture
def now_ms() -> int:
    """The time of tests that pass the time in: milliseconds since the epoch, in 2027."""
    return 1_800_000_000_000
