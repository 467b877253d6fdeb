"""Allowances: asks the store for permits, for the lanes with a rate whose messages wait."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from math import inf
from typing import Any

from delaybridge.errors import StoreError
from delaybridge.scan.lanes.lane import Lane
from delaybridge.scan.lanes.lanes import Lanes
from delaybridge.scan.lanes.limit import Limit
from delaybridge.scan.leases.bucket_calls import BucketCalls
from delaybridge.store.protocol.command import RedisCommand

_LANES = 200  # in one question; the others are in the next ones
_PATIENCE_MS = 200  # with an answer

Allow = Callable[[Sequence[tuple[int, Sequence[tuple[str, float]]]]], RedisCommand[Any]]
"""Makes the command that asks, for each lane, for a number of messages at its places."""


class Allowances:
    """Asks for all lanes together, once at a time. Lanes that nothing waits for ask for nothing.

    next_look_ms: when to ask again.
    """

    def __init__(self, lanes: Lanes, calls: BucketCalls, allow: Allow) -> None:
        self._window, self._rule_book = lanes.window, lanes.routing.rule_book
        self._parking, self._returning = lanes.parking, lanes.returning
        self._calls, self._allow = calls, allow
        self._under_way, self._asked_ms = False, 0
        self._holding: set[Lane] = set()  # lanes that may have permits
        self.next_look_ms = inf

    def lapse(self, now_ms: int) -> None:
        """Drop the permits that idle lanes did not use. Call it before copies are admitted."""
        for lane in list(self._holding):
            if lane.limit is None or lane.limit.permits <= 0:
                self._holding.discard(lane)
            else:
                lane.limit.lapse(now_ms, is_busy=self._is_waiting(lane))

    def _is_waiting(self, lane: Lane) -> bool:
        """Whether messages of the lane are ripe, parked or on their way back."""
        return lane in self._window.ripe or bool(lane.parked)

    def _limited(self, now_ms: int) -> Iterator[tuple[Lane, Limit, int]]:
        """Lanes with a rate, and how many of their messages wait for a permit."""
        if not self._rule_book.has_rates:
            return
        for lane in {**self._window.ripe, **self._parking.troubled}:
            if lane.limit is not None:
                waiting = self._window.ripe[lane] + self._returning.can_return(lane, now_ms)
                yield lane, lane.limit, waiting

    def start(self, now_ms: int) -> None:
        """Ask, if a lane lacks permits. Call it after copies were admitted: some may lack one."""
        self.next_look_ms = inf
        if self._under_way:
            self._lose_patience(now_ms)
            return
        wanted: list[tuple[Lane, Limit, int]] = []
        for lane, limit, waiting in self._limited(now_ms):
            want = limit.want(waiting)
            if want > 0 and limit.ask_at_ms <= now_ms:
                wanted.append((lane, limit, want))
            elif want > 0:
                self.next_look_ms = min(self.next_look_ms, limit.ask_at_ms)
        if wanted:
            self._under_way, self._asked_ms = True, now_ms
            # In an order of their own each time: lanes that share a place get shares of it.
            asked = random.sample(wanted, min(_LANES, len(wanted)))
            self._calls.start(self._ask(asked))

    def _lose_patience(self, now_ms: int) -> None:
        """If the answer takes long, park what waits for it: all other messages would wait, too.

        The rates of a Cluster's fleet are on one node; it may be silent while the others answer.
        """
        self._asked_ms = min(self._asked_ms, now_ms)
        self.next_look_ms = self._asked_ms + _PATIENCE_MS
        if now_ms >= self.next_look_ms:
            self.next_look_ms = inf
            for _, limit, _ in self._limited(now_ms):
                if limit.permits <= 0 and not limit.is_short:
                    limit.is_short = True
                    self._calls.ring()

    async def _ask(self, asked: Sequence[tuple[Lane, Limit, int]]) -> None:
        command = self._allow([(want, limit.places) for _, limit, want in asked])
        answers = await self._calls.ask_one(command)
        now_ms = self._calls.clock.now_ms()
        self._under_way = False
        for n, (lane, limit, want) in enumerate(asked):
            if isinstance(answers, StoreError):
                limit.refused(str(answers), now_ms)
            else:
                granted, pause_ms = answers[n]
                limit.granted(want, granted, pause_ms, now_ms)
                self._holding.add(lane)
