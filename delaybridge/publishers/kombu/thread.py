"""One kombu connection on a thread of its own, since every call may block.

py-amqp takes the next confirm to be for the message just published, whichever message it names. So
the thread publishes one message at a time, and after anything but a certain refusal the connection
is thrown away, and the thread with it.

A `ThreadPoolExecutor` would not do: the interpreter waits for a pool's threads when it exits, and a
call to a broker may never return. Heartbeats have to be sent from this thread, too.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Iterable
from importlib import import_module
from queue import Empty, SimpleQueue
from threading import Thread
from time import monotonic
from typing import Any, NamedTuple

from delaybridge.errors import DETAIL_LIMIT, printable
from delaybridge.message import Delivery
from delaybridge.publish import CONFIRMED, Fault, Outcome, Verdict
from delaybridge.publish.link import call_on_loop
from delaybridge.publish.rabbitmq.channel import NACKED, refusal
from delaybridge.publishers.kombu.encoding import message
from delaybridge.publishers.redis_streams.outcomes import refusal as redis_refusal
from delaybridge.settings.urls import redact_text

kombu: Any = import_module("kombu")  # half typed
amqp: Any = import_module("amqp")

DRAIN_S = 0.001


class QueueCheck(NamedTuple):
    """A question: would a message for this queue be refused? Answered with a reason, or None."""

    queue: str
    answer: asyncio.Future[str | None]


class ConnectionThread:
    """Publishes messages in order over one connection, until that is lost or stopped.

    `on_outcomes` is called on the loop when `take_outcomes` has something to return.
    opened: done once the connection is open. ended: done when the thread is finished, with the
    reason. calling_since_s: when its present call began, by the monotonic clock; None between
    calls.
    """

    def __init__(
        self,
        connection: Any,
        on_outcomes: Callable[[ConnectionThread], None],
        *,
        timeout_s: float,
        idle_s: float,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self.opened: asyncio.Future[None] = self._loop.create_future()
        self.ended: asyncio.Future[str] = self._loop.create_future()
        self.calling_since_s: float | None = None
        self._connection = connection
        self._channel: Any = None
        self._on_outcomes = on_outcomes
        self._timeout_s, self._idle_s = timeout_s, idle_s
        self._work: SimpleQueue[Delivery | QueueCheck | None] = SimpleQueue()  # None: stop
        self._outcomes: deque[tuple[Delivery, Outcome]] = deque()
        self._returned: str | None = None  # why the broker returned the present message
        self._lost: str | None = None  # why the connection can no longer be used
        # A daemon: a call that never returns must not keep the process.
        Thread(target=self._run, name="delaybridge kombu", daemon=True).start()

    # on the loop

    def send(self, items: Iterable[Delivery | QueueCheck]) -> None:
        """Queue them behind all earlier ones. The scanner's window bounds the queue."""
        for item in items:
            self._work.put(item)

    def take_outcomes(self) -> list[tuple[Delivery, Outcome]]:
        """The outcomes since the last call."""
        taken = []
        while self._outcomes:
            taken.append(self._outcomes.popleft())
        return taken

    def stop(self) -> list[Delivery | QueueCheck]:
        """End the thread after its present call; returns the messages that it will not begin."""
        waiting = []
        with contextlib.suppress(Empty):
            while True:
                if (item := self._work.get_nowait()) is not None:
                    waiting.append(item)
        self._work.put(None)
        return waiting

    # in the thread

    def _run(self) -> None:
        word = "unreachable"
        try:
            # Two tries at once: with none, older kombu goes on for ever.
            self._connection.ensure_connection(max_retries=1, interval_start=0, interval_step=0)
            word = "connection_lost"
            call_on_loop(self._loop, _resolve, self.opened, None)
            while self._lost is None and (item := self._next()) is not None:
                self._do(item)
            reason = self._lost or "not_connected: closed"
        except Exception as exc:
            reason = reason_of(word, exc)
        call_on_loop(self._loop, _resolve, self.ended, reason)
        with contextlib.suppress(Exception):
            self._connection.release()

    def _next(self) -> Delivery | QueueCheck | None:
        """The next item; None: the end. Sends heartbeats while it waits."""
        self.calling_since_s = None
        while True:
            try:
                item = self._work.get(timeout=self._idle_s)
            except Empty:
                self._keep_alive()
            else:
                self.calling_since_s = monotonic()
                return item

    def _keep_alive(self) -> None:
        if self._connection.supports_heartbeats:
            with contextlib.suppress(TimeoutError):
                # Without reading, the end of an idle connection would not be noticed.
                self._connection.drain_events(timeout=DRAIN_S)
            self._connection.heartbeat_check()

    def _do(self, item: Delivery | QueueCheck) -> None:
        if isinstance(item, QueueCheck):
            call_on_loop(self._loop, _resolve, item.answer, self._check(item.queue))
            return
        self._outcomes.append((item, self._publish(item)))
        # With more than one, the call that the first one made is still to come.
        if len(self._outcomes) == 1:
            call_on_loop(self._loop, self._on_outcomes, self)

    def _publish(self, delivery: Delivery) -> Outcome:
        self._returned = None
        try:
            if self._channel is None:
                self._open_channel()
            try:
                encoded = message(self._channel, delivery)
            except Exception as exc:  # nothing was written, so the connection is good
                return Outcome(Verdict.REFUSED, reason_of("unencodable", exc))
            self._channel.basic_publish(
                encoded,
                exchange="",
                routing_key=delivery.destination.address,
                mandatory=True,
                immediate=False,
                timeout=self._timeout_s,
                confirm_timeout=self._timeout_s,
            )
        except Exception as exc:
            return self._failed(exc)
        if self._returned is not None:
            return Outcome(Verdict.REFUSED, f"unroutable: {self._returned}", answered=True)
        return CONFIRMED

    def _open_channel(self) -> None:
        self._channel = self._connection.channel()
        events = getattr(self._channel, "events", None)  # only AMQP channels have them
        if events is not None:
            # Without a handler a return raises, and its confirm is taken for the next message's.
            events["basic_return"].add(self._was_returned)

    def _was_returned(self, exc: Any, *_: object) -> None:
        self._returned = f"{exc.reply_code} {printable(str(exc.reply_text))}"[:DETAIL_LIMIT]

    def _failed(self, exc: Exception) -> Outcome:
        """The outcome of a publish that raised. Sets `_lost` if the connection cannot be kept."""
        if isinstance(exc, amqp.exceptions.MessageNacked):
            return NACKED
        if (refused := redis_refusal(exc)) is not None:
            if refused.fault is Fault.BROKER:
                self._lost = refused.reason
            return refused
        if isinstance(exc, amqp.exceptions.ChannelError):
            refused = refusal(exc.reply_code, str(exc.reply_text))
            if refused is not None:  # certainly of this message: no other is unconfirmed
                self._channel = None
                return refused
        if isinstance(exc, TimeoutError) or type(exc).__name__ == "TimeoutError":
            self._lost = f"confirm_timeout: none within {self._timeout_s:g} s"
            return Outcome(Verdict.UNKNOWN, self._lost, Fault.BROKER)
        if isinstance(exc, self._connection.connection_errors):
            self._lost = reason_of("connection_lost", exc)
            return Outcome(Verdict.UNKNOWN, self._lost, Fault.BROKER)
        self._lost = reason_of("failed", exc)
        return Outcome(Verdict.UNKNOWN, self._lost)

    def _check(self, queue: str) -> str | None:
        """Ask RabbitMQ or Redis. With other transports asking might create the queue."""
        kind = self._connection.transport.driver_type
        if kind not in ("amqp", "redis"):
            return None
        try:
            with self._connection.channel() as channel:
                channel.queue_declare(queue, passive=True)
        except Exception as exc:
            if (refused := redis_refusal(exc)) is not None:
                return refused.reason
            if not isinstance(exc, self._connection.channel_errors):
                return reason_of("not_connected", exc)
            return reason_of("unroutable", exc) if kind == "amqp" else None  # Redis creates it
        return None


def reason_of(word: str, exc: BaseException) -> str:
    """`word: text of the exception`, printable, short and without secrets."""
    text = redact_text(str(exc) or type(exc).__name__)
    return f"{word}: {printable(text)}"[:DETAIL_LIMIT]


def _resolve(future: asyncio.Future[Any], result: object) -> None:
    if not future.done():
        future.set_result(result)
