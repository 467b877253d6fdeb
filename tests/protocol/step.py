"""One step that the system may take next."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from tests.protocol.world import World


class Step(NamedTuple):
    """kind: samples prefer some. is_prompt: it needs no client and no fault to happen."""

    label: str
    kind: str
    run: Callable[[World], None]
    is_prompt: bool = False
