"""Limit: how many messages a lane of this worker may publish under the rates of its places."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from random import random

from delaybridge.store.protocol.record import LIMITED

_HOLD_S = 0.2  # a worker holds at most what the rate gives in this time
_PART = 50  # messages for which a worker that has too few permits asks at a time
_PACE_MS = 10, 50  # the shortest and longest pause between two questions for that
_LAPSE_MS = 500  # permits that an idle lane keeps for longer are dropped
_SLOT_MS = 100


class Limit:
    """Permits to publish, granted by the store; each attempt takes one.

    permits: those left; below 0 after messages that could not wait. is_short: the last answer gave
    less than was wanted, so a copy without a permit is parked instead of waiting for the next one.
    ask_at_ms: when more may be asked for. error: why the store does not grant.
    """

    def __init__(self, places: Sequence[tuple[str, float]]) -> None:
        """places: those with a rate, in messages/s, that its destination belongs to."""
        self.places = places
        self.rate = min(rate for _, rate in places)
        least_ms, most_ms = _PACE_MS
        # Small parts: whatever else is due waits while a part is published.
        self._pace_ms = max(least_ms, min(most_ms, 1000 * _PART / self.rate))
        self.permits = 0
        self.is_short = False
        self.ask_at_ms: float = -inf
        self.error: str | None = None
        self._used_ms: float = -inf
        self.planned: dict[int, int] = {}  # slot of due times -> copies that wait for it

    def __str__(self) -> str:
        """Why messages of the lane are parked."""
        return f"{LIMITED}: to {self.rate:.7g}/s" if self.error is None else f"rate: {self.error}"

    @property
    def most(self) -> int:
        """How many permits a worker may hold."""
        return max(1, int(self.rate * _HOLD_S))

    def want(self, waiting: int) -> int:
        """How many permits to ask for, if that many messages wait; 0 or less: none."""
        return min(waiting, self.most) - self.permits

    def plan(self, due_ms: int, now_ms: int) -> bool:
        """Plan one more message for about that time; False if too many are: it cannot be on time.

        So many are kept as the rate and what is saved up allow, if no other worker publishes any.
        """
        slot = due_ms // _SLOT_MS
        if slot not in self.planned:
            past = now_ms // _SLOT_MS
            self.planned = {at: count for at, count in self.planned.items() if at >= past}
        planned = self.planned.get(slot, 0)
        if planned > int(self.rate * (1000 * _HOLD_S + _SLOT_MS) / 1000):
            return False
        self.planned[slot] = planned + 1
        return True

    def granted(self, wanted: int, granted: int, pause_ms: int, now_ms: int) -> None:
        """The store's answer. pause_ms: when it can grant the next one."""
        self.error, self._used_ms = None, now_ms
        self.permits += granted
        self.is_short = granted < wanted
        self.ask_at_ms = now_ms
        if self.is_short:  # the workers of a fleet take turns at random: none always comes last
            self.ask_at_ms += int(max(pause_ms, self._pace_ms) + random() * self._pace_ms)

    def refused(self, error: str, now_ms: int) -> None:
        """The store cannot answer: its key is damaged."""
        self.error, self.is_short = error, True
        self.ask_at_ms = now_ms + 1000

    def use_permit(self, now_ms: int) -> None:
        """One message is published with a permit."""
        self.permits -= 1
        self._used_ms = now_ms

    def lapse(self, now_ms: int, *, is_busy: bool) -> None:
        """Drop the permits of a lane that has been idle for a while."""
        if is_busy:
            self._used_ms = now_ms
        elif now_ms - self._used_ms > _LAPSE_MS:
            self.permits = min(self.permits, 0)

    def clock_stepped(self, step_ms: int) -> None:
        """The store's clock was set: shift all times."""
        self.ask_at_ms += step_ms
        self._used_ms += step_ms
