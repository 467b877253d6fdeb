"""The bounded queue of delayed messages that one confluent_kafka producer has yet to store.

One thread stores them, a batch in each call; the next batch gathers while a call is under way.
Reports wait until the producer polls. `AsyncClient` gathers calls, too, but could replace only the
twenty lines that form a batch, and would cost a task for each message.
"""

from __future__ import annotations

import atexit
import email.parser  # noqa: F401
import encodings.idna  # noqa: F401
import importlib.readers
import importlib.resources.readers  # noqa: F401
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Sequence
from functools import partial
from weakref import WeakSet

from confluent_kafka import KafkaError

from delaybridge.accept.accept import Accepted
from delaybridge.client import Client
from delaybridge.errors import NotDurable, StoreFull, StoreUnavailable
from delaybridge.intercept.kafka_reports import Bounds, Produced, Report, Waiting
from delaybridge.message import Answer, OnConflict
from delaybridge.store.calls import Calls
from delaybridge.store.messages.scheduling import Patience, Receipt
from delaybridge.store.protocol.verbs import Steps, bucket_of, new_stamp
from delaybridge.store.redis.durability import unconfirmed

# The modules imported but not used are those that the first call to Redis needs. If the thread
# imported them, a fork at that moment would leave their locks held, and the child's call would
# hang.

BATCH_MESSAGES = 2000
BATCH_BYTES = 4 * 2**20
PAUSE_S = 0.1  # until messages are sent again that were refused, or had no answer
EXIT_TIMEOUT_S = 5.0  # to store the remaining messages when the process ends

Outcome = Receipt | Exception
_MAY_PASS = (StoreUnavailable, StoreFull)
_PURGED = {False: KafkaError._PURGE_QUEUE, True: KafkaError._PURGE_INFLIGHT}  # by `in_doubt`


