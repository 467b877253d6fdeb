"""Paging: the ids of parked messages that the worker does not know are read, a page at a time."""

from __future__ import annotations

from delaybridge.message import State
from delaybridge.scan.context import Context
from delaybridge.scan.lanes.parking import NextPage
from delaybridge.scan.leases.exits import ExitReport
from delaybridge.scan.wheel.settling import Telling
from delaybridge.store.messages.destinations_of_state import BoundSlice, bound
from delaybridge.store.protocol.record import ORPHANED

_PAGE = 1000  # parked messages that are read at once: about five milliseconds of Redis


class Paging:
    """Reads the next page of a bucket whose messages are coming back. One at a time."""

    def __init__(self, context: Context, telling: Telling) -> None:
        self._context, self._telling = context, telling
        self._is_under_way = False

    def start(self) -> None:
        """Read a page, if one is lacking."""
        if self._is_under_way:
            return
        page = self._context.lanes.parking.begin_page()
        if page is not None:
            self._is_under_way = True
            self._context.start(self._read(page, page.session.exits.take()))

    async def _read(self, page: NextPage, report: ExitReport) -> None:
        session = page.session
        read = bound(session.bucket, State.PARKED, limit=_PAGE, after=page.after, high=ORPHANED - 1)
        answers = await self._context.asking.ask({session: [*report.commands, read]})
        self._is_under_way = False
        self._telling.answered(answers, {session: report})
        if session in answers:
            found: BoundSlice = answers[session][-1]
            self._context.lanes.add_page(page, found, self._context.clock.now_ms())
