"""The client for asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Self, TypeVar

from delaybridge.accept.accept import Accepted
from delaybridge.client.batching import Batching
from delaybridge.client.overview import AsyncOverview
from delaybridge.client.pulling import AsyncPulls
from delaybridge.client.requests import (
    Key,
    Requests,
    Spread,
    arguments_of,
    policy_of,
    receipt_unless_conflict,
)
from delaybridge.client.spans import ScheduleSpan
from delaybridge.client.steering import AsyncSteers
from delaybridge.client.under_way import ClientStore
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
from delaybridge.recurring.client import AsyncRecurringMessages
from delaybridge.settings.durability import HOT_WINDOW_S, check_durability
from delaybridge.store.calls import Calls
from delaybridge.store.messages.scheduling import Receipt, receipts
from delaybridge.store.messages.selection import Selected, Selection, Walk
from delaybridge.store.protocol.command import Steps
from delaybridge.store.protocol.recorder import open_recorder
from delaybridge.store.protocol.stored import Stored
from delaybridge.times import At, Delay
from delaybridge.tracing import active

if TYPE_CHECKING:
    from delaybridge.settings.settings import Settings

T = TypeVar("T")


class AsyncClient(AsyncOverview, AsyncSteers, AsyncPulls):
    """Schedules messages, changes and shows them, on an event loop. One for each loop is enough.

        async with AsyncClient("redis://localhost:6379/0") as client:
            await client.schedule("rabbitmq:orders/timeout", b"order 42", delay="15m", id="o-42")
            await client.cancel("o-42")

    The constructor and all methods take the same arguments as those of `Client`, return the same
    answers and raise the same errors.

    Calls made in the same tick of the loop travel together: `schedule` in one script call per
    bucket, calls by id in one pipeline. Each gets its own answer or error.
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
        self._store = ClientStore(
            redis_url, timeout_s=timeout_s, durability=kept, recorder=recorder
        )
        calls.placement = self._store
        self._batching = Batching(self._requests.calls, self._store)

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
    def recurring(self) -> AsyncRecurringMessages:
        """Messages that are sent again and again, by a cron expression or an interval."""
        return AsyncRecurringMessages(self._requests.calls, self._store)

    async def schedule(
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
        """Store a message, to be published when it is due; as `Client.schedule`.

        Args:
            destination: `rabbitmq:EXCHANGE/ROUTING.KEY`, `rabbitmq:/QUEUE`, `kafka:TOPIC`, ...
            body: bytes, text (sent as UTF-8), or None (Kafka only: a tombstone).
            delay: `"1h30m"`, a timedelta, or seconds. Give either `delay` or `at`.
            at: an aware datetime or RFC 3339 text.
            id: generated if omitted.
            key: messages with the same key keep their order.
            headers, properties, priority, ttl, at_most_once, retry: see `Client.schedule`.
            on_conflict: if the id is pending already: `fail`, `keep` or `replace`.

        Returns:
            `created`, `duplicate`, `replaced` or `in_flight`.

        Raises:
            MessageError: an argument is wrong, or (MessageConflict) the id is taken.
            StoreFull, StoreWiped: nothing was stored.
        """
        message = Message(
            destination, body, delay=delay, at=at, id=id, key=key, headers=headers,
            properties=properties or {}, priority=priority, ttl=ttl, at_most_once=at_most_once,
            retry=retry,
        )  # fmt: skip
        return await self.schedule_message(message, on_conflict=on_conflict)

    async def schedule_message(
        self, message: Message, *, on_conflict: str = OnConflict.FAIL
    ) -> Receipt:
        """Store a message, as `schedule` does with its arguments."""
        policy = policy_of(on_conflict)
        if (tracing := active()) is None:
            found = await self._batching.schedule(self._requests.draft(message), policy)
        else:
            found = await self._schedule_in(ScheduleSpan(tracing, (message,)), policy)
        if isinstance(found, Exception):
            try:
                # Others raise it, too; their frames would be in its traceback.
                raise found.with_traceback(None)
            finally:
                del found  # or the frame and the error would hold each other
        return receipt_unless_conflict(found)

    async def _schedule_in(self, span: ScheduleSpan, policy: OnConflict) -> Receipt | Exception:
        (draft,) = self._requests.drafts_in(span)
        with span:
            found = await self._batching.schedule(draft, policy)
            span.answered(found)
            return found

    async def schedule_many(
        self, messages: Iterable[Message], *, on_conflict: str = OnConflict.FAIL
    ) -> list[Receipt]:
        """Store many messages in one round trip: the receipt of each; as `Client.schedule_many`.

        If one message is wrong (MessageError), none is stored. After StoreUnavailable or StoreFull
        some may be stored: call again with messages that have the same ids.
        """
        return await self._store.complete(self._requests.schedule(messages, on_conflict))

    def accept(self, message: Message) -> Accepted:
        """For drop-in producers: check a message now, to store it with `schedule_accepted`.

        No I/O. MessageError: the message is wrong.
        """
        return self._requests.accept(message)

    async def schedule_accepted(
        self,
        messages: Sequence[tuple[bytes, Accepted]],
        *,
        on_conflict: str = OnConflict.FAIL,
    ) -> list[Receipt]:
        """For drop-in producers: as `Client.schedule_accepted`, with all others of this tick."""
        policy = policy_of(on_conflict)
        # A bad message raises here, in the caller that passed it.
        checked = [(stamp, one) for stamp, one in messages if one.shard_key is not None]
        waiting = [self._batching.schedule(message, policy) for message in checked]
        return receipts([await future for future in waiting])

    async def run(self, call: Callable[[Calls], Steps[T]]) -> T:
        """For drop-in producers: run a call that this class does not have."""
        return await self._store.complete(call(self._requests.calls))

    async def cancel(self, id: str, *, key: Key = None) -> Answer:
        """Cancel a message; as `Client.cancel`.

        `key`, if the message has one, saves a search through all buckets. Returns `cancelled`,
        `cancelled_maybe_delivered`, `in_flight` (too late) or `unknown`.
        """
        return await self._batching.complete(self._requests.cancel(id, key))

    async def reschedule(
        self, id: str, *, delay: Delay = None, at: At = None, key: Key = None
    ) -> Answer:
        """Give a message another due time, by `delay` or `at`; as `Client.reschedule`.

        Returns `rescheduled`, `rescheduled_maybe_delivered`, `in_flight` (too late), `dead` (use
        `kick`) or `unknown`.
        """
        return await self._batching.complete(self._requests.reschedule(id, delay, at, key))

    async def get(self, id: str, *, key: Key = None) -> Stored | None:
        """A message with its content and state; None once it is delivered or cancelled."""
        return await self._batching.complete(self._requests.get(id, key))

    async def quarantined(self, id: str) -> list[Stored]:
        """The messages with this id that ingest refused; they are in the dead set."""
        return await self._store.complete(self._requests.quarantined(id))

    async def pending(
        self,
        *,
        state: State = State.DELAYED,
        destination: str | None = None,
        due_from_ms: int | None = None,
        due_to_ms: int | None = None,
        limit: int = 100,
        cursor: Cursor | None = None,
    ) -> Page:
        """One page of messages in order of due time; as `Client.pending`.

        `due_from_ms`, `due_to_ms`: milliseconds since the epoch, included. `limit`: 1 to 1000.
        `cursor`: the `cursor` of the page before; it is None on the last page.
        """
        span_ms = (due_from_ms, due_to_ms)
        return await self._store.complete(
            self._requests.page(state, destination, span_ms, limit, cursor)
        )

    async def dead(self, *, limit: int = 100, cursor: Cursor | None = None) -> Page:
        """One page of the dead set, by time of burial; arguments as for `pending`."""
        return await self.pending(state=State.DEAD, limit=limit, cursor=cursor)

    async def kick(self, id: str, *, key: Key = None) -> Answer:
        """Move a message out of the dead set, due now; as `Client.kick`."""
        return await self._batching.complete(self._requests.kick(id, key))

    async def discard(self, id: str, *, key: Key = None) -> Answer:
        """Delete a message from the dead set; as `Client.discard`."""
        return await self._batching.complete(self._requests.discard(id, key))

    async def select(self, selection: Selection) -> AsyncIterator[list[Selected]]:
        """Find every message that matches, page by page; as `Client.select`.

        `async for page in client.select(...)`; each page can be passed to `cancel_many`.
        """
        walk = Walk(self._requests.calls, selection, self._store.recorder)
        while (page := await self._store.complete(walk.page())) is not None:
            yield page

    async def cancel_many(
        self, messages: Iterable[str | Selected], *, key: Key = None, dry_run: bool = False
    ) -> list[Answer]:
        """Cancel many messages in one round trip: the answer of `cancel` for each.

        `messages`: ids, or messages found by `select`. `dry_run`: change nothing, and answer what
        would be answered now.
        """
        return await self._store.complete(self._requests.cancel_many(messages, key, dry_run))

    async def reschedule_many(
        self,
        messages: Iterable[str | Selected],
        *,
        delay: Delay = None,
        at: At = None,
        spread_ms: Spread = None,
        key: Key = None,
        dry_run: bool = False,
    ) -> list[Answer]:
        """Reschedule many messages in one round trip: the answer of `reschedule` for each.

        `spread_ms`: for each message, the milliseconds by which it is due later than `delay` or
        `at` says.
        """
        return await self._store.complete(
            self._requests.reschedule_many(messages, delay, at, spread_ms, key, dry_run)
        )

    async def move_many(
        self,
        messages: Iterable[str | Selected],
        *,
        by_ms: int,
        key: Key = None,
        dry_run: bool = False,
    ) -> list[Answer]:
        """Move the due times of many messages by a span; as `Client.move_many`."""
        return await self._store.complete(self._requests.move_many(messages, by_ms, key, dry_run))

    async def kick_many(
        self,
        messages: Iterable[str | Selected],
        *,
        spread_ms: Spread = None,
        key: Key = None,
        dry_run: bool = False,
    ) -> list[Answer]:
        """Kick many messages at once: the answer of `kick` for each.

        `spread_ms`: for each message, the milliseconds from now until it is due.
        """
        steps = self._requests.kick_many(messages, spread_ms, key, dry_run)
        return await self._store.complete(steps)

    async def discard_many(
        self, messages: Iterable[str | Selected], *, key: Key = None, dry_run: bool = False
    ) -> list[Answer]:
        """Discard many messages at once: the answer of `discard` for each."""
        return await self._store.complete(self._requests.discard_many(messages, key, dry_run))

    async def stats(self) -> Stats:
        """Counts by state and bucket, the workers, and the failures with their reasons."""
        return await self._store.complete(read_stats(self._requests.calls))

    async def close(self) -> None:
        """Wait for the answers to all calls, then close the connections."""
        await asyncio.sleep(0)  # tasks that were made before make their calls
        await self._batching.drain()
        await self._store.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
