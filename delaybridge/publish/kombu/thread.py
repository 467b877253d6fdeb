"""A connection of kombu's on a thread of its own, since whatever it is asked may block.

One publish at a time: py-amqp takes the next confirm for this message's, whichever it names. So a
connection on which anything but a certain refusal happened is thrown away, and the thread with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Callable, Iterable
from importlib import import_module
from time import monotonic
from typing import Any, NamedTuple

from delaybridge.amqp.table import decode_table
from delaybridge.errors import DETAIL_LIMIT, printable
from delaybridge.message import OWN_HEADERS, Delivery
from delaybridge.publish import CONFIRMED, Fault, Outcome, Verdict
from delaybridge.publish.rabbitmq.channel import NACKED, refusal
from delaybridge.publish.redis_streams.outcomes import refusal as redis_refusal
from delaybridge.settings.urls import redact_text

kombu: Any = import_module("kombu")  # half typed
amqp: Any = import_module("amqp")

PERSISTENT = 2
DRAIN_S = 0.001
Answers = list[tuple[Delivery, Outcome]]


class Question(NamedTuple):
    """Would a message for this queue be refused? The answer is a reason, or None."""

    queue: str
    answer: asyncio.Future[str | None]


class Courier:
    """One thread and its connection: it delivers what it is given, in order, until it ends.

    `on_answers` is called on the loop when there is something to `collect`. `opened`: it is
    connected; `ended`: it is over, with the reason. calling_since_s: when the call that it is in
    now began, by the monotonic clock.
    """

    def __init__(
        self,
        connection: Any,
        on_answers: Callable[[Courier], None],
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
        self._on_answers = on_answers
        self._timeout_s, self._idle_s = timeout_s, idle_s
        self._news = threading.Condition()  # guards what follows
        self._waiting: deque[Delivery | Question] = deque()
        self._answers: Answers = []
        self._is_stopped = False
        self._returned: str | None = None  # this message, by the broker
        self._lost: str | None = None  # why the connection is of no more use
        # A daemon: a call that never returns must not keep the process.
        threading.Thread(target=self._run, name="delaybridge kombu", daemon=True).start()

    # on the loop

    def send(self, items: Iterable[Delivery | Question]) -> None:
        """Behind all that was given before. The scanner's window bounds what may wait."""
        with self._news:
            self._waiting.extend(items)
            self._news.notify()

    def collect(self) -> Answers:
        """The outcomes since the last call."""
        with self._news:
            answers, self._answers = self._answers, []
        return answers

    def stop(self) -> list[Delivery | Question]:
        """End after the call that it is in, if any; what was not begun, and never will be."""
        with self._news:
            self._is_stopped = True
            waiting, self._waiting = self._waiting, deque()
            self._news.notify()
        return list(waiting)

    # in the thread

    def _run(self) -> None:
        word = "unreachable"
        try:
            # Two tries at once: with none, older kombu goes on for ever.
            self._connection.ensure_connection(max_retries=1, interval_start=0, interval_step=0)
            word = "connection_lost"
            self._tell(_end, self.opened, None)
            while (item := self._next()) is not None and self._lost is None:
                self._do(item)
            reason = self._lost or "not_connected: closed"
        except Exception as exc:
            reason = reason_of(word, exc)
        self._tell(_end, self.ended, reason)
        with contextlib.suppress(Exception):
            self._connection.release()

    def _next(self) -> Delivery | Question | None:
        """The next to do; None: nothing ever again. Its heart beats while it waits."""
        self.calling_since_s = None
        while True:
            with self._news:
                if self._is_stopped or self._lost is not None:
                    return None
                if self._waiting or self._news.wait(self._idle_s):
                    if self._waiting:
                        self.calling_since_s = monotonic()
                        return self._waiting.popleft()
                    continue
            if self._connection.supports_heartbeats:
                with contextlib.suppress(TimeoutError):
                    self._connection.drain_events(timeout=DRAIN_S)  # or it learns of no end
                self._connection.heartbeat_check()

    def _do(self, item: Delivery | Question) -> None:
        if isinstance(item, Question):
            self._tell(_end, item.answer, self._check(item.queue))
            return
        outcome = self._publish(item)
        with self._news:
            is_first = not self._answers
            self._answers.append((item, outcome))
        if is_first:
            self._tell(self._on_answers, self)

    def _publish(self, delivery: Delivery) -> Outcome:
        self._returned = None
        try:
            if self._channel is None:
                self._open_channel()
            try:
                encoded = message(self._channel, delivery)
            except Exception as exc:  # it is not written, and the connection is as it was
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
            return Outcome(Verdict.REFUSED, f"unroutable: {self._returned}")
        return CONFIRMED

    def _open_channel(self) -> None:
        self._channel = self._connection.channel()
        events = getattr(self._channel, "events", None)  # AMQP's channels have them
        if events is not None:
            # Without it a return raises, and leaves the confirm for the next message to find.
            events["basic_return"].add(self._was_returned)

    def _was_returned(self, exc: Any, *_: object) -> None:
        self._returned = f"{exc.reply_code} {printable(str(exc.reply_text))}"[:DETAIL_LIMIT]

    def _failed(self, exc: Exception) -> Outcome:
        """What became of the message; what is left of the connection."""
        if isinstance(exc, amqp.exceptions.MessageNacked):
            return NACKED
        if (refused := redis_refusal(exc)) is not None:
            if refused.fault is Fault.BROKER:
                self._lost = refused.reason
            return refused
        if isinstance(exc, amqp.exceptions.ChannelError):
            refused = refusal(exc.reply_code, str(exc.reply_text))
            if refused is not None:  # of this message: no other was on the way
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
        """RabbitMQ and Redis can be asked; elsewhere asking might create the queue."""
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
            return reason_of("unroutable", exc) if kind == "amqp" else None  # made when first used
        return None

    def _tell(self, callback: Callable[..., None], *arguments: object) -> None:
        # The loop may have ended without closing us.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(callback, *arguments)


def message(channel: Any, delivery: Delivery) -> Any:
    """The message as `kombu.Producer.publish` would have prepared it, with our headers added."""
    record = delivery.record
    stored = record.properties if isinstance(record.properties, bytes) else b""
    properties: dict[str, Any] = {"delivery_mode": PERSISTENT} | dict(decode_table(stored))
    headers = dict(decode_table(record.headers))  # type: ignore[arg-type]  # a table for this kind
    ours = (delivery.id, delivery.due_ms, delivery.attempt)
    content_type = properties.pop("content_type", "application/data")
    encoding = properties.pop("content_encoding", "binary")
    properties.pop("delivery_info", None)  # the channel's to say
    return channel.prepare_message(
        _body(record.body or b"", encoding),
        priority=properties.pop("priority", 0),
        content_type=content_type,
        content_encoding=encoding,
        headers=headers | dict(zip(OWN_HEADERS, ours, strict=True)),
        properties=properties,
    )


def _body(body: bytes, encoding: Any) -> bytes | str:
    """Text where kombu's serializers leave text: a transport that encodes nothing needs it."""
    if str(encoding).lower() in ("utf-8", "utf8"):
        with contextlib.suppress(UnicodeDecodeError):
            return body.decode()
    return body


def reason_of(word: str, exc: BaseException) -> str:
    """A reason for people, printable and short, without secrets."""
    text = redact_text(str(exc) or type(exc).__name__)
    return f"{word}: {printable(text)}"[:DETAIL_LIMIT]


def _end(future: asyncio.Future[Any], result: object) -> None:
    if not future.done():
        future.set_result(result)
