"""The pytest plugin of the servers: `--require`, skips, and a header line with their sources."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from tests.servers import (
    browser,
    clients,
    engines,
    kafka,
    kubernetes,
    languages,
    mariadb,
    postgres,
    prometheus,
    rabbitmq,
    redis,
)
from tests.servers.sources import NoServer, Source, variable

SERVERS: dict[str, Any] = {
    module.__name__.rpartition(".")[2]: module
    for module in (
        *(redis, rabbitmq, kafka, clients, languages),
        *(browser, prometheus, postgres, mariadb, kubernetes, engines),
    )
}
SOURCES: dict[str, Callable[[], Iterator[Source]]] = {
    name: module.sources for name, module in SERVERS.items()
}


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--require=redis,rabbitmq,kafka`: fail if a server is missing or is only a stand-in."""
    parser.addoption(
        "--require",
        default="",
        metavar="SERVERS",
        help=f"fail unless these servers are real, from: {','.join(SOURCES)}",
    )
    parser.addoption(
        "--share",
        default="",
        metavar="SERVERS",
        help="start these once for all processes of the run: of JVMs and of Erlang one is enough",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Fail before the first test if a required server is missing or is only a stand-in."""
    for name in _required(config):
        if name not in SOURCES:
            raise pytest.UsageError(f"--require: no server {name!r}; known: {', '.join(SOURCES)}")
        source = next(SOURCES[name](), None)
        if source is None or source.stand_in:
            found = "missing" if source is None else f"only {source} found"
            raise pytest.UsageError(f"--require: {name}: {found}; `make test` installs the servers")
    if not hasattr(config, "workerinput"):  # the others find the URLs in their environment
        running = ExitStack()
        config.add_cleanup(running.close)
        for name in filter(None, config.getoption("--share").split(",")):
            source = next(SOURCES[name](), None)
            if source is not None and not source.stand_in:  # by its URL it would pass for real
                os.environ[variable(name)] = running.enter_context(source.open()).url


def _required(config: pytest.Config) -> list[str]:
    return [name for name in config.getoption("--require").split(",") if name]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None]:
    """Skip a test whose fixtures need a private node, if only a container is available."""
    yield from _skip_without_server(item)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None]:
    """Skip a test that itself needs a private node, if only a container is available."""
    yield from _skip_without_server(item)


def _skip_without_server(item: pytest.Item) -> Generator[None]:
    try:
        yield
    except NoServer as missing:
        if missing.name in _required(item.config):
            raise
        pytest.skip(str(missing))


def pytest_report_header() -> str:
    """The source of each server; a server starts only when a test asks for it."""
    planned = (f"{name}={next(of(), 'missing')}" for name, of in SOURCES.items())
    return "delaybridge servers: " + "  ".join(planned)
