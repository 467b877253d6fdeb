"""A publisher's link to its broker: connect, stay connected, back off, say `unavailable`.

Its invariant: each delivery ends in exactly one outcome. Whatever a publisher's code raises, in a
call, a task or a callback, ends its session as a lost connection would, and the next one begins.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any, ParamSpec

from delaybridge.backoff import Backoff
from delaybridge.errors import PublishUnavailable
from delaybridge.message import Delivery, Destination
from delaybridge.publish import CONFIRMED, Fault, Outcome, PublishOptions, Report, Verdict

_log = logging.getLogger("delaybridge")


class Owed:
    """Deliveries without an outcome. Only their first outcome is passed on."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._left: set[Delivery] = set()

    def add(self, deliveries: Iterable[Delivery]) -> None:
        """The publisher was handed these."""
        self._left.update(deliveries)

    @property
    def left(self) -> list[Delivery]:
        """All that have no outcome."""
        return list(self._left)

    def has_any_of(self, deliveries: Iterable[Delivery]) -> bool:
        """Whether one of them has no outcome."""
        return not self._left.isdisjoint(deliveries)

    def report(self, deliveries: Sequence[Delivery], outcome: Outcome) -> None:
        """Report this outcome of those of the deliveries that have none."""
        left = self._left
        if not left.issuperset(deliveries):
            deliveries = [delivery for delivery in deliveries if delivery in left]
        left.difference_update(deliveries)
        if deliveries:
            self._report(deliveries, outcome)


def failure(name: str, exc: BaseException) -> Outcome:
    """The outcome of deliveries whose publisher raised this, which is logged."""
    _log.error("%s: publishing raised %s", name, type(exc).__name__, exc_info=exc)
    return Outcome(Verdict.UNKNOWN, f"failed: {type(exc).__name__}", Fault.BROKER)


def call_on_loop(
    loop: asyncio.AbstractEventLoop, callback: Callable[..., None], *arguments: object
) -> None:
    """Call this on the loop, from another thread; nothing happens if the loop has ended."""
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(callback, *arguments)


