"""The client for synchronous code."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Self, TypeVar

from delaybridge.accept.accept import Accepted
from delaybridge.client.many import Many
from delaybridge.client.overview import Overview
from delaybridge.client.pulling import Pulls
from delaybridge.client.requests import (
    Key,
    Requests,
    arguments_of,
    policy_of,
    receipt_unless_conflict,
)
from delaybridge.client.steering import Steers
from delaybridge.message import (
    Answer,
    Headers,
    Limits,
    Message,
    OnConflict,
    Properties,
    Retry,
    State,
)
from delaybridge.operate.views.listing import Cursor, Page
from delaybridge.operate.views.stats import Stats, read_stats
from delaybridge.recurring.client import RecurringMessages
from delaybridge.settings.durability import HOT_WINDOW_S, check_durability
from delaybridge.store.calls import Calls
from delaybridge.store.messages.scheduling import Receipt
from delaybridge.store.protocol.command import Steps
from delaybridge.store.protocol.recorder import open_recorder
from delaybridge.store.protocol.stored import Stored
from delaybridge.store.redis.store import Store
from delaybridge.times import At, Delay

if TYPE_CHECKING:
    from delaybridge.settings.settings import Settings

T = TypeVar("T")


class Client(Many, Overview, Steers, Pulls):
    """Schedules messages, changes and shows them. Thread-safe: one for each process is enough.

        with Client("redis://localhost:6379/0") as client:
            client.schedule("rabbitmq:orders/timeout", b"order 42", delay="15m", id="order-42")
            client.cancel("order-42")

    A client talks to Redis only; no worker and no broker has to be running. Nothing is buffered:
    when a method returns, Redis has executed the call.

    Args:
        redis_url: the Redis that stores the messages.
        namespace: separates applications that share a Redis. Workers must use the same one.
        brokers: name -> URL of each broker that messages may name. Only the scheme of the URL is
            used. By default the kinds are the names: `rabbitmq`, `kafka`, ...
        buckets: the number of buckets, fixed when the namespace is created; by default 16 for a
            new namespace, and any number for an existing one.
        limits: bounds of messages and of the namespace; by default `Limits()`.
        timeout_s: the seconds in which each method returns or raises StoreUnavailable.
        durability: `memory`, `aof`, `aof-fsync`, `replicated:N` or `ledger`: what has to have
            happened to a change before a method returns; see docs/delivery.md.
        ledger: the URL of the ledger's database, if durability is `ledger`.
        hot_window_s: with a ledger, messages due later than this stay in it alone, until a worker
            brings them into Redis in time. 0: none do.

    Raises:
        ConfigError: an argument is wrong. The first call raises it if the namespace has another
            number of buckets, or if Redis evicts keys when it is full.

    Every method that asks Redis can raise:
        StoreUnavailable: no answer in time. Whether the call took effect is unknown; call again.
        NotDurable: a StoreUnavailable: the call took effect, but not as durably as `durability`
            asks. Call again with the same id; the answer is durable, also if it is `duplicate`.
        StoreError: Redis refused the call; StoreDenied, StoreDamaged and others say why.
    """

    def __init__(
        self,
        redis_url: str = "redis://127.0.0.1:6379/0",
        *,
        namespace: str = "delaybridge",
        brokers: Mapping[str, str] | None = None,
        buckets: int | None = None,
        limits: Limits | None = None,
        timeout_s: float = 5.0,
        durability: str = "memory",
        ledger: str | None = None,
        hot_window_s: float = HOT_WINDOW_S,
    ) -> None:
        kept = check_durability(durability)
        calls = Calls(namespace, brokers, buckets, limits or Limits(), kept)
        self._requests = Requests(calls)
        recorder = open_recorder(kept, ledger, namespace, timeout_s, hot_window_s)
        self._store = Store(redis_url, timeout_s=timeout_s, durability=kept, recorder=recorder)
        calls.placement = self._store

    @classmethod
    def from_settings(cls, settings: Settings | None = None) -> Self:
        """A client as the settings say; by default the environment and `delaybridge.toml`.

        Raises:
            ConfigError: a setting is missing or wrong.
        """
        return cls(**arguments_of(settings))

    @property
    def timeout_s(self) -> float:
        """The seconds in which each method returns or raises StoreUnavailable."""
        return self._store.timeout_s

    @property
    def kinds(self) -> Mapping[str, str]:
        """Name -> kind of each broker that messages may name."""
        return self._requests.calls.kinds

    @property
    def recurring(self) -> RecurringMessages:
        """Messages that are sent again and again, by a cron expression or an interval."""
        return RecurringMessages(self._requests.calls, self._store)

    def schedule(
        self,
        destination: str,
        body: bytes | str | None,
        *,
        delay: Delay = None,
        at: At = None,
        id: str | None = None,
        key: Key = None,
        headers: Headers = (),
        properties: Properties | None = None,
        priority: int = 0,
        ttl: Delay = None,
        at_most_once: bool = False,
        retry: Retry = None,
        on_conflict: str = OnConflict.FAIL,
    ) -> Receipt:
        """Store a message, to be published when it is due.

        Give either `delay` or `at`. If the outcome of a call is unknown, make it again with the
        same id: had the first one taken effect, the answer is `duplicate` while its message waits.

        While the message of that id is being delivered, the call waits until it is settled, at most
        for `timeout_s`: a consumer may schedule again what it has just received.

        Args:
            destination: `rabbitmq:EXCHANGE/ROUTING.KEY`, `rabbitmq:/QUEUE`, `kafka:TOPIC`, ...
            body: bytes, text (sent as UTF-8), or None (Kafka only: a tombstone).
            delay: `"1h30m"`, a timedelta, or seconds; counted by Redis' clock.
            at: an aware datetime or RFC 3339 text. A time in the past means now.
            id: at most 255 bytes; generated if omitted.
            key: messages with the same key are delivered in the order in which they are due; for
                Kafka it is also the record's key.
            headers: a mapping or pairs.
            properties: AMQP properties by name, as `{"content_type": "text/plain"}`.
            priority: 0 to 255; of messages due in the same millisecond the highest goes first.
            ttl: like `delay`; a message that is this late moves to the dead set as `expired`.
            at_most_once: may be lost in a crash, is never delivered twice.
            retry: a `MessagePlan`, or a mapping with some of its fields, as `{"max_attempts": 3}`.
            on_conflict: if the id is pending already: `fail` raises MessageConflict, unless the
                content is the same; `keep` keeps the pending message; `replace` replaces it.

        Returns:
            `created`, `duplicate` (the message was pending already, or was delivered within
            `publish.dedup_window_s`; nothing changed), `replaced`, or `in_flight` (the message of
            that id was still being delivered after `timeout_s`; nothing was stored).

        Raises:
            MessageError: an argument is wrong; `field` names it.
            DelayOutOfRange: a MessageError: the delay is negative or too long.
            MessageConflict: a MessageError: the id is pending with other content.
            StoreFull: Redis is out of memory, or a limit is reached; nothing was stored.
            StoreWiped: the namespace was deleted while this client was using it.
        """
        message = Message(
            destination, body, delay=delay, at=at, id=id, key=key, headers=headers,
            properties=properties or {}, priority=priority, ttl=ttl, at_most_once=at_most_once,
            retry=retry,
        )  # fmt: skip
        return self.schedule_message(message, on_conflict=on_conflict)

    def schedule_message(self, message: Message, *, on_conflict: str = OnConflict.FAIL) -> Receipt:
        """Store a message, as `schedule` does with its arguments."""
        steps = self._requests.schedule_one(message, on_conflict)
        return receipt_unless_conflict(self._store.complete(steps))

    def schedule_many(
        self, messages: Iterable[Message], *, on_conflict: str = OnConflict.FAIL
    ) -> list[Receipt]:
        """Store many messages in one round trip; much faster than a call for each.

        If one message is wrong, none is stored. After StoreUnavailable or StoreFull some may be
        stored: call again with messages that have the same ids.

        Args:
            messages: any number.
            on_conflict: as for `schedule`, but a conflict is an answer and not an error.

        Returns:
            The receipt of each message, in their order; also `conflict`.

        Raises:
            MessageError: a message is wrong.
            StoreFull: it says how many messages were not stored.
            StoreWiped: the namespace was deleted while this client was using it.
        """
        return self._store.complete(self._requests.schedule(messages, on_conflict))

    def accept(self, message: Message) -> Accepted:
        """For drop-in producers: check a message now, to store it with `schedule_accepted`.

        No I/O. MessageError: the message is wrong.
        """
        return self._requests.accept(message)

    def schedule_accepted(
        self,
        messages: Sequence[tuple[bytes, Accepted]],
        *,
        on_conflict: str = OnConflict.FAIL,
    ) -> list[Receipt]:
        """For drop-in producers: `schedule_many` for checked messages, each with its stamp.

        A stamp (`store.verbs.new_stamp`) names a call. For ten minutes a call with the same stamps
        is the same call, and safe to repeat: the answers are the same, and no message is stored
        twice, even if it was cancelled since. Only a call answered `in_flight` looks again.
        """
        calls = self._requests.calls
        return self._store.complete(calls.schedule(messages, policy_of(on_conflict)))

    def run(self, call: Callable[[Calls], Steps[T]]) -> T:
        """For drop-in producers: run a call that this class does not have."""
        return self._store.complete(call(self._requests.calls))

    def cancel(self, id: str, *, key: Key = None) -> Answer:
        """Cancel a message.

        Args:
            id: the message's.
            key: the message's, if it has one: saves a search through all buckets.

        Returns:
            `cancelled`: it is not delivered. `cancelled_maybe_delivered`: it is not published
            again, but an earlier publish may have been delivered. `in_flight`: too late.
            `unknown`: no such message is pending.

        Raises:
            MessageError: the id or key is wrong.
        """
        return self._store.complete(self._requests.cancel(id, key))

    def reschedule(self, id: str, *, delay: Delay = None, at: At = None, key: Key = None) -> Answer:
        """Give a message another due time; it is not delivered before then.

        Args:
            id, key: as for `cancel`.
            delay, at: as for `schedule`.

        Returns:
            `rescheduled`, `rescheduled_maybe_delivered` (an earlier publish may have been
            delivered), `in_flight` (too late), `dead` (use `kick`) or `unknown`.

        Raises:
            MessageError: an argument is wrong.
            DelayOutOfRange: a MessageError: the delay is negative or too long.
        """
        return self._store.complete(self._requests.reschedule(id, delay, at, key))

    def get(self, id: str, *, key: Key = None) -> Stored | None:
        """A message with its content, state and attempts; None once it is delivered or cancelled.

        Args:
            id, key: as for `cancel`.

        Raises:
            MessageError: the id or key is wrong.
        """
        return self._store.complete(self._requests.get(id, key))

    def quarantined(self, id: str) -> list[Stored]:
        """The messages with this id that ingest refused; they are in the dead set."""
        return self._store.complete(self._requests.quarantined(id))

    def pending(
        self,
        *,
        state: State = State.DELAYED,
        destination: str | None = None,
        due_from_ms: int | None = None,
        due_to_ms: int | None = None,
        limit: int = 100,
        cursor: Cursor | None = None,
    ) -> Page:
        """One page of messages in order of due time.

        Args:
            state: of the messages. Those in flight are in order of claim, dead ones of burial.
            destination: only messages to this destination.
            due_from_ms, due_to_ms: only messages due in this span, both ends included; in
                milliseconds since the epoch.
            limit: the most messages of the page, 1 to 1000.
            cursor: the `cursor` of the page before; None for the first page.

        Returns:
            `items`, and the `cursor` of the next page; it is None on the last page.

        Raises:
            MessageError: an argument is wrong.
        """
        span_ms = (due_from_ms, due_to_ms)
        return self._store.complete(self._requests.page(state, destination, span_ms, limit, cursor))

    def dead(self, *, limit: int = 100, cursor: Cursor | None = None) -> Page:
        """One page of the dead set, by time of burial; arguments as for `pending`."""
        return self.pending(state=State.DEAD, limit=limit, cursor=cursor)

    def kick(self, id: str, *, key: Key = None) -> Answer:
        """Move a message out of the dead set: it is due now, and its attempts start again.

        Args:
            id, key: as for `cancel`.

        Returns:
            `kicked`, `unreadable` (it cannot be decoded and stays), `in_flight` (it may live: a key
            of its bucket came back old; try again once that is mended) or `unknown`.

        Raises:
            MessageError: the id or key is wrong.
        """
        return self._store.complete(self._requests.kick(id, key))

    def discard(self, id: str, *, key: Key = None) -> Answer:
        """Delete a message from the dead set; arguments and errors as for `cancel`.

        Returns:
            `discarded`, `in_flight` or `unknown`, as for `kick`.
        """
        return self._store.complete(self._requests.discard(id, key))

    def stats(self) -> Stats:
        """Counts by state and bucket, the workers, and the failures with their reasons."""
        return self._store.complete(read_stats(self._requests.calls))

    def close(self) -> None:
        """Close the connections; one in use, after its call. Calls under way have their answers."""
        self._store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
