"""Publishes to a queue of any of kombu's transports, as `kombu.Producer` would.

Confirmed means: the transport's call has returned; with RabbitMQ: the broker has confirmed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from time import monotonic

from delaybridge.message import Delivery, Destination
from delaybridge.publish import Fault, Outcome, PublishOptions, Verdict
from delaybridge.publish.link import CLOSED, CLOSING, UNCONFIRMED, LinkedPublisher, broker_refusal
from delaybridge.publishers.kombu.thread import ConnectionThread, QueueCheck, kombu
from delaybridge.publishers.kombu.url import connection_settings
from delaybridge.settings.urls import redact

OPEN_TIMEOUT_S = 12.0  # two tries, and the handshake
OVERDUE_S = 0.5  # a call may outlast its own time-out by this much
GOODBYE_TIMEOUT_S = 1.0


class KombuPublisher(LinkedPublisher):
    """A `Publisher` for the queues of one URL, kombu+URL: one message at a time, on a thread."""

    def _configure(self, url: str, options: PublishOptions) -> None:
        self._settings = connection_settings(self.name, url, options)
        self._idle_s = options.heartbeat_s / 4
        self._thread: ConnectionThread | None = None
        self._unconfirmed: dict[Delivery, None] = {}  # given to the thread, without an outcome

    def _send(self, deliveries: Sequence[Delivery]) -> None:
        thread = self._thread
        if thread is None:
            self._refuse(deliveries)
            return
        self._unconfirmed.update(dict.fromkeys(deliveries))
        thread.send(deliveries)

    async def _check(self, destination: Destination) -> str | None:
        if (thread := self._thread) is None:
            return CLOSING
        question = QueueCheck(destination.address, asyncio.get_running_loop().create_future())
        thread.send([question])
        return await question.answer

    def _describe(self) -> str:
        at = redact(self._settings.url)
        return f"kombu {kombu.__version__} at {at}, one message at a time"

    def _is_idle(self) -> bool:
        return not self._unconfirmed

    async def _disconnect(self) -> None:
        thread = self._thread
        self._give_up(UNCONFIRMED, CLOSED)
        self._reports.flush()
        if thread is not None and thread.opened.done():
            # A thread whose call does not return is left behind.
            await asyncio.wait([thread.ended], timeout=GOODBYE_TIMEOUT_S)

    # the thread

    async def _connect_until_lost(self) -> None:
        reason = await self._run()
        self._give_up(reason, reason)

    async def _run(self) -> str:
        """One thread from start to end; returns why it ended, or why it is given up."""
        try:
            url = self._settings.url_with_password()
        except ValueError as exc:
            return f"unreachable: {exc}"
        thread = self._thread = ConnectionThread(
            kombu.Connection(url, **self._settings.arguments),
            self._guarded(self._report_outcomes),
            timeout_s=self._timeout_s,
            idle_s=self._idle_s,
        )
        await asyncio.wait(
            (thread.opened, thread.ended),
            timeout=OPEN_TIMEOUT_S,
            return_when=asyncio.FIRST_COMPLETED,
        )
        if not thread.opened.done() and not thread.ended.done():
            return f"unreachable: no answer within {OPEN_TIMEOUT_S:g} s"
        if not thread.ended.done():
            self._opened()
        while not thread.ended.done():
            since_s = thread.calling_since_s
            if since_s is not None and monotonic() - since_s > self._timeout_s + OVERDUE_S:
                return f"confirm_timeout: none within {self._timeout_s:g} s"
            await asyncio.wait([thread.ended], timeout=self._timeout_s / 4)
        return thread.ended.result()

    def _report_outcomes(self, thread: ConnectionThread) -> None:
        if thread is not self._thread:
            return  # that thread was given up, and its deliveries have their outcomes
        for delivery, outcome in thread.take_outcomes():
            del self._unconfirmed[delivery]
            self._reports.add([delivery], outcome)

    def _abandon(self, reason: str) -> None:
        self._give_up(reason, reason)

    def _give_up(self, reason: str, unavailable: str) -> None:
        """The message being sent ends unknown; the messages after it are refused."""
        self._change(unavailable)
        if (thread := self._thread) is None:
            return
        waiting = thread.stop()
        self._report_outcomes(thread)
        self._thread = None
        refused = [item for item in waiting if isinstance(item, Delivery)]
        for item in waiting:
            if isinstance(item, QueueCheck) and not item.answer.done():
                item.answer.set_result(unavailable)
        for delivery in refused:
            del self._unconfirmed[delivery]
        self._reports.add(refused, broker_refusal(unavailable))
        begun, self._unconfirmed = self._unconfirmed, {}
        self._reports.add(begun, Outcome(Verdict.UNKNOWN, reason, Fault.BROKER))