class Outbox:
    """Messages to be stored, in order, and reports that the producer has not served yet."""

    def __init__(self, bounds: Bounds, logger: logging.Logger) -> None:
        self._bounds, self._logger = bounds, logger
        self._changed = threading.Condition()
        self._queue: deque[Waiting] = deque()
        self._in_flight: deque[Waiting] = deque()  # the messages of the current call
        self._late: dict[str, deque[Waiting]] = {}  # by id, those that were not stored yet
        self._late_at_s = 0.0  # when the first of each id is tried again
        self._is_pausing = False  # it was not time yet for the batch in flight
        self._reports: deque[Report] = deque()
        self._bytes = 0  # of all four
        self._unstored = 0  # messages in the first three
        self._is_forked = self._is_purging = False
        self._is_silent = False  # Redis, one server, did not answer the last call
        self._is_unconfirmed = False  # some server did not confirm what it stored
        self.is_closed = False
        self.is_unused = True
        _outboxes.add(self)

    def __len__(self) -> int:
        """Messages that are not known to be stored, and reports that were not taken."""
        with self._changed:
            return self._unstored + len(self._reports)

    @property
    def reports(self) -> int:
        """Number of reports that were not taken."""
        return len(self._reports)

    def put(self, client: Client, accepted: Accepted, produced: Produced) -> None:
        """Queue one message.

        Raises BufferError if there is no room; RuntimeError if closed, or made before a fork.
        """
        if self._is_forked:
            raise RuntimeError("a Producer does not survive a fork: make it in the child")
        with self._changed:
            if self.is_closed:
                raise RuntimeError("Producer has been closed")
            size = len(accepted.payload)
            messages, kbytes, _ = self._bounds
            held = self._unstored + len(self._reports)
            if 0 < messages <= held or self._bytes + size > kbytes * 1024:
                raise BufferError("Local: Queue full")
            if self.is_unused:
                threading.Thread(
                    target=self._run, args=(client,), name="delaybridge outbox", daemon=True
                ).start()
                self.is_unused = False
            self._bytes += size
            self._unstored += 1
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
        """Wait until there is a report or every message is stored; at most `timeout_s`."""
        with self._changed:
            self._changed.wait_for(lambda: self._reports or not self._unstored, timeout_s)

    def purge(self, *, in_queue: bool, in_flight: bool) -> None:
        """Give up messages of which none was sent, and those of unknown outcome.

        in_flight: also those of the current call, if it does not store them.
        """
        with self._changed:
            self._queue_late()
            waiting, self._queue = self._queue, deque()
            for one in waiting:
                if in_flight if one.in_doubt else in_queue:
                    self._report(one, KafkaError(_PURGED[one.in_doubt]))
                else:
                    self._queue.append(one)
            self._is_purging = bool(in_flight and self._in_flight)
            self._changed.notify_all()

    def close(self, timeout_s: float = 0.0) -> None:
        """Accept no more. If messages are left, warn once; the thread still stores them."""
        with self._changed:
            was_closed, self.is_closed = self.is_closed, True
            self._changed.notify_all()
            if not self._changed.wait_for(lambda: not self._unstored, timeout_s) and not was_closed:
                self._logger.warning(
                    "Producer terminating with %d delayed messages not stored yet: "
                    "use flush() to wait for them",
                    self._unstored,
                )

    def empty_after_fork(self) -> None:
        """Drop all in a forked child: the parent stores it, and the thread exists only there."""
        self._changed = threading.Condition()
        self._queue, self._in_flight, self._reports = deque(), deque(), deque()
        self._late, self._unstored = {}, 0
        self.is_closed = self._is_forked = True

    # these run on the thread

    def _run(self, client: Client) -> None:
        while self._next_batch(client.timeout_s):
            if self._in_flight:
                self._take(self._outcomes(client), client)

    def _next_batch(self, timeout_s: float) -> bool:
        """Wait for messages and put them in flight; there may be none. False: closed and empty.

        After a pause the first of each id that was not stored, up to half a batch; the others of
        these ids wait behind it. While Redis is silent no others are sent: there would be more and
        more of unknown outcome.
        """
        with self._changed:
            self._changed.wait_for(
                lambda: (self._queue and not self._holds) or (self.is_closed and not self._late),
                self._late_at_s - time.monotonic() if self._late else None,
            )
            size, holds, self._is_pausing = 0, self._holds, self._late_at_s > time.monotonic()
            for of_id in self._late.values() if not self._is_pausing else ():
                if 2 * len(self._in_flight) >= BATCH_MESSAGES or 2 * size >= BATCH_BYTES:
                    break
                self._in_flight.append(of_id.popleft())
                size += len(self._in_flight[-1].accepted.payload)
            while self._queue and not holds and self._has_room(size):
                one = self._queue.popleft()
                if (behind := self._late.get(one.accepted.id)) is not None:
                    behind.append(one._replace(patience=one.patience or Patience(timeout_s)))
                    continue
                self._in_flight.append(one)
                size += len(one.accepted.payload)
            return bool(self._unstored) or not self.is_closed

    @property
    def _holds(self) -> bool:
        """Whether what is in the queue is not sent, until what was sent before is stored."""
        return self._is_silent and bool(self._late)

    def _has_room(self, size: int) -> bool:
        return len(self._in_flight) < BATCH_MESSAGES and size < BATCH_BYTES

    def _queue_late(self) -> None:
        """Late messages go to the queue's front. They are tried again, and may come back."""
        for of_id in reversed(self._late.values()):
            self._queue.extendleft(reversed(of_id))
        self._late.clear()

    def _outcomes(self, client: Client) -> Sequence[Outcome]:
        """One call for the messages in flight; what became of each.

        Those for a server that does not confirm what it stores are not sent: sent again each time,
        they might be published each time.
        """
        now_s = time.monotonic()
        sent = [one.call(now_s) for one in self._in_flight]
        held: Sequence[Exception | None] = [None] * len(sent)
        try:
            if self._is_unconfirmed:
                held = client.run(partial(_unconfirmed, sent))
                self._is_unconfirmed = any(held)
            free = [each for each, why in zip(sent, held, strict=True) if why is None]
            if not free:
                return [why for why in held if why is not None]
            found = iter(client.run(lambda on: on.schedule_each(free, OnConflict.FAIL)))
            return [why or next(found) for why in held]
        except Exception as exc:  # it is reported, and does not end the thread
            return [exc] * len(sent)

    def _take(self, outcomes: Sequence[Outcome], client: Client) -> None:
        """Report the messages in flight by their outcomes; some are tried again after a pause."""
        refused = [one for one in outcomes if isinstance(one, _MAY_PASS)]
        unavailable = [one for one in refused if isinstance(one, StoreUnavailable)]
        self._is_unconfirmed |= any(isinstance(one, NotDurable) for one in unavailable)
        nothing = bool(unavailable) and len(refused) == len(outcomes)
        self._is_silent = nothing and client.run(Calls.servers) <= 1
        late, next_s = list[Waiting](), PAUSE_S
        with self._changed:
            for outcome in outcomes:
                one = self._in_flight.popleft()
                again, pause_s = _tried_again(one, outcome, client.timeout_s)
                if again is None:
                    self._report(one, _error_of(one, outcome))
                elif self._is_purging:
                    self._report(one, KafkaError(_PURGED[again.in_doubt]))
                else:
                    late.append(again)
                    next_s = min(next_s, pause_s)
            self._put_off(late, next_s)
            self._is_purging = False
            if refused:
                self._give_up_old(refused[0])
            self._changed.notify_all()

    def _put_off(self, late: Sequence[Waiting], pause_s: float) -> None:
        """Try these again after a pause."""
        for one in reversed(late):
            of_id = self._late.pop(one.accepted.id, None) or deque[Waiting]()
            of_id.appendleft(one)
            self._late[one.accepted.id] = of_id  # after all others
        if late:  # new ones do not put off those whose pause has begun
            at_s = time.monotonic() + pause_s
            self._late_at_s = min(self._late_at_s, at_s) if self._is_pausing else at_s

    def _give_up_old(self, exc: Exception) -> None:
        """Report messages that were not stored for too long, for this reason."""
        timeout_s = self._bounds.timeout_s
        text = f"not stored within {timeout_s:g} s, as far as is known: {exc}"
        error = KafkaError(KafkaError._MSG_TIMED_OUT, text)
        oldest_s = time.monotonic() - timeout_s
        for of_id in [*self._late.values()]:
            if of_id[0].since_s <= oldest_s:  # those behind it go to the queue
                self._report(of_id.popleft(), error)
        while self._is_silent and self._queue and self._queue[0].since_s <= oldest_s:
            self._report(self._queue.popleft(), error)

    def _report(self, one: Waiting, error: KafkaError | None) -> None:
        """Keep a report if the producer has asked for it; otherwise log an error.

        What waited behind it goes on, before all others.
        """
        self._unstored -= 1
        self._queue.extendleft(reversed(self._late.pop(one.accepted.id, ())))
        produced = one.produced
        if produced.callback is not None and (error is not None or not produced.only_error):
            self._reports.append(Report(one, error, time.monotonic()))
            return
        self._bytes -= len(one.accepted.payload)
        if error is not None:
            text = "delayed message %s for %s: %s"
            self._logger.error(text, one.accepted.id, produced.topic, error.str())


