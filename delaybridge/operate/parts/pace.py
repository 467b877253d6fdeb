"""A worker's pace: what it counted lately, for its announcement."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable
from itertools import islice
from typing import Any

from delaybridge.operate.metrics.counts import Counts
from delaybridge.operate.views.series import percentile
from delaybridge.worker.parts import Part, RunView

_LEAST_S = 1.0  # a shorter time says little
_ANNOUNCED = 20  # brokers
_ANNOUNCED_PLACES = 50  # destinations
_LATENESS_KEPT_S = 60.0
_LONGEST_MS = 60_000  # of a confirm, of a lateness, as told


class CountedPace(Part):
    """Looks at the counts whenever it is announced, and tells what came since the look before."""

    def __init__(self, counts: Counts, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._counts, self._monotonic = counts, monotonic
        self._begin()

    def begin(self, run: RunView) -> None:
        """What was counted in an earlier run is not of this one."""
        self._begin()

    def _begin(self) -> None:
        self._looked_s, self._seen = self._monotonic(), self._look()
        self._said: dict[str, Any] = {"published_s": None, "claims_s": None, "claimed": None}
        self._confirms: dict[str, float] = {}
        self._late: deque[tuple[float, Counter[_Counted]]] = deque()  # until when, what came

    def announce(self, about: dict[str, Any]) -> None:
        """Add it to what the worker says of its pace."""
        about["pace"] |= self.announced()

    def announced(self) -> dict[str, Any]:
        """Messages published and claims made a second, messages of a claim, each broker's time to
        confirm, and each destination's lateness in the last minute (ms, of 99 %). None, or a name
        left out: nothing was counted yet."""
        passed_s = self._monotonic() - self._looked_s
        if passed_s >= _LEAST_S:
            before, self._seen = self._seen, self._look()
            self._looked_s += passed_s
            more = self._seen - before
            claims = more["claims", "", 0]
            self._said = {
                "published_s": round(more["published", "", 0] / passed_s, 1),
                "claims_s": round(claims / passed_s, 1),
                "claimed": round(more["claimed", "", 0] / claims, 1) if claims else None,
            }
            self._confirms |= _within(more, _CONFIRM)
            self._late.append(
                (self._looked_s, Counter({k: n for k, n in more.items() if k[0] == _LATENESS}))
            )
        while self._late and self._late[0][0] <= self._monotonic() - _LATENESS_KEPT_S:
            self._late.popleft()
        late_ms = _within(sum((counts for _, counts in self._late), Counter()), _LATENESS)
        latest = sorted(late_ms, key=lambda place: -late_ms[place])[:_ANNOUNCED_PLACES]
        return {
            **self._said,
            "confirm_ms": dict(islice(self._confirms.items(), _ANNOUNCED)),
            "late_ms": {place: late_ms[place] for place in latest},
        }

    def _look(self) -> Counter[_Counted]:
        """Totals, and how many fell into each bucket of the histograms."""
        found: Counter[_Counted] = Counter()
        for key, total in self._counts.totals.items():
            if (name := _TOTALS.get(key[0])) is not None:
                found[name, "", 0] += total
        for key, histogram in self._counts.histograms.items():
            if key[0] == "claim_seconds":
                found["claims", "", 0] = sum(histogram.counts)
            elif key[0] in (_CONFIRM, _LATENESS):
                found.update({(key[0], key[1], i): n for i, n in enumerate(histogram.counts)})
        return found


_Counted = tuple[str, str, int]  # what, of which broker or destination, in which bucket
_TOTALS = {"messages_published_total": "published", "messages_claimed_total": "claimed"}
_CONFIRM, _LATENESS = "publish_confirm_seconds", "publish_lateness_seconds"


def _within(more: Counter[_Counted], histogram: str) -> dict[str, float]:
    """Broker or destination -> within how many ms 99 % were; of those that had some."""
    found: dict[str, dict[int, int]] = {}
    for (name, of, index), count in more.items():
        if name == histogram and count:
            found.setdefault(of, {})[index] = count
    return {of: percentile(counts, 0.99, _LONGEST_MS) for of, counts in found.items()}
