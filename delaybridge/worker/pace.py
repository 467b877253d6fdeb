"""A worker's pace: what it counted lately, for its announcement."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from itertools import islice
from typing import Any

from delaybridge.metrics.counts import Counts
from delaybridge.store.series import percentile

_LEAST_S = 1.0  # a shorter time says little
_ANNOUNCED = 20  # brokers
_LONGEST_MS = 60_000  # of a confirm, as told


class CountedPace:
    """Looks at the counts whenever it is announced, and tells what came since the look before."""

    def __init__(self, counts: Counts, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._counts, self._monotonic = counts, monotonic
        self._looked_s, self._seen = monotonic(), self._look()
        self._said: dict[str, Any] = {"published_s": None, "claims_s": None, "claimed": None}
        self._confirms: dict[str, float] = {}

    def announced(self) -> dict[str, Any]:
        """Messages published and claims made a second, messages of a claim, and each broker's time
        to confirm (ms, of 99 %). None, or a broker left out: nothing was counted yet."""
        passed_s = self._monotonic() - self._looked_s
        if passed_s >= _LEAST_S:
            before, self._seen = self._seen, self._look()
            self._looked_s += passed_s
            more = self._seen - before
            claims = more["claims", 0]
            self._said = {
                "published_s": round(more["published", 0] / passed_s, 1),
                "claims_s": round(claims / passed_s, 1),
                "claimed": round(more["claimed", 0] / claims, 1) if claims else None,
            }
            self._confirms |= _confirms(more)
        return {**self._said, "confirm_ms": dict(islice(self._confirms.items(), _ANNOUNCED))}

    def _look(self) -> Counter[tuple[str, int]]:
        """Totals, and how many confirms of each broker fell into each bucket of its histogram."""
        found: Counter[tuple[str, int]] = Counter()
        for key, total in self._counts.totals.items():
            if (name := _TOTALS.get(key[0])) is not None:
                found[name, 0] += total
        for key, histogram in self._counts.histograms.items():
            if key[0] == "claim_seconds":
                found["claims", 0] = sum(histogram.counts)
            elif key[0] == "publish_confirm_seconds":
                found.update(
                    {(f"{_CONFIRM}{key[1]}", i): n for i, n in enumerate(histogram.counts)}
                )
        return found


_TOTALS = {"messages_published_total": "published", "messages_claimed_total": "claimed"}
_CONFIRM = "confirm "


def _confirms(more: Counter[tuple[str, int]]) -> dict[str, float]:
    """Broker -> within how many ms 99 % were confirmed; of brokers that confirmed something."""
    found: dict[str, dict[int, int]] = {}
    for (name, index), count in more.items():
        if name.startswith(_CONFIRM):
            found.setdefault(name.removeprefix(_CONFIRM), {})[index] = count
    return {name: percentile(counts, 0.99, _LONGEST_MS) for name, counts in found.items()}
