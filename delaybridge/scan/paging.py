"""Paging: the ids of parked messages that the worker does not know are read, a page at a time."""

from __future__ import annotations

from delaybridge.message import State
from delaybridge.scan.context import Context
from delaybridge.scan.exits import ExitReport
from delaybridge.scan.lane import Lane
from delaybridge.scan.session import Session
from delaybridge.scan.telling import Telling
from delaybridge.store.bound import BoundSlice, bound
from delaybridge.store.command import RedisCommand
from delaybridge.store.record import ORPHANED

_PAGE = 1000  # parked messages that are read at once: about five milliseconds of Redis


class Paging:
    """Reads the next page for a lane whose messages are coming back. One at a time."""

    def __init__(self, context: Context, telling: Telling) -> None:
        self._context, self._telling = context, telling
        self._is_under_way = False

    def start(self) -> None:
        """Read a page, if one is lacking.

        All that was parked before must be in the store by then: what is parked later is noted.
        """
        lacking = self._context.lanes.parking.lacking
        if lacking is None or self._is_under_way:
            return
        lane, session = lacking
        parked = lane.parked.get(session)
        if parked is None or session.draining or session.exits.is_parking:
            return
        self._context.lanes.parking.lacking = None
        self._is_under_way = True
        page = bound(
            session.bucket, State.PARKED,
            limit=_PAGE, after=parked.begin_page(), high=ORPHANED - 1,
        )  # fmt: skip
        self._context.start(self._read(lane, session, session.exits.take(), page))

    async def _read(
        self,
        lane: Lane,
        session: Session,
        report: ExitReport,
        page: RedisCommand[BoundSlice],
    ) -> None:
        answers = await self._context.asking.ask({session: [*report.commands, page]})
        self._is_under_way = False
        self._telling.answered(answers, {session: report})
        if session in answers:
            found: BoundSlice = answers[session][-1]
            self._context.lanes.add_page(lane, session, found, self._context.clock.now_ms())
