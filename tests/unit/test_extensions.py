"""What this package adds by entry points: each name of pyproject.toml, and what is not there."""

from __future__ import annotations

import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

from delaybridge import extensions
from delaybridge.errors import ConfigError
from delaybridge.publish import PublishOptions, connect
from delaybridge.publishers.http import publisher
from delaybridge.settings.urls import KINDS

ROOT = Path(__file__).parents[2]
ADDED = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
PYTEST = ADDED.pop("pytest11")  # read by pytest itself
EACH = [(group, *entry) for group, entries in ADDED.items() for entry in entries.items()]


@pytest.mark.parametrize(("group", "name", "value"), EACH)
def test_what_the_package_adds_is_there(group: str, name: str, value: str) -> None:
    assert EntryPoint(name, value, group).load() is extensions.load(group, name)


def test_pytest_finds_the_fixtures() -> None:
    (plugin,) = (EntryPoint(*entry, "pytest11").load() for entry in PYTEST.items())
    assert {"bridge", "bridge_options"} <= vars(plugin).keys()


def test_every_kind_of_broker_is_the_engine_s_or_plugs_in() -> None:
    assert {*KINDS.values()} == {"rabbitmq", "kafka", "memory", *ADDED[extensions.PUBLISHERS]}


def test_a_broker_whose_publisher_is_not_installed_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extensions, "entry_points", lambda **_: [])
    nothing: Any = lambda *_: None  # noqa: E731
    with pytest.raises(ConfigError, match=r"brokers.b: .*'http'.* delaybridge.publishers"):
        connect("b", "http://h", report=nothing, on_change=nothing, options=PublishOptions())


def test_another_package_does_not_replace_one_of_this() -> None:
    added = [EntryPoint("http", value, extensions.PUBLISHERS) for value in
             ("os:getpid", ADDED[extensions.PUBLISHERS]["http"])]  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(extensions, "entry_points", lambda **_: added)
        assert extensions.load(extensions.PUBLISHERS, "http") is publisher
