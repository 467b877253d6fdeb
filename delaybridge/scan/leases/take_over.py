"""Take-over: the leases of a worker whose process has ended are released before they run out.

Each worker has a line to each Redis node (`store/redis/lifeline.py`), announces it, and watches
the lines of a few others. If one is gone, its leases are released. Safety does not depend on it:
for the protocol a lease ended early. tests/protocol/taken_over.py has the rules.
"""

from __future__ import annotations

import asyncio
import time
from bisect import bisect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from delaybridge.backoff import Backoff
from delaybridge.errors import StoreError, StoreUnavailable
from delaybridge.events import Emit, WorkerGone
from delaybridge.scan.leases.lease import LeaseOwner
from delaybridge.store.namespace import announcements, registry
from delaybridge.store.protocol.bucket import Bucket
from delaybridge.store.protocol.replies import read_holder
from delaybridge.store.redis.lifeline import Lifeline
from delaybridge.store.redis.store import AsyncStore

_EACH_S, _APART_S = 1.0, 0.3  # between two looks; between the two at which a line is missed
_FOLLOWED_S = 0.8  # the latter where masters change: all have followed within that time
_WATCHED = 3  # fellows: one of those who watch a worker has been there for long enough
_AGAIN_S, _REFUSED_S = (0.05, 1.0), 60.0  # until a line is opened again: first, longest
_MOST, _BY_THIS = 2**53, 1

Entry = tuple[str, Mapping[str, Any], int]
"""A fellow's name, what it announced, and until when."""


class TakeOver:
    """This worker's line to one node, and its watch over those of others.

    line: None while there is none. refusal: why there cannot be one. seen: lines that were there
    when it looked last; only who was seen is missed.
    """

    def __init__(
        self, store: AsyncStore, namespace: str, owner: LeaseOwner, emit: Emit, *,
        node: Callable[[], str], buckets: Callable[[], Iterable[Bucket]],
        living: Callable[[], Sequence[str]], on_change: Callable[[], None],
    ) -> None:  # fmt: skip
        """node, buckets: the node's name and what it has. living: the names of all workers.

        on_change: called when the line is another one, which is to be announced.
        """
        self._store, self._namespace, self._owner, self._emit = store, namespace, owner, emit
        self._node, self._buckets = node, buckets
        self._living, self._on_change = living, on_change
        self.line: Lifeline | None = None
        self.refusal = ""
        self.seen: set[int] = set()

    async def keep(self) -> None:
        """Keep the line open, and watch, until cancelled."""
        backoff = Backoff(*_AGAIN_S, steady_s=_EACH_S)
        while True:
            began_s = time.monotonic()
            try:
                async with self._store.lifeline(self._node()) as line:
                    try:
                        await self._watch(line)
                    finally:
                        self._tell(None)
                pause_s = backoff.next_s(time.monotonic() - began_s)
            except StoreUnavailable:
                pause_s = backoff.next_s(time.monotonic() - began_s)
            except StoreError as exc:
                self.refusal, pause_s = str(exc), _REFUSED_S
            await asyncio.sleep(pause_s)

    def _tell(self, line: Lifeline | None) -> None:
        self.line = line
        self._on_change()

    async def _watch(self, line: Lifeline) -> None:
        """Watch others until the line ends."""
        self.refusal = ""
        self._tell(line)
        watched: Mapping[str, int] = {}
        self.seen = set()
        while not await line.ends(_EACH_S):
            if (names := self._next()) != [*watched]:
                watched = await self._lines_of(names, line)
            ids = {*watched.values()} - {0}
            listed = await line.listed(ids)
            gone = (self.seen & ids) - listed
            if gone and line.answers_s > self._owner.ttl_ms / 1000:
                await self._judge(line)
            if gone or 0 in watched.values():
                watched = {}  # to be read again
            self.seen = listed

    def _next(self) -> list[str]:
        """Those that come next by their names; after the last, the first."""
        others = sorted({*self._living()} - {self._owner.name})
        begin = bisect(others, self._owner.name)
        return [*others[begin:], *others[:begin]][:_WATCHED]

    async def _lines_of(self, names: Sequence[str], line: Lifeline) -> dict[str, int]:
        """Name -> the number of its line, 0 if it has announced none."""
        if not names:
            return {}
        texts = await self._store.run_one(registry.announcements(self._namespace, names))
        said = map(announcements.content_of, texts)
        return {name: _line_of(of, line) for name, of in zip(names, said, strict=True)}

    async def _judge(self, line: Lifeline) -> None:
        """Release the leases of all whose line is missed twice, and who say nothing meanwhile."""
        buckets = [*self._buckets()]
        fleet = registry.fleet(self._namespace)
        said = await self._store.run_isolated([*fleet, *(each.token() for each in buckets)])
        pairs = zip(buckets, said[len(fleet) :], strict=True)
        leases = [(bucket, token) for bucket, token in pairs if isinstance(token, bytes)]
        missed = await _missed([*announcements.announced(said[: len(fleet)], 0)], line)
        await asyncio.sleep(_FOLLOWED_S if self._store.describe() else _APART_S)
        missed = await _missed(missed, line)
        for name, of, expires_ms in () if line.is_stale else missed:
            asked = self._namespace, name, str(of.get("instance")), expires_ms, self._owner.name
            is_over = await self._store.run_one(registry.oust(*asked))
            mine = [bucket.release(t) for bucket, t in leases if read_holder(t) == name]
            if is_over and mine:
                await self._store.run_isolated(mine)
            if is_over == _BY_THIS:
                self._emit(WorkerGone(name=name, host=str(of.get("host")), released=len(mine)))


async def _missed(entries: Sequence[Entry], line: Lifeline) -> list[Entry]:
    """Those of them whose line the server has no more."""
    entries = [each for each in entries if _line_of(each[1], line)]
    listed = await line.listed([_line_of(each[1], line) for each in entries])
    return [each for each in entries if _line_of(each[1], line) not in listed]


def _line_of(of: Mapping[str, Any], line: Lifeline) -> int:
    """The number of an announced line to the same server, 0 if there is none."""
    lines = of.get("lines")
    id = lines.get(line.run_id) if isinstance(lines, dict) else 0
    return id if isinstance(id, int) and 0 < id < _MOST else 0
