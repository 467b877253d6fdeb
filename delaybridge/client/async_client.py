"""The client for asyncio, and the objects that it has."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self, TypeVar

from msgspec import UNSET

from delaybridge.accept.accept import Accepted
from delaybridge.client.annexes import DeadViews, PlaceViews, annex
from delaybridge.client.batching import Batching, ClientStore
from delaybridge.client.client import Client
from delaybridge.client.dead import DeadVerbs
from delaybridge.client.destinations import DestinationVerbs
from delaybridge.client.requests import Key, policy_of, receipt_unless_conflict
from delaybridge.client.surface import ClientVerbs
from delaybridge.client.topics import TopicVerbs
from delaybridge.client.verbs import Awaiting
from delaybridge.errors import MessageError
from delaybridge.gathering import Later
from delaybridge.message import Body, Headers, Message, OnConflict, Properties, Retry
from delaybridge.store.calls import Calls
from delaybridge.store.messages.scheduling import Receipt, receipts
from delaybridge.store.messages.selection import Selected, Selection, Walk
from delaybridge.store.protocol.verbs import Steps
from delaybridge.times import At, Delay
from delaybridge.tracing import active

if TYPE_CHECKING:
    from delaybridge.client.annexes import AsyncRecurringMessages
    from delaybridge.client.spans import ScheduleSpan

T = TypeVar("T")


class AsyncDeadMessages(DeadViews, DeadVerbs, Awaiting):
    """The dead set: `await client.dead()` lists it, `client.dead.kick(id)` brings one back."""


class AsyncSteeredDestinations(PlaceViews, DestinationVerbs, Awaiting):
    __doc__ = DestinationVerbs.__doc__


class AsyncPullTopics(TopicVerbs, Awaiting):
    """Pull topics, from which consumers receive without a broker."""


class AsyncClient(ClientVerbs, Awaiting):
    """Schedules messages, changes and shows them, on an event loop. One for each loop is enough.

        async with AsyncClient("redis://localhost:6379/0") as client:
            await client.schedule("rabbitmq:orders/timeout", b"order 42", delay="15m", id="o-42")
            await client.cancel("o-42")

    The constructor and all methods take the same arguments as those of `Client`, return the same
    answers and raise the same errors.

    Calls made in the same tick of the loop travel together: `schedule` in one script call per
    bucket, calls by id in one pipeline. Each gets its own answer or error.
    """

    def _connect(self, redis_url: str, **options: Any) -> None:
        self._store = ClientStore(redis_url, **options)
        self._batching = Batching(self._calls, self._store)

    @cached_property
    def dead(self) -> AsyncDeadMessages:
        """Messages that were given up: `dead()` lists them; kick, discard, quarantined."""
        return AsyncDeadMessages(self._calls, self._store, self._batching)

    @cached_property
    def destinations(self) -> AsyncSteeredDestinations:
        """`destinations()` lists them; pause, resume, limit, spread, retry_plan, purge, ..."""
        return AsyncSteeredDestinations(self._calls, self._store, self._batching)

    @cached_property
    def topics(self) -> AsyncPullTopics:
        """Pull topics: receive, finish, extend, release."""
        return AsyncPullTopics(self._calls, self._store, self._batching)

    @cached_property
    def recurring(self) -> AsyncRecurringMessages:
        """Messages that are sent again and again, by a cron expression or an interval."""
        made: AsyncRecurringMessages = annex("recurring.client").AsyncRecurringMessages(
            self._calls, self._store, self._batching
        )
        return made

    async def schedule(
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
        if (
            json is UNSET and at is None and key is None and headers == () and properties is None
            and ttl is None and at_most_once is False and retry is None
            and type(on_conflict) is OnConflict and active() is None
            and (draft := self._drafting.again(destination, body, delay, id, priority))
        ):  # nearly always, and without a message and a coroutine  # fmt: skip
            return _receipt(await self._batching.schedule(draft, on_conflict))
        message = Message(
            destination, body, json=json, delay=delay, at=at, id=id, key=key, headers=headers,
            properties=properties or {}, priority=priority, ttl=ttl, at_most_once=at_most_once,
            retry=retry,
        )  # fmt: skip
        return await self.schedule_message(message, on_conflict=on_conflict)

    async def schedule_message(
        self, message: Message, *, on_conflict: str = OnConflict.FAIL
    ) -> Receipt:
        """Store a message, as `schedule` does with its arguments."""
        policy = policy_of(on_conflict)
        if active() is None or (span := self._span((message,))) is None:
            found = await self._batching.schedule(self._draft(message), policy)
        else:
            found = await self._schedule_in(span, policy)
        return _receipt(found, message)

    async def _schedule_in(self, span: ScheduleSpan, policy: OnConflict) -> Receipt | Exception:
        (draft,) = self._drafts_in(span)
        with span:
            found = await self._batching.schedule(draft, policy)
            span.answered(found)
            return found

    schedule.__doc__ = Client.schedule.__doc__

    async def schedule_each(
        self, messages: Sequence[Message], *, on_conflict: str = OnConflict.FAIL
    ) -> list[Receipt | Exception]:
        """For servers: the receipt of each message, or its error; none hinders another.

        A conflict is a receipt.
        """
        policy = policy_of(on_conflict)
        if active() is not None:  # each has a span of its own
            each = (self.schedule_message(one, on_conflict=policy) for one in messages)
            return await asyncio.gather(*each, return_exceptions=True)  # type: ignore[return-value]
        found: list[Any] = []
        try:
            found += self._drafting.drafts(messages)
        except MessageError:
            found += map(self._draft_or_error, messages)
        places = [at for at, one in enumerate(found) if not isinstance(one, MessageError)]
        drafts = [found[at] for at in places]
        try:
            answers = await self.run(lambda calls: calls.schedule_all(drafts, policy))
        except Exception as exc:
            answers = [exc] * len(drafts)
        for at, answer in zip(places, answers, strict=True):
            found[at] = answer
        return found

    def _draft_or_error(self, message: Message) -> Any:
        try:
            return self._draft(message)
        except MessageError as exc:
            return exc

    async def schedule_accepted(
        self, messages: Sequence[tuple[bytes, Accepted]], *, on_conflict: str = OnConflict.FAIL
    ) -> list[Receipt]:
        """For drop-in producers: as `Client.schedule_accepted`, with all others of this tick."""
        policy = policy_of(on_conflict)
        # A bad message raises here, in the caller that passed it.
        checked = [(stamp, one) for stamp, one in messages if one.shard_key is not None]
        waiting = [self._batching.schedule(message, policy) for message in checked]
        return receipts([await future for future in waiting])

    def select(self, selection: Selection) -> AsyncIterator[list[Selected]]:
        """Find every message that matches, page by page; as `Client.select`.

        `async for page in client.select(...)`; each page can be passed to `cancel_many`.
        """
        return self._pages(self._walk(selection))

    async def _pages(self, walk: Walk) -> AsyncIterator[list[Selected]]:
        while (page := await self._store.complete(walk.page())) is not None:
            yield page

    async def run(self, call: Callable[[Calls], Steps[T]]) -> T:
        """For drop-in producers: run a call that this class does not have."""
        return await self._store.complete(call(self._calls))

    async def close(self) -> None:
        """Wait for the answers to all calls, then close the connections."""
        await asyncio.sleep(0)  # tasks that were made before make their calls
        await self._batching.drain()
        await self._store.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def _receipt(found: Receipt | Exception, message: Message | None = None) -> Receipt:
    """A caller's answer; raises it if it is an error, or a conflict."""
    if isinstance(found, Exception):
        try:
            # Others raise it, too; their frames would be in its traceback.
            raise found.with_traceback(None)
        finally:
            del found  # or the frame and the error would hold each other
    return receipt_unless_conflict(found, message)
