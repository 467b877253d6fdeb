"""The part of a worker that moves messages to other buckets: of those whose leases it holds."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Coroutine, Iterable, Sequence
from typing import Any

from delaybridge.errors import StoreError, StoreUnavailable
from delaybridge.store.namespace import registry
from delaybridge.store.protocol import moves
from delaybridge.store.protocol.bucket import Bucket
from delaybridge.store.protocol.moves import EMPTY, GOES, Lifted
from delaybridge.store.protocol.verbs import RedisCommand
from delaybridge.worker.eventlog import say
from delaybridge.worker.parts import Commands, Part, RunView

_IDLE_S, _SOON_S = 0.2, 0.02
_RELEASED_S = 2.0
_DRAINS_S = 1.0  # so long it may take to give leases back
_PATIENT_S, _TOLD_S = 5.0, 20.0  # what waits so long is told; so long after it was last seen
_AT_ONCE, _OF_ALL = 8, 16  # buckets that give their messages away: of a worker, of all together
_LEDGER_AGAIN_S = 5.0
_LOOK_S = 0.5  # how often it looks how many they are
_PAGE_MESSAGES, _PAGE_BYTES = 200, 2**18
_BUSY = 0.2  # of the time: all else of this worker, and of Redis, goes on meanwhile


class Moving:
    """One bucket that gives its messages away. at_s: when to go on, on the monotonic clock.

    is_awaited: its last messages are due, and what is due at its targets waits for them. is_empty:
    it has given all that it had.
    """

    def __init__(self, bucket: Bucket) -> None:
        self.bucket, self.at_s = bucket, 0.0
        self.landed, self.back = b"", list[bytes]()
        self.is_awaited = self.is_empty = False
        self.ends_s = 0.0  # when to try to end it


class Mover(Part):
    """Moves messages as long as the namespace's layout asks for it, and is not paused.

    It may end at any time: another worker goes on where it was.
    """

    name = "resize"

    def begin(self, run: RunView) -> None:
        """Move messages of this run's buckets until `close`."""
        self._run, self._store, self._following = run, run.store, run.calls.following
        self._moving: dict[int, Moving] = {}
        self._rested_s = 0.0  # until then, only what others wait for
        self._looked_s = -math.inf
        self._waits, self._since_s, self._until_s, self._is_told = "", 0.0, -math.inf, False
        self._following.resting.clear()

    def tasks(self) -> Iterable[Coroutine[Any, Any, None]]:
        """Move messages until the run ends."""
        return [self._move()]

    async def _move(self) -> None:
        while True:
            layout = self._following.layout
            if layout is None or layout.next is None:
                self._moving.clear()
                self._until_s = min(self._until_s, time.monotonic())  # nothing waits any more
                await asyncio.sleep(_IDLE_S)
                continue
            try:
                await asyncio.sleep(await self._step())
            except StoreError as exc:
                self._wait(str(exc), is_told=not isinstance(exc, StoreUnavailable))
                await asyncio.sleep(1.0)

    def commands(self) -> Commands:
        """Something to be answered while messages wait, and once more: so the pulse tells why."""
        return [registry.store_time()] if time.monotonic() < self._until_s + _TOLD_S else ()

    def take_replies(self, replies: Sequence[Any]) -> None:
        """Say why messages wait, if they have for some seconds."""
        if self._is_told and self._since_s + _PATIENT_S < time.monotonic() < self._until_s:
            raise StoreError(self._waits)

    def _wait(self, reason: str, *, is_told: bool = True) -> None:
        now_s = time.monotonic()
        is_new = now_s > self._until_s
        if is_new or reason != self._waits:
            say(logging.WARNING, "resize_waits", reason=reason)
        self._since_s = now_s if is_new else self._since_s
        self._waits, self._until_s, self._is_told = reason, now_s + _TOLD_S, is_told

    async def _step(self) -> float:
        """One page of a bucket, or what else is to be done; how long to wait then."""
        held = {s.bucket.number: s.bucket for s in self._run.sessions()}
        await self._choose(held)
        now_s = time.monotonic()
        rest_s = self._rested_s - now_s
        ready = [
            each
            for each in self._moving.values()
            if each.at_s <= now_s and (each.is_awaited or rest_s <= 0)
        ]
        if not ready:
            if not self._moving and await self._finished():
                return 0.0
            return _IDLE_S if not self._moving else rest_s if 0 < rest_s < _SOON_S else _SOON_S
        one = min(ready, key=lambda each: (not each.is_awaited, each.at_s))
        one.at_s = now_s + 1.0  # should this fail, others come first
        if await self._advance(one):
            one.at_s = 0.0
            ended_s = time.monotonic()
            self._rested_s = ended_s + (ended_s - now_s) * (1 / _BUSY - 1)
        return 0.0

    async def _choose(self, held: dict[int, Bucket]) -> None:
        """Which buckets to work on: those that have begun, and then others, a few at a time."""
        following, layout = self._following, self._following.layout
        assert layout is not None
        # Those that give to one bucket go together: it waits for each of them.
        sources = sorted((n for n in held if n in layout.here), key=lambda n: layout.targets(n)[0])
        self._keep({number: held[number] for number in sources})
        soon_s = time.monotonic() + _DRAINS_S
        if not any(each.is_awaited and each.at_s < soon_s for each in self._moving.values()):
            fresh = [held[n] for n in sources if not following.has_begun(n)]
            await self._change([] if layout.paused else fresh)

    async def _change(self, fresh: Sequence[Bucket]) -> None:
        """Begin with some of these buckets, and end those that have given everything."""
        begun = [self._begin(each) for each in fresh[: await self._room() if fresh else 0]]
        now_s = time.monotonic()
        empty = [each for each in self._moving.values() if each.is_empty and each.ends_s <= now_s]
        ended = [self._end(each) for each in empty]
        await asyncio.gather(*begun, *ended)

    async def _room(self) -> int:
        """How many buckets may begin now: what is due at a target waits for all that have begun.

        A worker that was killed leaves some that have, and the next one does not hold the same.
        """
        now_s = time.monotonic()
        if now_s < self._looked_s + _LOOK_S or len(self._moving) >= _AT_ONCE:
            return 0
        self._looked_s = now_s
        return max(0, min(_AT_ONCE - len(self._moving), _OF_ALL - await self._under_way()))

    async def _under_way(self) -> int:
        """How many buckets give their messages away now, whoever holds them."""
        following, layout = self._following, self._following.layout
        assert layout is not None
        await self._store.complete(following.look_again())
        here = layout.here.numbers
        return sum(following.has_begun(n) and not following.is_retired(n) for n in here)

    def _keep(self, sources: dict[int, Bucket]) -> None:
        """Work on those of the sources held that have begun, and on no others."""
        following = self._following
        for number in [*self._moving]:
            if number not in sources and number not in following.resting:
                del self._moving[number]  # another worker has it
        for number, bucket in sources.items():
            if following.has_begun(number) and number not in self._moving:
                self._moving[number] = Moving(bucket)

    async def _begin(self, bucket: Bucket) -> None:
        """Give the lease back, then give the bucket its other keys, and take it again."""
        if not await self._unheld(bucket, moves.begin(bucket)):
            self._wait(f"a worker holds bucket {bucket.number}")

    async def _end(self, one: Moving) -> None:
        """Give the lease back, and delete what is left."""
        if self._store.recorder is not None:
            try:
                await self._store.complete(self._store.recorder.retiring(one.bucket))
            except StoreError as exc:  # the ledger is away: others go on giving meanwhile
                one.ends_s = time.monotonic() + _LEDGER_AGAIN_S
                self._wait(str(exc))
                return
        await self._unheld(one.bucket, moves.retire(one.bucket))
        self._moving.pop(one.bucket.number, None)

    async def _unheld(self, bucket: Bucket, command: RedisCommand[bool]) -> bool:
        """Whether a command was done that needs the bucket's lease to be free; then go on."""
        resting, number = self._following.resting, bucket.number
        resting.add(number)
        try:
            self._run.regroup()
            while any(s.bucket.number == number for s in self._run.sessions()):
                await asyncio.sleep(_SOON_S / 4)
            done, until_s = await self._store.run_one(command), time.monotonic() + _RELEASED_S
            while not done and time.monotonic() < until_s:  # the lease is still on its way back
                await asyncio.sleep(_SOON_S / 4)
                done = await self._store.run_one(command)
            await self._store.complete(self._following.look_at([number]))
        finally:
            resting.discard(number)
            self._run.regroup()
        return done

    async def _advance(self, one: Moving) -> bool:
        """Forget what has landed, lift the next page, land it; whether there was one."""
        stamp = moves.new_page()
        layout = self._following.layout
        assert layout is not None
        targets = len(layout.targets(one.bucket.number))
        limit = max(_PAGE_MESSAGES, targets)  # each page is told to all of them
        lift = moves.lift(
            one.bucket, one.landed, stamp, limit, _PAGE_BYTES, one.back, targets=targets
        )
        found: Lifted | None = await self._store.run_one(lift)
        if found is None:
            raise StoreError(f"redis: bucket {one.bucket.number} has lost its marks")
        one.landed, one.back = b"", []
        one.is_awaited = found.phase == GOES and (found.page is None or found.page.gate == b"0")
        if found.page is not None:
            refused = await self._store.complete(self._following.land(one.bucket, found.page))
            one.landed = found.page.stamp
            one.back = await self._put_back(one.bucket, found.page, refused.values())
        elif found.phase == EMPTY:
            one.is_empty, one.at_s = True, math.inf
        else:
            one.at_s = time.monotonic() + found.wait_ms / 1000
        return found.page is not None

    async def _put_back(
        self, bucket: Bucket, page: moves.MovedPage, refused: Iterable[Sequence[bytes]]
    ) -> list[bytes]:
        """Another message has their id where they belong: they stay until it is gone."""
        ids = [id for some in refused for id in some]
        if ids:
            entries = [each for each in page.entries if each.id in ids]
            await self._store.run_one(moves.land_back(bucket, page, entries))
            shown = ", ".join(repr(id.decode(errors="replace")[:60]) for id in ids[:3])
            self._wait(f"{shown}: another message has its id there, under another key")
        return ids

    async def _finished(self) -> bool:
        """Whether every bucket has given everything: then the next ones are all there are."""
        following, layout = self._following, self._following.layout
        assert layout is not None
        await self._store.complete(following.look_again())
        if not all(map(following.is_retired, layout.here.numbers)):
            return False
        await self._store.complete(following.look_at(layout.here.numbers))
        if not all(map(following.is_retired, layout.here.numbers)):
            self._run.regroup()  # Redis came back with an older past
            return False
        after = layout.moved()
        command = registry.relayout(self._run.calls.namespace, layout, after, following.birth)
        if await self._store.run_one(command):
            following.learn(after, following.birth)
            say(logging.INFO, "resized", buckets=after.here.size)
            self._run.regroup()
        return True
