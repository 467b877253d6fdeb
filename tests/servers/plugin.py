"""The pytest side of the servers: `--require`, and the header line that says what each one is."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator

import pytest

from tests.servers import clients, kafka, rabbitmq, redis
from tests.servers.sources import NoServer, Source

SOURCES: dict[str, Callable[[], Iterator[Source]]] = {
    "redis": redis.sources,
    "rabbitmq": rabbitmq.sources,
    "kafka": kafka.sources,
    "clients": clients.sources,
}


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--require=redis,rabbitmq,kafka`: fail where a server is missing or stood in for."""
    parser.addoption(
        "--require",
        default="",
        metavar="SERVERS",
        help=f"fail unless these servers are real, from: {','.join(SOURCES)}",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Refuse to run without a required server, before any test."""
    for name in _required(config):
        if name not in SOURCES:
            raise pytest.UsageError(f"--require: no server {name!r}; known: {', '.join(SOURCES)}")
        source = next(SOURCES[name](), None)
        if source is None or source.stand_in:
            found = "there is none" if source is None else f"there is only {source}"
            raise pytest.UsageError(f"--require: {name}: {found}; `make test` installs the servers")


def _required(config: pytest.Config) -> list[str]:
    return [name for name in config.getoption("--require").split(",") if name]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None]:
    """A test skips where only a container is here and it wants a node of its own."""
    yield from _skipping(item)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None]:
    """The same, inside the test."""
    yield from _skipping(item)


def _skipping(item: pytest.Item) -> Generator[None]:
    try:
        yield
    except NoServer as missing:
        if missing.name in _required(item.config):
            raise
        pytest.skip(str(missing))


def pytest_report_header() -> str:
    """What each server will be; none is started before a test asks for it."""
    planned = (f"{name}={next(of(), 'missing')}" for name, of in SOURCES.items())
    return "delaybridge servers: " + "  ".join(planned)