class Reports:
    """Hands outcomes to `report`: each once, many in one call, never from inside `publish`."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._gathered: dict[Outcome, list[Delivery]] = {}

    def add(self, deliveries: Iterable[Delivery], outcome: Outcome) -> None:
        """Report soon that these deliveries ended in `outcome`."""
        if not self._gathered:
            asyncio.get_running_loop().call_soon(self.flush)
        self._gathered.setdefault(outcome, []).extend(deliveries)

    def confirmed(self, deliveries: Iterable[Delivery]) -> None:
        """Report soon that the broker has these deliveries."""
        self.add(deliveries, CONFIRMED)

    def flush(self) -> None:
        """Report now, without waiting for the turn to end. A publisher calls it when it closes."""
        while self._gathered:
            outcome = next(iter(self._gathered))
            # Taken out first: a `report` that raises is not called with the same ones again.
            deliveries = self._gathered.pop(outcome)
            try:
                if deliveries:
                    self._report(deliveries, outcome)
            except BaseException:
                if self._gathered:
                    asyncio.get_running_loop().call_soon(self.flush)
                raise


FIRST_WAIT_S, LONGEST_WAIT_S, JITTER = 0.2, 10.0, 0.5
STABLE_S = 5.0  # a connection that lasted longer is made again after the first wait
ANSWER_TIMEOUT_S = 10.0  # for an answer to `check`
DRAIN_POLL_S = 0.01
DISCONNECT_S = 2.0  # for the connection to end; a worker that stops waits for it
NOT_YET = "not_connected: not yet"  # its worker has just started
CLOSING, CLOSED = "not_connected: closing", "not_connected: closed"
UNCONFIRMED = "closed: before it was confirmed"
P = ParamSpec("P")


class LinkedPublisher(ABC):
    """The part of a `Publisher` that keeps it connected. Each kind of broker adds the rest."""

    def __init__(
        self,
        name: str,
        url: str,
        *,
        report: Report,
        on_change: Callable[[], None],
        options: PublishOptions,
    ) -> None:
        self.name = name
        self.unavailable: str | None = NOT_YET
        self._owed = Owed(report)
        self._reports = Reports(self._owed.report)
        self._on_change = on_change
        self._keeper: asyncio.Task[None] | None = None
        self._link: asyncio.Task[None] | None = None
        self._tried = asyncio.Event()
        self._is_closing = False
        self._since_s = math.inf  # when the connection opened
        self._timeout_s = options.confirm_timeout_s
        self._configure(url, options)

    async def connect(self) -> None:
        """Try once to connect; PublishUnavailable if that failed. Reconnects from then on."""
        if self._keeper is None:
            self._keeper = asyncio.create_task(self._keep_connected(), name=f"{self.name}: keeper")
        await self._tried.wait()
        if self.unavailable is not None:
            raise PublishUnavailable(f"{self.name}: {self.unavailable}")

    def publish(self, deliveries: Sequence[Delivery]) -> None:
        """Hand a batch to the broker in this order; outcomes arrive through `report`."""
        self._owed.add(deliveries)
        if self._is_closing or self.unavailable is not None:
            self._refuse(deliveries)
            return
        try:
            self._send(deliveries)
        except Exception as exc:
            self._failed(exc)

    async def check(self, destination: Destination) -> str | None:
        """The reason why this destination would be refused now; None if none is known."""
        if self._is_closing or self.unavailable is not None:
            return self.unavailable or CLOSING
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                return await self._check(destination)
        except TimeoutError:
            return f"no_answer: within {ANSWER_TIMEOUT_S:g} s"

    def describe(self) -> str:
        """One line for people. No secrets."""
        text = self._describe()
        return text if self.unavailable is None else f"{text}: {self.unavailable}"

    async def close(self, timeout_s: float) -> None:
        """Wait at most `timeout_s` for confirms, report the rest UNKNOWN, disconnect."""
        self._is_closing = True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while not self._is_idle():
                    await asyncio.sleep(DRAIN_POLL_S)
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.wait([self._keeper])
        if self._link is not None:
            await asyncio.wait([self._link])
        outcome = Outcome(Verdict.UNKNOWN, UNCONFIRMED, Fault.BROKER)
        try:
            async with asyncio.timeout(DISCONNECT_S):
                await self._disconnect()
        except TimeoutError:
            pass  # what does not end by then is left behind
        except Exception as exc:
            outcome = failure(self.name, exc)
        self._owed.report(self._owed.left, outcome)

    # each kind of broker implements these

    @abstractmethod
    def _configure(self, url: str, options: PublishOptions) -> None:
        """Read the URL and the options; ConfigError if they cannot be used. Connects to nothing."""

    @abstractmethod
    async def _connect_until_lost(self) -> None:
        """Connect, call `_opened`, and return when the connection is lost or could not be opened.

        Before it returns it has called `_change` with the reason.
        """

    @abstractmethod
    def _send(self, deliveries: Sequence[Delivery]) -> None:
        """`publish`, while the broker is available and the publisher is not closing."""

    @abstractmethod
    async def _check(self, destination: Destination) -> str | None:
        """`check`, while the broker is available. It is cancelled if it takes too long."""

    @abstractmethod
    def _describe(self) -> str:
        """`describe`, without the reason why the broker is unavailable."""

    @abstractmethod
    def _is_idle(self) -> bool:
        """Whether every delivery has its outcome."""

    @abstractmethod
    def _abandon(self, reason: str) -> None:
        """Report deliveries without an outcome, and drop the connection; `_change` was called.

        What may have been written is UNKNOWN, the rest is refused, both for this reason.
        """

    @abstractmethod
    async def _disconnect(self) -> None:
        """Report deliveries without an outcome, flush the reports, end the connection for good."""

    # each kind of broker may call these

    def _guarded(self, call: Callable[P, None]) -> Callable[P, None]:
        """The same call, for callbacks: what it raises ends the session."""

        def guarded(*args: P.args, **kwargs: P.kwargs) -> None:
            try:
                call(*args, **kwargs)
            except Exception as exc:
                self._failed(exc)

        return guarded

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """A task; what it raises ends the session."""
        task = asyncio.create_task(work)
        task.add_done_callback(self._look_at)
        return task

    def _opened(self) -> None:
        """The connection is open, and the broker takes messages."""
        self._since_s = asyncio.get_running_loop().time()
        self._change(None)
        self._tried.set()

    def _change(self, unavailable: str | None) -> None:
        """Set `unavailable`, and tell the scanner if that changed it."""
        if unavailable != self.unavailable:
            self.unavailable = unavailable
            self._on_change()

    def _refuse(self, deliveries: Sequence[Delivery]) -> None:
        """Report them as never written."""
        self._reports.add(deliveries, broker_refusal(self.unavailable or CLOSING))

    async def _keep_connected(self) -> None:
        backoff = Backoff(FIRST_WAIT_S, LONGEST_WAIT_S, jitter=JITTER, steady_s=STABLE_S)
        now_s = asyncio.get_running_loop().time
        while True:
            self._since_s = math.inf
            self._link = self._spawn(self._connect_until_lost())
            try:
                await asyncio.wait([self._link])
            finally:
                self._link.cancel()
            self._tried.set()
            await asyncio.sleep(backoff.next_s(now_s() - self._since_s))

    def _look_at(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (exc := task.exception()) is not None:
            self._failed(exc)

    def _failed(self, exc: BaseException) -> None:
        """Something raised that must not: end the session, and every delivery with it."""
        outcome = failure(self.name, exc)
        self._change(outcome.reason)
        try:
            self._abandon(outcome.reason)
        except Exception as again:
            failure(self.name, again)
        # In a later turn, after what was reported just now: for those that nothing knows any more.
        loop = asyncio.get_running_loop()
        loop.call_soon(self._owed.report, self._owed.left, outcome)
        if self._link is not None:
            self._link.cancel()


def broker_refusal(reason: str) -> Outcome:
    """The outcome of deliveries that were never written, because the broker is unavailable."""
    return Outcome(Verdict.REFUSED, reason, Fault.BROKER)
