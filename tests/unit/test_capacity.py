"""How many connections `serve` holds within the limit of open files."""

from __future__ import annotations

import logging
import resource

import pytest

from delaybridge.serve.server.capacity import capacity, within_open_files
from delaybridge.settings.settings import Settings


@pytest.mark.parametrize(
    ("files", "connections", "backlog"),
    [(2**30, 10_000, 2048), (20_000, 10_000, 2048), (12_000, 10_000, 468), (1024, 512, 96),
     (256, 128, 24), (16, 8, 1)],
)  # fmt: skip
def test_connections_and_those_that_wait_fit_into_the_open_files(
    files: int, connections: int, backlog: int
) -> None:
    assert capacity(10_000, files) == (connections, backlog)
    assert connections + 4 * backlog < files


@pytest.fixture
def limits(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The limits of open files, soft and hard; may be set by the test."""
    found = [1024, 1024]
    monkeypatch.setattr(resource, "getrlimit", lambda _: tuple(found))

    def set_limits(_: int, wanted: tuple[int, int]) -> None:
        found[:] = wanted

    monkeypatch.setattr(resource, "setrlimit", set_limits)
    return found


def test_the_soft_limit_is_raised_to_what_is_needed(
    limits: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    limits[1] = 2**20
    with caplog.at_level(logging.WARNING):
        assert within_open_files(Settings()).serve.connections == 10_000
    assert limits == [18_320, 2**20]
    assert not caplog.records


def test_where_it_may_not_be_raised_there_are_fewer_connections_and_the_log_says_so(
    limits: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        assert within_open_files(Settings()).serve.connections == 512
    assert limits == [1024, 1024]
    (said,) = caplog.records
    assert said.getMessage().startswith("few_connections connections=512 open_files=1024 remedy=")
