"""What one confluent_kafka producer has yet to store: as librdkafka has it, a bounded queue.

One thread empties it, a batch a call: while one call is under way the next batch gathers. Reports
wait until the producer polls.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Self
from weakref import WeakSet

import msgspec
from confluent_kafka import KafkaError
from confluent_kafka import Message as KafkaMessage

from delaybridge.accept.accept import Accepted
from delaybridge.client import Client
from delaybridge.errors import StoreFull, StoreUnavailable
from delaybridge.message import Answer
from delaybridge.store.receipts import Receipt
from delaybridge.store.verbs import new_stamp

BATCH_MESSAGES = 2000
BATCH_BYTES = 4 * 2**20
PAUSE_S = 0.1  # between two calls to a store that does not answer
# The store knows a call again for so long: sent later, it could undo a cancel.
MOST_TIMEOUT_S = 600.0
EXIT_TIMEOUT_S = 5.0  # for what is not stored when the process ends
NO_TIMESTAMP = (0, -1)

Callback = Callable[[KafkaError | None, Any], Any]


class Bounds(NamedTuple):
    """What a producer's own configuration says, and here means the same."""

    messages: int = 100_000
    kbytes: int = 1_048_576
    timeout_s: float = 300.0

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Self:
        """From a configuration that librdkafka has accepted."""
        timeouts = [
            v for k, v in config.items() if k in ("message.timeout.ms", "delivery.timeout.ms")
        ]
        timeout_ms = int([300_000, *timeouts][-1])  # two names of one setting: the last one counts
        return cls(
            int(config.get("queue.buffering.max.messages", 100_000)),
            int(config.get("queue.buffering.max.kbytes", 1_048_576)),
            min(timeout_ms / 1000 or MOST_TIMEOUT_S, MOST_TIMEOUT_S),
        )


class Produced(NamedTuple):
    """What the caller gave, for the report."""

    topic: str
    value: bytes | str | None
    key: bytes | str | None
    partition: int
    headers: list[tuple[str, Any]]
    callback: Callback | None
    only_error: bool

    def message(self, error: KafkaError | None, latency_s: float) -> KafkaMessage:
        """As librdkafka's reports have it; the headers, too."""
        return KafkaMessage(
            topic=self.topic,
            value=_bytes(self.value),
            key=_bytes(self.key),
            headers=[(name, _bytes(value)) for name, value in self.headers],
            partition=self.partition,
            error=error,
            timestamp=NO_TIMESTAMP,
            latency=latency_s,
        )


class Waiting(NamedTuple):
    """One message on its way."""

    accepted: Accepted
    stamp: bytes
    since_s: float
    produced: Produced

    def call(self, now_s: float) -> tuple[bytes, Accepted]:
        """What to send: a delay counts from `produce`, so less is left of it by now."""
        accepted, waited_ms = self.accepted, int((now_s - self.since_s) * 1000)
        if accepted.when[0] == "+" and waited_ms:
            left_ms = max(0, int(accepted.when) - waited_ms)
            accepted = msgspec.structs.replace(accepted, when=f"+{left_ms}")
        return self.stamp, accepted


class Report(NamedTuple):
    """What became of one message; error None: the store has it."""

    waiting: Waiting
    error: KafkaError | None
    at_s: float

    def serve(self) -> None:
        """Call back."""
        produced = self.waiting.produced
        if produced.callback is not None:
            latency_s = self.at_s - self.waiting.since_s
            produced.callback(self.error, produced.message(self.error, latency_s))


