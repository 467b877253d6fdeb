"""The pulse of a process: once a second, one pipeline with the commands of all its parts."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Iterable, Sequence
from itertools import chain, islice
from typing import Any

from delaybridge.errors import StoreUnavailable
from delaybridge.store.namespace import registry
from delaybridge.store.redis.store import AsyncStore
from delaybridge.worker.eventlog import say
from delaybridge.worker.parts import Commands, Part

_log = logging.getLogger("delaybridge")
EVERY_S = 1.0
_LAST_BEAT_S = 0.2
# A beat falls in the middle of a second of Redis' clock, so that one that comes a little early or
# late still falls in its own second. The workers of a fleet do not all beat at the same moment.
_PHASE_S = (0.35, 0.65)
_CHARS = 200
_OFF_S = 0.05  # a phase is corrected if it is off by more


class Pulse:
    """Beats once a second, never twice at a time. No error of Redis or of a part stops it.

    What a part raises, or an error among its replies, is logged when it begins and when it is over.
    While Redis does not answer, a beat takes as long as the store's time-out.
    """

    def __init__(self, store: AsyncStore, parts: Iterable[Part] = ()) -> None:
        """parts: others may be added to the list, and removed, at any time."""
        self.parts = list(parts)
        self._store = store
        self._phase_s = random.uniform(*_PHASE_S)
        self._under_way = asyncio.Lock()
        self._failing: dict[str, Exception] = {}  # name of a part -> its error

    async def run(self) -> None:
        """Beat until cancelled, the first time at once."""
        planned_s = time.monotonic()
        while True:
            store_s = await self.beat()
            now_s = time.monotonic()
            planned_s = next_beat_s(planned_s, now_s, store_s, self._phase_s)
            await asyncio.sleep(planned_s - time.monotonic())

    async def beat(self) -> float | None:
        """Beat once, now. Returns what Redis' clock is ahead of the monotonic one, if it is known.

        Raises nothing.
        """
        async with self._under_way:
            asked = [(part, self._commands(part)) for part in self.parts]
            asked = [(part, commands) for part, commands in asked if commands]
            if not asked:
                return None
            sent_s = time.monotonic()
            store_us, *replies = await self._replies(asked)
            middle_s = (sent_s + time.monotonic()) / 2
            left = iter(replies)
            for part, commands in asked:
                self._take(part, list(islice(left, len(commands))))
        return None if isinstance(store_us, Exception) else store_us / 1e6 - middle_s

    async def last_beat(self) -> None:
        """Beat once more, for what happened since the last time, if Redis answers soon."""
        try:
            async with asyncio.timeout(_LAST_BEAT_S):
                await self.beat()
        except TimeoutError:
            pass

    async def _replies(self, asked: Sequence[tuple[Part, Commands]]) -> list[Any]:
        """The store's clock, then the replies to all parts."""
        commands = chain.from_iterable(commands for _, commands in asked)
        try:
            return await self._ask([registry.store_time(), *commands])
        except Exception as exc:
            _log.debug("the pulse failed", exc_info=exc)
        found: list[Any] = [StoreUnavailable("not asked")]
        for _, own in asked:  # one part's commands cannot be sent: which is it?
            try:
                found += await self._ask(own)
            except Exception as exc:
                found += [exc] * len(own)
        return found

    async def _ask(self, commands: Commands) -> list[Any]:
        # What a worker says of itself must not wait for a database.
        return await self._store.run_each(commands, redis_only=True)

    def _commands(self, part: Part) -> Commands:
        try:
            return part.commands()
        except Exception as exc:
            self._note(part, exc)
            return ()

    def _take(self, part: Part, replies: Sequence[Any]) -> None:
        error = next((reply for reply in replies if isinstance(reply, Exception)), None)
        try:
            part.take_replies(replies)
        except Exception as exc:
            error = exc
        self._note(part, error)

    def _note(self, part: Part, error: Exception | None) -> None:
        """Log an error that was not there at the last beat; or that there is none any more."""
        if isinstance(error, StoreUnavailable):
            return  # whoever needs Redis says `store_silent`
        before = self._failing.pop(part.name, None)
        if error is not None:
            # Without the traceback, whose frames hold all that was sent.
            self._failing[part.name] = error.with_traceback(None)
            if type(error) is not type(before):
                say(logging.WARNING, "pulse_failed", part=part.name, reason=_reason(error))
        elif before is not None:
            say(logging.INFO, "pulse_mended", part=part.name)

    def announced(self) -> dict[str, str]:
        """The parts that fail, and why, for the worker's announcement."""
        return {name: _reason(error)[:_CHARS] for name, error in self._failing.items()}


def next_beat_s(planned_s: float, now_s: float, store_s: float | None, phase_s: float) -> float:
    """When the next beat is due, on the monotonic clock: a second after the last, without drift.

    planned_s: when the last was due. now_s: beats that were missed by then are left out. store_s:
    what Redis' clock is ahead; if it is known, the beat comes at this phase of a second of it.
    """
    next_s = planned_s + EVERY_S
    if next_s <= now_s:
        next_s += (now_s - next_s) // EVERY_S + EVERY_S
    if store_s is not None:
        # Rather sooner than later: no pause is longer than a second.
        off_s = (next_s + store_s - phase_s + _OFF_S) % EVERY_S - _OFF_S
        if off_s > _OFF_S and next_s - off_s > now_s:
            next_s -= off_s
    return next_s


def _reason(error: Exception) -> str:
    return str(error) or type(error).__name__
