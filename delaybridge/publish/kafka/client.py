"""A librdkafka producer on the event loop, its callbacks in batches.

A thread polls the producer, so delivery reports come without delay, and polling costs nothing while
there are none. The results of one poll reach the loop in one call.

Calls that block run on threads of their own (`on_thread`): asyncio's are few, and every look-up of
a host name needs one of them. A cluster that is silent would hold up the connections to all other
brokers; and asyncio waits for its threads when it ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from functools import partial
from math import inf
from threading import Thread
from typing import TypeVar

from confluent_kafka import KafkaError, KafkaException, Message
from confluent_kafka.cimpl import Producer

from delaybridge.message import OWN_HEADERS, Delivery
from delaybridge.publish.kafka.configuration import Configuration, LineLogger
from delaybridge.publish.kafka.outcomes import FailedRecord, error_of
from delaybridge.publish.link import call_on_loop

T = TypeVar("T")
THREAD = "delaybridge kafka call"


async def on_thread(call: Callable[[], T]) -> T:
    """What the call returns or raises. Cancelled, it is left behind."""
    answer: Future[T] = Future()

    def run() -> None:
        if not answer.set_running_or_notify_cancel():
            return
        try:
            result = call()
        except BaseException as exc:
            answer.set_exception(exc)
        else:
            answer.set_result(result)

    # A daemon: a call that never returns must not keep the process.
    Thread(target=run, name=THREAD, daemon=True).start()
    return await asyncio.wrap_future(answer)


POLL_S = 0.2
_ID, _DUE, _ATTEMPT = OWN_HEADERS
_FIRST = (_ATTEMPT, "1")
_ANY_PARTITION = -1  # librdkafka chooses it by the key
_NOW = 0


class Answers:
    """What one poll brought. confirmed: the broker has them; failed: all others, and why."""

    __slots__ = ("confirmed", "failed")

    def __init__(self) -> None:
        self.confirmed: list[Delivery] = []
        self.failed: list[FailedRecord] = []


class KafkaClient:
    """One librdkafka producer and the thread that polls it.

    `on_answers` and `on_error` are called on the loop. needs_id: it is idempotent. ready: set once
    it has its id, without which such a producer sends no record. disturbed_s: when a connection was
    last lost, by the loop's clock. is_down: all brokers were lost, and none has confirmed a record
    since.
    """

    def __init__(
        self,
        settings: Configuration,
        on_answers: Callable[[KafkaClient, Answers], None],
        on_error: Callable[[KafkaClient, KafkaError], None],
    ) -> None:
        self.ready = asyncio.Event()
        self.needs_id: bool = settings["enable.idempotence"]
        self.disturbed_s = 0.0
        self.is_down = False
        self._loop = asyncio.get_running_loop()
        self._on_answers, self._on_error = on_answers, on_error
        self._answers = Answers()
        self._settings = settings
        self._is_stopped = False
        self._producer = Producer(
            {
                **settings.current(),
                "error_cb": self._error,
                # The log is the one place that shows the producer id before the first record,
                # and a lost connection while others are up. It has a few lines at each change of
                # a connection, none per record.
                "debug": "eos",
            },
            logger=LineLogger(self._logged),
        )
        # A daemon: a process that fails before it calls `stop` must still exit.
        self._thread = threading.Thread(target=self._poll, name="delaybridge kafka", daemon=True)
        self._thread.start()

    def produce(self, topic: str, deliveries: Iterable[Delivery]) -> tuple[int, Exception | None]:
        """Queue records in this order, up to the first that librdkafka does not take.

        Returns how many it took, and why it did not take the next: BufferError if its queue is
        full, KafkaException or another one if it refuses the record.
        """
        produce, answer = self._producer.produce, self._answer
        count, due_ms, due = 0, -1, (_DUE, "-1")
        try:
            for delivery in deliveries:
                record = delivery.record
                if delivery.due_ms != due_ms:  # many of a backlog are due together
                    due_ms = delivery.due_ms
                    due = (_DUE, str(due_ms))
                attempt = delivery.attempt
                produce(
                    topic,
                    record.body,
                    record.key,
                    _ANY_PARTITION if record.partition is None else record.partition,
                    partial(answer, delivery),
                    None,
                    _NOW,
                    [
                        *record.headers,
                        (_ID, delivery.given_id),
                        due,
                        _FIRST if attempt == 1 else (_ATTEMPT, str(attempt)),
                    ],
                )
                count += 1
        except Exception as exc:
            return count, exc
        return count, None

    def renew_password(self) -> None:
        """Log in with the password that is in its file now, from the next connect on."""
        self._settings.renew(self._producer)

    async def error_of_topic(self, topic: str | None, timeout_s: float) -> KafkaError | None:
        """Ask a broker about the topic (None: whether it answers); None if all is well."""
        list_topics = self._producer.list_topics  # `stop` cannot take it away meanwhile

        def ask() -> KafkaError | None:
            try:
                named = {} if topic is None else {"topic": topic}
                found = list_topics(timeout=timeout_s, **named)
            except KafkaException as exc:
                return error_of(exc) or KafkaError(KafkaError._FAIL)
            return None if topic is None else found.topics[topic].error

        return await on_thread(ask)

    async def stop(self) -> None:
        """Drop all that is queued and in flight, and end the thread. Call it once."""
        self._producer.purge(in_queue=True, in_flight=True, blocking=False)
        self._is_stopped = True
        await on_thread(self._end)

    def _end(self) -> None:
        self._thread.join()
        del self._producer  # this takes a moment, so it is done off the loop

    # in the polling thread

    def _poll(self) -> None:
        while not self._is_stopped:
            fatal = None
            try:
                self._producer.poll(POLL_S)
            except Exception as exc:  # instead of `error_cb`, or a callback raised: it is unusable
                fatal = error_of(exc) or KafkaError(KafkaError._FAIL, type(exc).__name__, True)
            answers = self._answers
            if answers.confirmed or answers.failed:
                self._answers = Answers()
                call_on_loop(self._loop, self._on_answers, self, answers)
            if fatal is not None:
                call_on_loop(self._loop, self._on_error, self, fatal)

    def _answer(self, delivery: Delivery, error: KafkaError | None, message: Message) -> None:
        if error is None and message.offset() is None:
            # The broker called it a duplicate, which librdkafka reports as success. It may not be
            # one: a new partition accepts any first sequence number. If it refused the first
            # request and accepted the second, the first, sent again, looks like a duplicate and
            # is lost (KAFKA-15591).
            error = KafkaError(KafkaError.DUPLICATE_SEQUENCE_NUMBER)
        if error is None:
            self._answers.confirmed.append(delivery)
        else:
            self._answers.failed.append(FailedRecord(delivery, error, message.partition()))

    def _error(self, error: KafkaError) -> None:
        call_on_loop(self._loop, self._on_error, self, error)

    def _logged(self, line: str) -> None:
        if line.endswith("-> Assigned"):
            call_on_loop(self._loop, self.ready.set)
        elif line.startswith("FAIL"):
            self.disturbed_s = self._loop.time()


REOPEN_S = 10.0  # between two attempts to open it
ANSWER_TIMEOUT_S = 5.0


class Spare:
    """client: the producer; None while it is not open."""

    def __init__(self, make: Callable[[], KafkaClient]) -> None:
        self.client: KafkaClient | None = None
        self._make = make
        self._opened_s = -inf
        self._warm_up: asyncio.Task[None] | None = None

    def open(self) -> KafkaClient | None:
        """Make it if it is missing; returns it once it is ready."""
        now_s = asyncio.get_running_loop().time()
        if self.client is None and now_s >= self._opened_s + REOPEN_S:
            self._opened_s = now_s
            # No thread is free, or a certificate is gone: the prompt one does without it.
            with contextlib.suppress(KafkaException, RuntimeError):
                self.client = self._make()
                self._warm_up = asyncio.create_task(self._reach(self.client))
        return self.client if self.client is not None and self.client.ready.is_set() else None

    def take_client(self) -> KafkaClient | None:
        """Give it away to be ended; it is opened again when it is wanted."""
        if self._warm_up is not None:
            self._warm_up.cancel()
        client, self.client = self.client, None
        return client

    @staticmethod
    async def _reach(client: KafkaClient) -> None:
        # If it is not asked, librdkafka first asks for its id after 500 ms.
        error = await client.error_of_topic(None, ANSWER_TIMEOUT_S)
        if error is None and not client.needs_id:
            client.ready.set()
