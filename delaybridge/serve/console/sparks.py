"""Small lines of what was a moment ago: the last values that a server has seen. In memory only."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping

from delaybridge.serve.console.rendering import spark

_VALUES = 60
_GAP_S = 60.0  # after a gap this long, older values are dropped
_LEAST = 4  # fewer make no line


class Sparks:
    """The last values of some names, which are read together. least_s: the shortest time between
    two that are kept: however many pages read them, a line spans a minute and more."""

    def __init__(self, least_s: float = 0.9) -> None:
        self._least_s, self._noted_s = least_s, -1e9
        self._values: dict[str, deque[float]] = {}

    def note(self, values: Mapping[str, float | None]) -> None:
        """The values of now; None: it has none. The line of a name that is missing ends."""
        now_s = time.monotonic()
        passed_s = now_s - self._noted_s
        if passed_s < self._least_s:
            return
        if passed_s > _GAP_S:
            self._values = {}
        self._noted_s = now_s
        self._values = {n: self._values.get(n, deque(maxlen=_VALUES)) for n in values}
        for name, value in values.items():
            if value is not None:
                self._values[name].append(value)

    def line(self, name: str) -> str:
        """The points of a polyline, as `spark` makes it; empty while there are few values."""
        found = self._values.get(name, ())
        return spark(found) if len(found) >= _LEAST else ""