class Outbox:
    """Messages on their way to the store, in their order, and the reports of those that arrived."""

    def __init__(self, bounds: Bounds, logger: logging.Logger) -> None:
        self._bounds, self._logger = bounds, logger
        self._changed = threading.Condition()
        self._queue: deque[Waiting] = deque()
        self._flying: deque[Waiting] = deque()
        self._reports: deque[Report] = deque()
        self._bytes = 0  # of all three
        self._is_forked = self._is_purging = False
        self.is_closed = False
        self.is_unused = True
        _outboxes.add(self)

    def __len__(self) -> int:
        """Messages that are not known to be stored, and reports that nobody took."""
        with self._changed:
            return self._unstored + len(self._reports)

    @property
    def reported(self) -> int:
        """Reports that nobody took."""
        return len(self._reports)

    def put(self, client: Client, accepted: Accepted, produced: Produced) -> None:
        """Queue one message. BufferError: no room; RuntimeError: closed, or a parent process's."""
        if self._is_forked:
            raise RuntimeError("a Producer does not survive a fork: make it in the child")
        with self._changed:
            if self.is_closed:
                raise RuntimeError("Producer has been closed")
            size = len(accepted.payload)
            messages, kbytes, _ = self._bounds
            waiting = self._unstored + len(self._reports)
            if 0 < messages <= waiting or self._bytes + size > kbytes * 1024:
                raise BufferError("Local: Queue full")
            if self.is_unused:
                threading.Thread(
                    target=self._run, args=(client,), name="delaybridge outbox", daemon=True
                ).start()
                self.is_unused = False
            self._bytes += size
            self._queue.append(Waiting(accepted, new_stamp(), time.monotonic(), produced))
            if len(self._queue) == 1:
                self._changed.notify_all()

    def take_report(self) -> Report | None:
        """The oldest report, if there is one."""
        with self._changed:
            if not self._reports:
                return None
            report = self._reports.popleft()
            self._bytes -= len(report.waiting.accepted.payload)
            return report

    def wait(self, timeout_s: float) -> None:
        """Until there is a report, or nothing to wait for; at most so long."""
        with self._changed:
            self._changed.wait_for(lambda: self._reports or not self._unstored, timeout_s)

    def purge(self, *, in_queue: bool, in_flight: bool) -> None:
        """Give up what was not sent yet; and what is under way, should its call fail."""
        with self._changed:
            while in_queue and self._queue:
                self._report(self._queue.popleft(), KafkaError(KafkaError._PURGE_QUEUE))
            self._is_purging = bool(in_flight and self._flying)
            self._changed.notify_all()

    def close(self, timeout_s: float = 0.0) -> None:
        """Take no more. What is not stored in time is warned of, once, and stored nevertheless."""
        with self._changed:
            was_closed, self.is_closed = self.is_closed, True
            self._changed.notify_all()
            if not self._changed.wait_for(lambda: not self._unstored, timeout_s) and not was_closed:
                self._logger.warning(
                    "Producer terminating with %d delayed messages not stored yet: "
                    "use flush() to wait for them",
                    self._unstored,
                )

    def forget(self) -> None:
        """In a forked child: all of it is the parent's, and the thread is not here."""
        self._changed = threading.Condition()
        self._queue, self._flying, self._reports = deque(), deque(), deque()
        self.is_closed = self._is_forked = True

    @property
    def _unstored(self) -> int:
        return len(self._queue) + len(self._flying)

    # the thread

    def _run(self, client: Client) -> None:
        while self._next_batch():
            while self._flying:
                self._store(client)

    def _next_batch(self) -> bool:
        """Wait for something to store; False: there will be nothing more."""
        with self._changed:
            self._changed.wait_for(lambda: self._queue or self.is_closed)
            size = 0
            while self._queue and len(self._flying) < BATCH_MESSAGES and size < BATCH_BYTES:
                size += len(self._queue[0].accepted.payload)
                self._flying.append(self._queue.popleft())
            return bool(self._flying)

    def _store(self, client: Client) -> None:
        """One call for what is flying; it flies on if another call may help."""
        now_s = time.monotonic()
        try:
            receipts = client.schedule_accepted([one.call(now_s) for one in self._flying])
        except (StoreUnavailable, StoreFull) as exc:
            self._not_now(exc)
        except Exception as exc:  # it is reported, and does not end the thread
            self._land([KafkaError(KafkaError._FAIL, f"delaybridge: {exc}")] * len(self._flying))
        else:
            self._land([_error_of(receipt) for receipt in receipts])

    def _not_now(self, exc: Exception) -> None:
        """Pause, and give up what is too old or purged."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_purging, PAUSE_S)
            if self._is_purging:
                self._land([KafkaError(KafkaError._PURGE_INFLIGHT)] * len(self._flying))
            timeout_s = self._bounds.timeout_s
            text = f"not stored within {timeout_s:g} s, as far as is known: {exc}"
            late = KafkaError(KafkaError._MSG_TIMED_OUT, text)
            oldest_s = time.monotonic() - timeout_s
            for waiting in (self._flying, self._queue):
                while waiting and waiting[0].since_s <= oldest_s:
                    self._report(waiting.popleft(), late)
            self._changed.notify_all()

    def _land(self, errors: Sequence[KafkaError | None]) -> None:
        with self._changed:
            for error in errors:
                self._report(self._flying.popleft(), error)
            self._is_purging = False
            self._changed.notify_all()

    def _report(self, one: Waiting, error: KafkaError | None) -> None:
        """Keep it for the caller, if the caller asked for it."""
        produced = one.produced
        if produced.callback is not None and (error is not None or not produced.only_error):
            self._reports.append(Report(one, error, time.monotonic()))
            return
        self._bytes -= len(one.accepted.payload)
        if error is not None:
            text = "delayed message %s for %s: %s"
            self._logger.error(text, one.accepted.id, produced.topic, error.str())


def _bytes(text: bytes | str | None) -> bytes | None:
    return text.encode() if isinstance(text, str) else text


def _error_of(receipt: Receipt) -> KafkaError | None:
    """None: stored; now, before, or before it was cancelled."""
    if receipt.answer is not Answer.CONFLICT:
        return None
    text = f"{receipt.id!r} is pending with other content; nothing was stored"
    return KafkaError(KafkaError._CONFLICT, text)


_outboxes: WeakSet[Outbox] = WeakSet()


@atexit.register
def _store_what_is_left() -> None:
    until_s = time.monotonic() + EXIT_TIMEOUT_S
    for outbox in list(_outboxes):
        outbox.close(max(0.0, until_s - time.monotonic()))


def _forget_the_parents() -> None:
    for outbox in list(_outboxes):
        outbox.forget()


os.register_at_fork(after_in_child=_forget_the_parents)
