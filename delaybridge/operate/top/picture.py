"""The data that `delaybridge top` shows, and the thread that reads it."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from delaybridge.errors import StoreError, StoreUnavailable
from delaybridge.operate.views.destinations import list_destinations
from delaybridge.operate.views.facts import Fullness, fullest
from delaybridge.operate.views.horizon import read_horizon
from delaybridge.operate.views.series import read_rates
from delaybridge.operate.views.stats import read_stats
from delaybridge.store.protocol.together import together
from delaybridge.store.protocol.verbs import Steps

if TYPE_CHECKING:
    from delaybridge import Client, Horizon, Stats
    from delaybridge.operate.views.destinations import Place, Places
    from delaybridge.operate.views.series import Recent
    from delaybridge.store.calls import Calls

_SPAN_MS, _STEP_MS = 60_000, 1000
COUNT_EVERY_S = 5.0  # counting by destination is the dearest part


@dataclass(frozen=True, slots=True)
class Picture:
    """One look. error: what could not be read; `stats` is None until a look succeeded.

    took_ms: until all answers were there. away_s: since when no look succeeds, monotonic; None if
    the last one did. is_silent: because Redis does not answer.
    """

    stats: Stats | None = None
    horizon: Horizon | None = None
    recent: Recent | None = None
    places: Places | None = None
    memory: Fullness | None = None
    error: str = ""
    took_ms: float = 0.0
    away_s: float | None = None
    is_silent: bool = False


def read_picture(calls: Calls, before: Picture, *, counting: bool) -> Steps[Picture]:
    """Everything at once: the parts travel together. A part that fails keeps its last answer.

    Raises StoreUnavailable or StoreDenied.
    """
    parts: list[Steps[Any]] = [
        read_stats(calls),
        read_horizon(calls, _SPAN_MS, _STEP_MS, None),
        read_rates(calls),
        fullest(calls.placement),
        *([list_destinations(calls)] if counting else []),
    ]
    stats, horizon, recent, memory, *places = yield from together(parts)
    if isinstance(stats, Exception):
        raise stats
    failed = [each for each in (horizon, recent, *places) if isinstance(each, Exception)]
    return Picture(
        stats=stats,
        horizon=before.horizon if isinstance(horizon, Exception) else horizon,
        recent=before.recent if isinstance(recent, Exception) else recent,
        places=before.places if not places or isinstance(places[0], Exception) else places[0],
        memory=None if isinstance(memory, Exception) else memory,
        error=str(failed[0]) if failed else "",
    )


class Watcher:
    """Looks again and again on a thread of its own, so that keys work while Redis does not answer.

    picture: the last look. changed: called after each.
    """

    def __init__(self, client: Client, every_s: float, changed: Callable[[], None]) -> None:
        self.picture = Picture()
        self._client, self._every_s, self._changed = client, every_s, changed
        self._again, self._is_over = threading.Event(), False
        self._counted_s = -COUNT_EVERY_S
        self._toggles: deque[str] = deque()
        self._outcome = ""
        self._thread = threading.Thread(target=self._run, name="top", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Look no more. Does not wait: Redis may not answer."""
        self._is_over = True
        self._again.set()

    def refresh(self) -> None:
        """Look again at once, without waiting for the next turn."""
        self._counted_s = -COUNT_EVERY_S
        self._again.set()

    def toggle(self, place: str) -> None:
        """Pause this destination, or resume it; `outcome` says whether that was done."""
        self._toggles.append(place)
        self.refresh()

    def outcome(self) -> str:
        """The outcome of the last change; empty when it is asked for again."""
        said, self._outcome = self._outcome, ""
        return said

    def _run(self) -> None:
        while not self._is_over:
            began_s = time.monotonic()
            self._again.clear()
            while self._toggles:
                self._outcome = self._toggled(self._toggles.popleft())
            self.picture = self._look(began_s)
            self._changed()
            self._again.wait(max(0.0, self._every_s - (time.monotonic() - began_s)))

    def _toggled(self, name: str) -> str:
        """Pause or resume a place; the outcome, for people."""
        place = next((each for each in self._places() if each.place == name), None)
        is_paused = place is not None and place.rule.paused
        try:
            if is_paused:
                self._client.destinations.resume(name)
                return f"{name} is resumed"
            self._client.destinations.pause(name)
        except Exception as exc:
            return f"{name} is not changed: {exc}"
        ignoring = self.picture.places.ignoring if self.picture.places else []
        but = f", but {', '.join(ignoring)} is too old to obey" if ignoring else ""
        return f"{name} is paused: what falls due waits{but}; P resumes it"

    def _places(self) -> Sequence[Place]:
        return self.picture.places.places if self.picture.places else ()

    def _look(self, began_s: float) -> Picture:
        before = self.picture
        counting = began_s - self._counted_s >= COUNT_EVERY_S
        try:
            found = self._client.run(lambda calls: read_picture(calls, before, counting=counting))
        except Exception as exc:
            since_s = began_s if before.away_s is None else before.away_s
            kind = "" if isinstance(exc, StoreError) else f"{type(exc).__name__}: "
            is_silent = isinstance(exc, StoreUnavailable)
            return replace(before, error=f"{kind}{exc}", away_s=since_s, is_silent=is_silent)
        if counting:
            self._counted_s = began_s
        return replace(found, took_ms=(time.monotonic() - began_s) * 1e3)
