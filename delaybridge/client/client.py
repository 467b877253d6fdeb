"""The client for synchronous code, and the objects that it has."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self, TypeVar

from msgspec import UNSET

from delaybridge.accept.accept import Accepted
from delaybridge.client.annexes import DeadViews, PlaceViews, annex
from delaybridge.client.dead import DeadVerbs
from delaybridge.client.destinations import DestinationVerbs
from delaybridge.client.requests import Key, policy_of, receipt_unless_conflict
from delaybridge.client.surface import ClientVerbs
from delaybridge.client.topics import TopicVerbs
from delaybridge.client.verbs import Blocking
from delaybridge.gathering import Later
from delaybridge.message import Answer, Body, Headers, Message, OnConflict, Properties, Retry
from delaybridge.store.calls import Calls
from delaybridge.store.messages.scheduling import Receipt
from delaybridge.store.messages.selection import Selected, Selection
from delaybridge.store.protocol.verbs import Steps
from delaybridge.store.redis.store import Store
from delaybridge.times import At, Delay

if TYPE_CHECKING:
    from delaybridge.client.annexes import RecurringMessages

T = TypeVar("T")


class DeadMessages(DeadViews, DeadVerbs, Blocking):
    """The dead set: `client.dead()` lists it, `client.dead.kick(id)` brings a message back."""


class SteeredDestinations(PlaceViews, DestinationVerbs, Blocking):
    __doc__ = DestinationVerbs.__doc__


class PullTopics(TopicVerbs, Blocking):
    """Pull topics, from which consumers receive without a broker."""


class Client(ClientVerbs, Blocking):
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
        buckets: the number of buckets of a new namespace, by default 16. An existing one must have
            had that number once; by default any will do.
        limits: bounds of messages and of the namespace; by default `Limits()`.
        timeout_s: the seconds in which each method returns or raises StoreUnavailable.
        durability: `memory`, `aof`, `aof-fsync`, `replicated:N` or `ledger`: what has to have
            happened to a change before a method returns; see docs/delivery.md.
        ledger: the URL of the ledger's database, if durability is `ledger`.
        hot_window_s: with a ledger, messages due later than this stay in it alone, until a worker
            brings them into Redis in time. 0: none do.

    Raises:
        ConfigError: an argument is wrong. The first call raises it if the namespace never had
            this number of buckets, or if Redis evicts keys when it is full.

    Every method that asks Redis can raise:
        StoreUnavailable: no answer in time. Whether the call took effect is unknown; call again.
        NotDurable: a StoreUnavailable: the call took effect, but not as durably as `durability`
            asks. Call again with the same id; the answer is durable, also if it is `duplicate`.
        StoreError: Redis refused the call; StoreDenied, StoreDamaged and others say why.
    """

    def _connect(self, redis_url: str, **options: Any) -> None:
        self._store = Store(redis_url, **options)

    @cached_property
    def dead(self) -> DeadMessages:
        """Messages that were given up: `dead()` lists them; kick, discard, quarantined."""
        return DeadMessages(self._calls, self._store)

    @cached_property
    def destinations(self) -> SteeredDestinations:
        """`destinations()` lists them; pause, resume, limit, spread, retry_plan, purge, ..."""
        return SteeredDestinations(self._calls, self._store)

    @cached_property
    def topics(self) -> PullTopics:
        """Pull topics: receive, finish, extend, release."""
        return PullTopics(self._calls, self._store)

    @cached_property
    def recurring(self) -> RecurringMessages:
        """Messages that are sent again and again, by a cron expression or an interval."""
        made: RecurringMessages = annex("recurring.client").RecurringMessages(
            self._calls, self._store
        )
        return made

    def schedule(
        self,
        destination: str,
        body: Body = UNSET,
        *,
        json: Any = UNSET,
        delay: Later = None,
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
            json: instead of a body: a dict, a dataclass, a model of pydantic, ...; sent as JSON,
                with `content_type` if the destination knows that property.
            delay: `"1h30m"`, a timedelta, or seconds; counted by Redis' clock. Or a `Debounce` or a
                `Throttle`, whose key is then the id.
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
            destination, body, json=json, delay=delay, at=at, id=id, key=key, headers=headers,
            properties=properties or {}, priority=priority, ttl=ttl, at_most_once=at_most_once,
            retry=retry,
        )  # fmt: skip
        return self.schedule_message(message, on_conflict=on_conflict)

    def schedule_message(self, message: Message, *, on_conflict: str = OnConflict.FAIL) -> Receipt:
        """Store a message, as `schedule` does with its arguments."""
        steps = self._schedule_one(message, on_conflict)
        receipt = self._store.complete(steps)
        if receipt.answer is Answer.CREATED:
            return receipt
        return receipt_unless_conflict(receipt, message)

    def schedule_accepted(
        self, messages: Sequence[tuple[bytes, Accepted]], *, on_conflict: str = OnConflict.FAIL
    ) -> list[Receipt]:
        """For drop-in producers: `schedule_many` for checked messages, each with its stamp.

        A stamp (`store.protocol.verbs.new_stamp`) names a call. For ten minutes a call with the
        same stamps is the same call, and safe to repeat: the answers are the same, and no message
        is stored twice, even if it was cancelled since. Only a call answered `in_flight` looks
        again.
        """
        return self._store.complete(self._calls.schedule(messages, policy_of(on_conflict)))

    def select(self, selection: Selection) -> Iterator[list[Selected]]:
        """Find every message that matches, page by page; each page can be passed to `cancel_many`.

        A message is found once, also if it is moved meanwhile. It matches if it did when its page
        was read.

        Args:
            selection: the states, destination, reason, ... of the messages.

        Raises:
            MessageError: the selection is wrong.
            StoreDamaged: a bucket is damaged; raised after all others were searched.
        """
        walk = self._walk(selection)
        while (page := self._store.complete(walk.page())) is not None:
            yield page

    def run(self, call: Callable[[Calls], Steps[T]]) -> T:
        """For drop-in producers: run a call that this class does not have."""
        return self._store.complete(call(self._calls))

    def close(self) -> None:
        """Close the connections; one in use, after its call. Calls under way have their answers."""
        self._store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