def _unconfirmed(
    sent: Sequence[tuple[bytes, Accepted]], on: Calls
) -> Steps[Sequence[Exception | None]]:
    """Ask the server of each for a confirmation; returns the error of each that gives none."""
    buckets = yield from on.open()
    errors = yield from unconfirmed(buckets)
    return [errors[bucket_of(one.shard_key, len(buckets))] for _, one in sent]


def _tried_again(one: Waiting, outcome: Outcome, timeout_s: float) -> tuple[Waiting | None, float]:
    """The message if it is tried again, and after which pause."""
    if isinstance(outcome, _MAY_PASS):
        in_doubt = one.in_doubt or isinstance(outcome, StoreUnavailable)
        return one._replace(in_doubt=in_doubt), PAUSE_S
    if isinstance(outcome, Receipt) and outcome.answer is Answer.IN_FLIGHT:
        patience = one.patience or Patience(timeout_s)
        if pause_s := patience.pause_s():
            return one._replace(patience=patience), pause_s
    return None, 0.0


def _error_of(one: Waiting, outcome: Outcome) -> KafkaError | None:
    """None: it is stored, was stored before, or was stored and cancelled since."""
    if isinstance(outcome, Exception):
        return KafkaError(KafkaError._FAIL, f"delaybridge: {outcome}")
    known = "an earlier call may have stored it" if one.in_doubt else "nothing was stored"
    if outcome.answer is Answer.IN_FLIGHT:
        text = f"{outcome.id!r} is being delivered, and was not settled in time; {known}"
        return KafkaError(KafkaError._IN_PROGRESS, text, retriable=True)
    if outcome.answer is not Answer.CONFLICT:
        return None
    text = f"{outcome.id!r} is pending with other content; {known}"
    return KafkaError(KafkaError._CONFLICT, text)


_outboxes: WeakSet[Outbox] = WeakSet()


@atexit.register
def _store_remaining() -> None:
    until_s = time.monotonic() + EXIT_TIMEOUT_S
    for outbox in list(_outboxes):
        outbox.close(max(0.0, until_s - time.monotonic()))


def _empty_in_child() -> None:
    for outbox in list(_outboxes):
        outbox.empty_after_fork()


os.register_at_fork(after_in_child=_empty_in_child)
