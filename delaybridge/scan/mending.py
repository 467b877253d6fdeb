"""Mending: the keys of a bucket are compared with one another, and what contradicts is put right.

A key may vanish, or come back as it was long ago: a wrong DEL, a partial restore. Each record is in
exactly one of the bucket's sets, so their sizes add up, and who counts them notices. What is in no
set may be on this worker's wheel: the session ends first, and the next one mends before it claims.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from delaybridge.events import OrphansMended
from delaybridge.scan.lanes.lanes import Lanes
from delaybridge.scan.leases.bucket_calls import BucketCalls
from delaybridge.scan.leases.session import Session
from delaybridge.store.namespace import orphans
from delaybridge.store.namespace.orphans import KeySizes, Mended, WalkedPage, WalkPlace
from delaybridge.store.protocol.verbs import RedisCommand

_MOST_AT_ONCE = 100  # orphans of one bucket, overdue by over an hour, that are published unasked
_WALKS = 3  # of one session: a further key may vanish during the first
_ROUND_S = 3600.0  # in which each bucket is looked at as a whole
_LONGEST_S, _SHORTEST_S = 60.0, 0.02  # between two pages of it

Retake = Callable[[Session, str], None]


class Mending:
    """Compares and mends the buckets of one scanner."""

    def __init__(
        self, sessions: Mapping[int, Session], lanes: Lanes, calls: BucketCalls, *, retake: Retake,
        has_ledger: bool,
    ) -> None:  # fmt: skip
        """retake: ends a session, for a new one."""
        self._held, self._routing, self._calls = sessions, lanes.routing, calls
        self._retake, self._has_ledger = retake, has_ledger
        self._looks: dict[Session, WalkPlace] = {}  # the next page of each, in turn

    async def compare(self) -> None:
        """Count what each key of the buckets held says, and retake those that are unsound."""
        await self._compare(self._sessions())

    async def is_sound(self, session: Session) -> bool:
        """The same for one bucket: whether the session goes on."""
        if not session.draining:
            await self._compare([session])
        return session.alive

    async def _compare(self, sessions: Iterable[Session]) -> None:
        asked = {s: [orphans.count(s.bucket, s.owner)] for s in sessions}
        for session, (counts,) in (await self._calls.ask(asked)).items():
            # What was claimed, and had lost its record, was buried: the ledger has it.
            is_lacking = self._has_ledger and counts.bare > session.counts.bare
            session.counted(counts)
            if is_lacking or counts.difference != session.residue:
                self._retake(session, f"its keys contradict one another: {counts}")

    def _sessions(self) -> list[Session]:
        return [s for s in self._held.values() if s.ready and not s.draining]

    # a new session

    async def mend(self, session: Session) -> None:
        """Return when a new session's bucket is sound, or the session is over, or draining.

        What no walk can mend is remembered: it is no reason to end the session again.
        """
        total, walks = Mended(), 0
        while session.stays and session.counts.difference != session.residue:
            if walks == _WALKS:
                break
            walks += 1
            total = total.plus(await self._walk(session))
            await self._count(session)
        session.mended(walks)
        if any(total):
            self._calls.emit(OrphansMended(bucket=session.bucket.number, **total._asdict()))

    async def _count(self, session: Session) -> None:
        counts: KeySizes | None = await self._ask(
            session, orphans.count(session.bucket, session.owner)
        )
        session.counted(counts or session.counts)

    async def _walk(self, session: Session) -> Mended:
        """Go through the bucket, and mend it page by page."""
        how = "hold" if await self._overdue(session) > _MOST_AT_ONCE else "mend"
        total, place = Mended(), orphans.FIRST
        while (page := await self._page(session, place, how)) is not None:
            total = total.plus(page.mended)
            following = place.after(page)
            if following is None:
                break
            place = following
        return total

    async def _overdue(self, session: Session) -> int:
        """How many orphans are overdue by over an hour, or parked as such."""
        place = orphans.FIRST
        # Those that an interrupted walk has parked already are of the same loss.
        overdue = await self._ask(session, orphans.waiting(session.bucket)) or 0
        while place.of == orphans.FIRST.of:
            page = await self._page(session, place, "look")
            if page is None:
                break
            overdue += page.overdue
            place = place.after(page) or place
        return overdue

    async def _page(self, session: Session, place: WalkPlace, how: str) -> WalkedPage | None:
        """None: the session is over, or draining."""
        asked = orphans.mend(session.bucket, session.owner, place, how)
        page: WalkedPage | None = await self._ask(session, asked)
        return page

    async def _ask(self, session: Session, command: RedisCommand[Any]) -> Any:
        if not session.stays:
            return None
        answers = await self._calls.ask({session: [command]})
        return answers[session][0] if session in answers else None

    # equal losses hide from the counts

    async def look_further(self) -> float:
        """Look at one more page of a bucket held; returns the seconds until the next is due."""
        sessions = self._sessions()
        if not sessions:
            return _LONGEST_S
        known = {s: place for s, place in self._looks.items() if s in sessions}
        self._looks = known | {s: orphans.FIRST for s in sessions if s not in known}
        session = next(iter(self._looks))
        place = self._looks.pop(session)
        page = await self._page(session, place, "look")
        if page is not None and page.found:
            self._retake(session, f"its keys contradict one another: {page.found} in {place.of}")
        elif page is not None and self._waits_in_vain(session, page):
            self._retake(session, "messages of pull topics are not in `ready`")
        elif page is not None:
            self._looks[session] = place.after(page) or orphans.FIRST
        pages = max(1, sum(s.counts.pages(at.limit) for s, at in self._looks.items()))
        return min(_LONGEST_S, max(_SHORTEST_S, _ROUND_S / pages))

    def _waits_in_vain(self, session: Session, page: WalkedPage) -> bool:
        """Whether consumers cannot receive messages that this session does not hold back either.

        The next session brings these back to `due`, and offers them again.
        """
        now_ms = self._calls.clock.now_ms()
        for to, score in page.unoffered:
            held = self._routing.route(to, now_ms)[1].parked.get(session)
            if held is None or (not held.is_returning and score < held.first):
                return True
        return False
