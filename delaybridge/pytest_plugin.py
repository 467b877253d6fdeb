"""The fixtures for pytest. Every run of pytest imports this: it imports nothing else until used."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from delaybridge.testing import Bridge


@pytest.fixture
def bridge_options() -> dict[str, Any]:
    """The arguments of the `Bridge`; override it to change them."""
    return {}


@pytest.fixture
def bridge(bridge_options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> Iterator[Bridge]:
    """A bridge in memory, to which the settings of this process lead until the test ends."""
    from delaybridge.testing import Bridge

    with Bridge(**bridge_options) as made:
        for name, value in made.environment.items():
            monkeypatch.setenv(name, value)
        yield made
