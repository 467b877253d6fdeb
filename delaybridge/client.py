"""The clients: schedule, cancel, reschedule, look, from ordinary code and from asyncio.

Both are thin: what a call does is in `calls.py`, what is accepted in `accept.py`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self, TypeVar

from delaybridge.accept.accept import Accepted, accept, check_id, check_key, when
from delaybridge.accept.destination import DestinationCache
from delaybridge.batching import Batching
from delaybridge.errors import ConfigError, MessageConflict, MessageError, printable, shown
from delaybridge.message import (
    Answer,
    Headers,
    Limits,
    Message,
    OnConflict,
    Properties,
    State,
)
from delaybridge.store import verbs
from delaybridge.store.calls import Calls
from delaybridge.store.changes import Named
from delaybridge.store.command import Steps
from delaybridge.store.ids import Ids
from delaybridge.store.scheduling import Receipt
from delaybridge.store.selection import Selected, Selection, Walk
from delaybridge.store.stats import Stats
from delaybridge.store.store import AsyncStore, Store
from delaybridge.store.stored import Stored
from delaybridge.store.views import Cursor, Page
from delaybridge.times import At, Delay

if TYPE_CHECKING:
    from delaybridge.settings.settings import Settings


Key = bytes | str | None
Spread = Sequence[int] | None
T = TypeVar("T")

_MOST = 1000  # messages in a page


class _Arguments:
    """What both clients are made of and how their arguments are checked."""

    calls: Calls

    def __init__(
        self,
        namespace: str = "delaybridge",
        brokers: Mapping[str, str] | None = None,
        buckets: int | None = None,
        limits: Limits | None = None,
    ) -> None:
        self.calls = Calls(namespace, brokers, buckets, limits or Limits())
        self._destinations = DestinationCache()
        self._ids = Ids(lambda: len(self.calls.buckets) or 1)

    def accept(self, message: Message) -> Accepted:
        """The message checked, with an id."""
        calls = self.calls
        return accept(message, calls.kinds, calls.limits, self._destinations, self._ids.draw)

    def id(self, id: str) -> str:
        return check_id(id, self.calls.limits)

    def when(self, delay: Delay, at: At) -> str:
        return when(delay, at, self.calls.limits)

    def named(self, messages: Iterable[Named]) -> list[Named]:
        """Messages as given; the ids among them checked."""
        return [self.id(one) if isinstance(one, str) else one for one in messages]

    def page(
        self,
        state: State,
        destination: str | None,
        span_ms: tuple[int | None, int | None],
        limit: int,
        cursor: Cursor | None,
    ) -> Steps[Page]:
        if state not in [*State]:
            raise MessageError("bad_state", "state", f"got {shown(state)}; see State")
        if not isinstance(destination, str | None):
            raise MessageError("bad_destination", "destination", f"got {shown(destination)}")
        for name, due_ms in zip(("due_from_ms", "due_to_ms"), span_ms, strict=True):
            if due_ms is not None and not _is_number(due_ms):
                raise MessageError("bad_time", name, f"got {shown(due_ms)}; give epoch ms")
        if not _is_number(limit):
            raise MessageError("bad_limit", "limit", f"got {shown(limit)}; give 1 to {_MOST}")
        if cursor is not None and not _is_cursor(cursor):
            raise MessageError("bad_cursor", "cursor", "give that of a page")
        limit = max(1, min(limit, _MOST))
        return self.calls.page(State(state), destination, span_ms, limit, cursor)

    def cancel_many(self, messages: Iterable[Named], key: Key) -> Steps[list[Answer]]:
        return self.calls.cancel_many(self.named(messages), check_key(key))

    def reschedule_many(
        self, messages: Iterable[Named], delay: Delay, at: At, spread_ms: Spread, key: Key
    ) -> Steps[list[Answer]]:
        named = self.named(messages)
        due = self.when(delay, at)
        sign = "+" if due.startswith("+") else ""
        dues = [f"{sign}{int(due) + later_ms}" for later_ms in _spread(spread_ms, named)]
        return self.calls.reschedule_many(named, dues, check_key(key))

    def kick_many(
        self, messages: Iterable[Named], spread_ms: Spread, key: Key
    ) -> Steps[list[Answer]]:
        named = self.named(messages)
        return self.calls.kick_many(named, _spread(spread_ms, named), check_key(key))

    def discard_many(self, messages: Iterable[Named], key: Key) -> Steps[list[Answer]]:
        return self.calls.discard_many(self.named(messages), check_key(key))


def only(receipts: list[Receipt]) -> Receipt:
    """The receipt of a single message; MessageConflict if it is one."""
    (receipt,) = receipts
    if receipt.answer is Answer.CONFLICT:
        raise MessageConflict(
            "conflict",
            "id",
            f"{receipt.id[:80]!r} is pending with other content, due at {receipt.due_ms} ms; "
            "choose another id, or on_conflict='replace'",
        )
    return receipt


def _policy(on_conflict: str) -> OnConflict:
    if isinstance(on_conflict, OnConflict):  # nearly always, and an enum's call is slow
        return on_conflict
    if on_conflict in [*OnConflict]:
        return OnConflict(on_conflict)
    raise ConfigError(
        f"on_conflict: {printable(shown(on_conflict))} is not known; "
        f"use one of {', '.join(OnConflict)}"
    )


def _spread(spread_ms: Spread, messages: Sequence[Named]) -> Sequence[int]:
    return [0] * len(messages) if spread_ms is None else spread_ms


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and abs(value) < 2**63


def _is_cursor(cursor: object) -> bool:
    if not isinstance(cursor, tuple) or len(cursor) != 2:
        return False
    score, id = cursor
    return _is_number(score) and isinstance(id, str) and id.isprintable()


class Client:
    """delaybridge for ordinary code. Thread-safe; usable as a context manager.

    redis_url: where the messages lie. brokers: name -> URL of those a message may name (only the
    URL's scheme matters here); without them the kinds themselves are names. buckets: checked
    against the namespace's, fixed at its birth. timeout_s: within this time a call has its answer
    or raises StoreUnavailable; nothing is buffered.
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
    ) -> None:
        self._check = _Arguments(namespace, brokers, buckets, limits)
        self._calls = self._check.calls
        self._store = Store(redis_url, timeout_s=timeout_s)

    @classmethod
    def from_settings(cls, settings: Settings | None = None) -> Self:
        """A client as the settings say (environment, delaybridge.toml)."""
        return cls(**_from_settings(settings))

    @property
    def kinds(self) -> Mapping[str, str]:
        """Name and kind of each broker that a message may name."""
        return self._calls.kinds

    def schedule(
        self,
        destination: str,
        body: bytes | str | None,
        *,
        delay: Delay = None,
        at: At = None,
        id: str | None = None,
        key: bytes | str | None = None,
        headers: Headers = (),
        properties: Properties | None = None,
        priority: int = 0,
        ttl: Delay = None,
        at_most_once: bool = False,
        on_conflict: str = OnConflict.FAIL,
    ) -> Receipt:
        """Accept one message for later. MessageError, MessageConflict; StoreUnavailable: unknown.

        The same id with the same content again is a `duplicate` and changes nothing, so a call
        whose outcome is unknown may be made again with its id.
        """
        message = Message(
            destination, body, delay=delay, at=at, id=id, key=key, headers=headers,
            properties=properties or {}, priority=priority, ttl=ttl, at_most_once=at_most_once,
        )  # fmt: skip
        return only(self.schedule_many([message], on_conflict=on_conflict))

    def schedule_many(
        self, messages: Iterable[Message], *, on_conflict: str = OnConflict.FAIL
    ) -> list[Receipt]:
        """Accept many; one answer each, `conflict` among them. Nothing is sent if one is refused.

        StoreUnavailable: some may be stored. StoreFull: it says how many are not. Call again with
        the same ids.
        """
        policy = _policy(on_conflict)
        accepted = [self._check.accept(message) for message in messages]
        return self._store.complete(self._calls.schedule(accepted, policy))

    def accept(self, message: Message) -> Accepted:
        """Check a message now, to store it with `schedule_accepted`. MessageError; no I/O."""
        return self._check.accept(message)

    def schedule_accepted(
        self,
        messages: Sequence[tuple[bytes, Accepted]],
        *,
        on_conflict: str = OnConflict.FAIL,
    ) -> list[Receipt]:
        """As `schedule_many`, of (stamp, message) pairs; a stamp is one of `verbs.new_stamp`.

        Called again with the same stamps it is the same call, for ten minutes: what took effect is
        answered as before and not done again, even where it was cancelled meanwhile.
        """
        return self._store.complete(self._calls.schedule_accepted(messages, _policy(on_conflict)))

    def run(self, call: Callable[[Calls], Steps[T]]) -> T:
        """Run a call that this class does not have, made of the commands in `delaybridge.store`."""
        return self._store.complete(call(self._calls))

    def cancel(self, id: str, *, key: bytes | str | None = None) -> Answer:
        """`cancelled`: nothing of it is delivered after this. Else in_flight, unknown, or
        cancelled_maybe_delivered (no further publish; an earlier one may have arrived)."""
        return self._store.complete(self._calls.cancel(self._check.id(id), check_key(key)))

    def reschedule(
        self, id: str, *, delay: Delay = None, at: At = None, key: bytes | str | None = None
    ) -> Answer:
        """`rescheduled`: nothing is delivered between this answer and the new due time."""
        due = self._check.when(delay, at)
        return self._store.complete(self._calls.reschedule(self._check.id(id), check_key(key), due))

    def get(self, id: str, *, key: bytes | str | None = None) -> Stored | None:
        """The message while it is pending, in flight or dead; None once it is settled."""
        return self._store.complete(self._calls.get(self._check.id(id), check_key(key)))

    def quarantined(self, id: str) -> list[Stored]:
        """What ingest could not accept of the messages that brought this id: it is dead."""
        return self._store.complete(self._calls.quarantined(self._check.id(id)))

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
        """Messages by due time (in flight: by claim), at most `limit` (1000) from the cursor on."""
        span_ms = (due_from_ms, due_to_ms)
        return self._store.complete(self._check.page(state, destination, span_ms, limit, cursor))

    def dead(self, *, limit: int = 100, cursor: Cursor | None = None) -> Page:
        """The dead set by the time of burial."""
        return self.pending(state=State.DEAD, limit=limit, cursor=cursor)

    def kick(self, id: str, *, key: bytes | str | None = None) -> Answer:
        """`kicked`: out of the dead set, due now, its attempts forgotten; else `unknown`."""
        return self._store.complete(self._calls.kick(self._check.id(id), check_key(key)))

    def discard(self, id: str, *, key: bytes | str | None = None) -> Answer:
        """`discarded`: out of the dead set for good; else `unknown`."""
        return self._store.complete(self._calls.discard(self._check.id(id), check_key(key)))

    def select(self, selection: Selection) -> Iterator[list[Selected]]:
        """Every message of the selection once, page by page; cancel or move a page as it comes.

        A message is judged by what it was when its page was read.
        """
        walk = Walk(self._calls, selection)
        while (page := self._store.complete(walk.page())) is not None:
            yield page

    def cancel_many(self, messages: Iterable[Named], *, key: Key = None) -> list[Answer]:
        """`cancel`, of ids or what `select` found: one answer each, in one round trip."""
        return self._store.complete(self._check.cancel_many(messages, key))

    def reschedule_many(
        self,
        messages: Iterable[Named],
        *,
        delay: Delay = None,
        at: At = None,
        spread_ms: Spread = None,
        key: Key = None,
    ) -> list[Answer]:
        """`reschedule` likewise. spread_ms: how much later than that each of them is due."""
        return self._store.complete(
            self._check.reschedule_many(messages, delay, at, spread_ms, key)
        )

    def kick_many(
        self, messages: Iterable[Named], *, spread_ms: Spread = None, key: Key = None
    ) -> list[Answer]:
        """`kick` likewise. spread_ms: how much later than now each of them is due."""
        return self._store.complete(self._check.kick_many(messages, spread_ms, key))

    def discard_many(self, messages: Iterable[Named], *, key: Key = None) -> list[Answer]:
        """`discard` likewise."""
        return self._store.complete(self._check.discard_many(messages, key))

    def stats(self) -> Stats:
        """Counts by state and bucket, and the fleet."""
        return self._store.complete(self._calls.stats())

    def close(self) -> None:
        """Close the connections."""
        self._store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncClient:
    """delaybridge on an event loop; arguments as `Client`.

    Calls made in the same tick of the loop travel together: those of `schedule` in one script call
    per bucket, those by id in one pipeline. Each gets its own answer or error.
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
    ) -> None:
        self._check = _Arguments(namespace, brokers, buckets, limits)
        self._calls = self._check.calls
        self._store = AsyncStore(redis_url, timeout_s=timeout_s)
        self._batching = Batching(self._calls, self._store)

    @classmethod
    def from_settings(cls, settings: Settings | None = None) -> Self:
        """A client as the settings say (environment, delaybridge.toml)."""
        return cls(**_from_settings(settings))

    @property
    def kinds(self) -> Mapping[str, str]:
        """Name and kind of each broker that a message may name."""
        return self._calls.kinds

    async def schedule(
        self,
        destination: str,
        body: bytes | str | None,
        *,
        delay: Delay = None,
        at: At = None,
        id: str | None = None,
        key: bytes | str | None = None,
        headers: Headers = (),
        properties: Properties | None = None,
        priority: int = 0,
        ttl: Delay = None,
        at_most_once: bool = False,
        on_conflict: str = OnConflict.FAIL,
    ) -> Receipt:
        """As `Client.schedule`."""
        message = Message(
            destination, body, delay=delay, at=at, id=id, key=key, headers=headers,
            properties=properties or {}, priority=priority, ttl=ttl, at_most_once=at_most_once,
        )  # fmt: skip
        accepted = (verbs.new_stamp(), self.accept(message))
        return only(await self._batching.schedule([accepted], _policy(on_conflict)))

    async def schedule_many(
        self, messages: Iterable[Message], *, on_conflict: str = OnConflict.FAIL
    ) -> list[Receipt]:
        """As `Client.schedule_many`."""
        policy = _policy(on_conflict)
        accepted = [self._check.accept(message) for message in messages]
        return await self._store.complete(self._calls.schedule(accepted, policy))

    def accept(self, message: Message) -> Accepted:
        """As `Client.accept`."""
        return self._check.accept(message)

    async def schedule_accepted(
        self,
        messages: Sequence[tuple[bytes, Accepted]],
        *,
        on_conflict: str = OnConflict.FAIL,
    ) -> list[Receipt]:
        """As `Client.schedule_accepted`; together with what else is scheduled in this tick."""
        return await self._batching.schedule(list(messages), _policy(on_conflict))

    async def run(self, call: Callable[[Calls], Steps[T]]) -> T:
        """As `Client.run`."""
        return await self._store.complete(call(self._calls))

    async def cancel(self, id: str, *, key: bytes | str | None = None) -> Answer:
        """As `Client.cancel`."""
        return await self._batching.complete(self._calls.cancel(self._check.id(id), check_key(key)))

    async def reschedule(
        self, id: str, *, delay: Delay = None, at: At = None, key: bytes | str | None = None
    ) -> Answer:
        """As `Client.reschedule`."""
        due = self._check.when(delay, at)
        return await self._batching.complete(
            self._calls.reschedule(self._check.id(id), check_key(key), due)
        )

    async def get(self, id: str, *, key: bytes | str | None = None) -> Stored | None:
        """As `Client.get`."""
        return await self._batching.complete(self._calls.get(self._check.id(id), check_key(key)))

    async def quarantined(self, id: str) -> list[Stored]:
        """As `Client.quarantined`."""
        return await self._store.complete(self._calls.quarantined(self._check.id(id)))

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
        """As `Client.pending`."""
        span_ms = (due_from_ms, due_to_ms)
        return await self._store.complete(
            self._check.page(state, destination, span_ms, limit, cursor)
        )

    async def dead(self, *, limit: int = 100, cursor: Cursor | None = None) -> Page:
        """As `Client.dead`."""
        return await self.pending(state=State.DEAD, limit=limit, cursor=cursor)

    async def kick(self, id: str, *, key: bytes | str | None = None) -> Answer:
        """As `Client.kick`."""
        return await self._batching.complete(self._calls.kick(self._check.id(id), check_key(key)))

    async def discard(self, id: str, *, key: bytes | str | None = None) -> Answer:
        """As `Client.discard`."""
        return await self._batching.complete(
            self._calls.discard(self._check.id(id), check_key(key))
        )

    async def select(self, selection: Selection) -> AsyncIterator[list[Selected]]:
        """As `Client.select`."""
        walk = Walk(self._calls, selection)
        while (page := await self._store.complete(walk.page())) is not None:
            yield page

    async def cancel_many(self, messages: Iterable[Named], *, key: Key = None) -> list[Answer]:
        """As `Client.cancel_many`."""
        return await self._store.complete(self._check.cancel_many(messages, key))

    async def reschedule_many(
        self,
        messages: Iterable[Named],
        *,
        delay: Delay = None,
        at: At = None,
        spread_ms: Spread = None,
        key: Key = None,
    ) -> list[Answer]:
        """As `Client.reschedule_many`."""
        return await self._store.complete(
            self._check.reschedule_many(messages, delay, at, spread_ms, key)
        )

    async def kick_many(
        self, messages: Iterable[Named], *, spread_ms: Spread = None, key: Key = None
    ) -> list[Answer]:
        """As `Client.kick_many`."""
        return await self._store.complete(self._check.kick_many(messages, spread_ms, key))

    async def discard_many(self, messages: Iterable[Named], *, key: Key = None) -> list[Answer]:
        """As `Client.discard_many`."""
        return await self._store.complete(self._check.discard_many(messages, key))

    async def stats(self) -> Stats:
        """As `Client.stats`."""
        return await self._store.complete(self._calls.stats())

    async def close(self) -> None:
        """Wait for calls under way and close the connections."""
        await self._batching.drain()
        await self._store.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def _from_settings(settings: Settings | None) -> dict[str, Any]:
    from delaybridge.settings.settings import Settings

    chosen = settings or Settings.load()
    return {
        "redis_url": chosen.redis.url,
        "namespace": chosen.namespace,
        "brokers": dict(chosen.brokers) or None,
        "buckets": chosen.buckets,
        "limits": chosen.limits.as_limits(),
        "timeout_s": chosen.redis.timeout_s,
    }
