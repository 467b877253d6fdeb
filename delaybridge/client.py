"""The clients: schedule, cancel, reschedule, look, from ordinary code and from asyncio.

What a call does is written once, sans I/O, in `Calls`: a generator that yields lists of commands
and is sent their replies. `Client` and `AsyncClient` drive it over a connection.
"""

from __future__ import annotations

import asyncio
import heapq
import json
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from delaybridge import amqp, commands, keys
from delaybridge.accept import Accepted, accept, check_id, check_key, when
from delaybridge.commands import Bucket, Row
from delaybridge.errors import ConfigError, DecodeError, MessageConflict, StoreWiped
from delaybridge.message import (
    MAX_PRIORITY,
    Answer,
    HeaderPairs,
    Headers,
    Limits,
    Message,
    OnConflict,
    State,
    decode_record,
)
from delaybridge.publish import DEFAULT_KINDS, kind_of
from delaybridge.store import AsyncStore, Steps, Store

if TYPE_CHECKING:
    from delaybridge.settings import Settings

Delay = timedelta | float | str | None
At = datetime | str | None
Cursor = tuple[float, str]

DEFAULT_BUCKETS = 16
_CALL_MESSAGES = 1000
_CALL_BYTES = 4 * 2**20
_EVICTION = "noeviction"
# How far a message had gone, for one id found in several buckets (under several keys).
_FURTHEST = (
    Answer.IN_FLIGHT,
    Answer.CANCELLED_MAYBE_DELIVERED,
    Answer.RESCHEDULED_MAYBE_DELIVERED,
    Answer.CANCELLED,
    Answer.RESCHEDULED,
    Answer.KICKED,
    Answer.DISCARDED,
    Answer.DEAD,
    Answer.UNKNOWN,
)


class Receipt(str):
    """The answer of one `schedule`: the word itself, and what became of the message.

    It is a `str` equal to an `Answer` (`created`, `duplicate`, ...). id: the message's.
    due_ms: when it is due, by the store's clock; of a duplicate or conflict, when the message
    already pending is. bucket: where it lies.
    """

    __slots__ = ("answer", "bucket", "due_ms", "id")
    answer: Answer
    id: str
    due_ms: int
    bucket: int

    def __new__(cls, answer: Answer, id: str, due_ms: int, bucket: int) -> Receipt:
        made = super().__new__(cls, answer.value)
        made.answer, made.id, made.due_ms, made.bucket = answer, id, due_ms, bucket
        return made

    def __repr__(self) -> str:
        return (
            f"Receipt({self.answer.value!r}, id={self.id!r}, due_ms={self.due_ms}, "
            f"bucket={self.bucket})"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """A message as it lies in the store. due_ms: when it is (next) due.

    fired: handed to the broker, or about to be. reason, dead_ms: why and when it was buried.
    """

    id: str
    state: State
    due_ms: int
    priority: int
    destination: str
    body: bytes | None
    headers: list[tuple[str, Any]] = field(default_factory=list)
    properties: dict[str, Any] = field(default_factory=dict)
    key: bytes | None = None
    ttl_ms: int | None = None
    at_most_once: bool = False
    attempts: int = 0
    maybe_delivered: bool = False
    reason: str | None = None
    dead_ms: int | None = None
    bucket: int = 0
    fired: bool = False


class Page(NamedTuple):
    """Some messages in order, and where the next page begins (None: this was the last)."""

    items: list[Stored]
    cursor: Cursor | None


class BucketStats(NamedTuple):
    """One bucket. owner: the lease's holder, None if nobody; lease_ms: what is left of it."""

    bucket: int
    delayed: int
    in_flight: int
    parked: int
    dead: int
    next_due_ms: int | None
    overdue_ms: int
    owner: str | None
    lease_ms: int | None


class WorkerInfo(NamedTuple):
    """One living worker, as it announced itself."""

    name: str
    host: str
    pid: int
    version: str
    started_ms: int
    buckets: int
    expires_ms: int


class Stats(NamedTuple):
    """The whole namespace. overdue_ms: how late the oldest message still waiting is; 0 if none."""

    now_ms: int
    delayed: int
    in_flight: int
    parked: int
    dead: int
    next_due_ms: int | None
    overdue_ms: int
    buckets: list[BucketStats]
    workers: list[WorkerInfo]


class Calls:
    """What each call of a client does, sans I/O."""

    def __init__(
        self,
        namespace: str,
        brokers: Mapping[str, str] | None,
        buckets: int | None,
        limits: Limits,
    ) -> None:
        self.namespace = keys.check_namespace(namespace)
        self.limits = limits
        self.kinds = DEFAULT_KINDS if not brokers else {n: kind_of(u) for n, u in brokers.items()}
        self._asked = None if buckets is None else keys.check_buckets(buckets)
        self._buckets: list[Bucket] = []
        self.birth = ""

    @property
    def buckets(self) -> list[Bucket]:
        """Every bucket, once `open` has run."""
        return self._buckets

    def open(self, *, again: bool = False) -> Steps[list[Bucket]]:
        """The buckets; the first call writes or reads the namespace's record, and checks Redis."""
        if self._buckets and not again:
            return self._buckets
        count = self._asked or DEFAULT_BUCKETS
        born = commands.birth(self.namespace, count, secrets.token_hex(8))
        _, record, memory = yield [*born, commands.info("memory")]
        if memory.get("maxmemory_policy", _EVICTION) != _EVICTION:
            raise ConfigError(
                f"redis: maxmemory-policy is {memory['maxmemory_policy']}: Redis would drop "
                f"messages when full; set: maxmemory-policy {_EVICTION}"
            )
        if record is None:
            raise StoreWiped
        found, self.birth = record
        if self._asked not in (None, found):
            raise ConfigError(
                f"buckets: the settings say {self._asked}, namespace {self.namespace!r} was born "
                f"with {found}; the count is fixed at birth: set buckets = {found}"
            )
        self._buckets = [Bucket(self.namespace, number, self.birth) for number in range(found)]
        return self._buckets

    def schedule(self, messages: Sequence[Accepted], policy: OnConflict) -> Steps[list[Receipt]]:
        """One script call per bucket and thousand messages, all in one pipeline."""
        stamps = [commands.new_stamp() for _ in messages]
        receipts: list[Receipt | None] = [None] * len(messages)
        todo = list(range(len(messages)))
        for again in (False, True):
            buckets = yield from self.open(again=again)
            calls = list(_calls(messages, todo, len(buckets)))
            replies = yield [
                buckets[number].schedule(
                    [(stamps[i], messages[i]) for i in call], policy, first=again
                )
                for number, call in calls
            ]
            todo = []
            for (number, call), reply in zip(calls, replies, strict=True):
                if reply is None:  # born in another namespace, or not yet: read the record anew
                    todo += call
                    continue
                for i, (answer, due_ms) in zip(call, reply, strict=True):
                    receipts[i] = Receipt(answer, messages[i].id, due_ms, number)
            if not todo:
                return [receipt for receipt in receipts if receipt is not None]
        raise StoreWiped

    def cancel(self, id: str, key: bytes | None) -> Steps[Answer]:
        """Cancel by id in its own bucket and, without a key, in every other."""
        stamp = commands.new_stamp()
        return (yield from self._furthest(id, key, lambda b: b.cancel(stamp, id)))

    def reschedule(self, id: str, key: bytes | None, due: str) -> Steps[Answer]:
        """Reschedule by id, likewise."""
        stamp = commands.new_stamp()
        return (yield from self._furthest(id, key, lambda b: b.reschedule(stamp, id, due)))

    def kick(self, id: str, key: bytes | None) -> Steps[Answer]:
        """Kick by id, likewise."""
        stamp = commands.new_stamp()
        return (yield from self._furthest(id, key, lambda b: b.kick(stamp, id)))

    def discard(self, id: str, key: bytes | None) -> Steps[Answer]:
        """Discard by id, likewise."""
        stamp = commands.new_stamp()
        return (yield from self._furthest(id, key, lambda b: b.discard(stamp, id)))

    def get(self, id: str, key: bytes | None) -> Steps[Stored | None]:
        """The message, wherever it is."""
        asked = yield from self._asked_for(id, key)
        rows = yield [bucket.get(id) for bucket in asked]
        for bucket, row in zip(asked, rows, strict=True):
            if row is not None:
                return stored(row, bucket.number)
        return None

    def page(
        self,
        state: State,
        destination: str | None,
        span_ms: tuple[int | None, int | None],
        limit: int,
        cursor: Cursor | None,
    ) -> Steps[Page]:
        """One page over all buckets, merged."""
        buckets = yield from self.open()
        low, high = _scores(state, span_ms)
        items: list[Stored] = []
        while True:
            pages = yield [
                bucket.page(state, limit=limit, after=cursor, low=low, high=high)
                for bucket in buckets
            ]
            rows, more = _merged(buckets, pages)
            for score, _, number, row in rows:
                cursor = (score, row.id)
                item = stored(row, number)
                if destination in (None, item.destination) and _within(item, span_ms):
                    items.append(item)
                    if len(items) == limit:
                        return Page(items, cursor)
            if not more:
                return Page(items, None)

    def stats(self) -> Steps[Stats]:
        """Counts of every bucket, and the fleet, in one pipeline."""
        buckets = yield from self.open()
        asked = [c for bucket in buckets for c in bucket.counts()]
        per_bucket = len(asked) // len(buckets)
        oldest = [bucket.page(State.IN_FLIGHT, limit=1) for bucket in buckets]
        replies = yield [*asked, *oldest, *commands.fleet(self.namespace), commands.store_time()]
        now_ms = replies[-1] // 1000
        counts = [
            _bucket_stats(number, replies[number * per_bucket :], flying, now_ms)
            for number, (flying, _) in enumerate(replies[len(asked) : len(asked) + len(buckets)])
        ]
        return Stats(
            now_ms,
            sum(c.delayed for c in counts),
            sum(c.in_flight for c in counts),
            sum(c.parked for c in counts),
            sum(c.dead for c in counts),
            min((c.next_due_ms for c in counts if c.next_due_ms is not None), default=None),
            max(c.overdue_ms for c in counts),
            counts,
            _workers(replies[-3], replies[-2], counts, now_ms),
        )

    def _furthest(self, id: str, key: bytes | None, verb: Any) -> Steps[Answer]:
        asked = yield from self._asked_for(id, key)
        answers: list[Answer] = yield [verb(bucket) for bucket in asked]
        return min(answers, key=_FURTHEST.index)

    def _asked_for(self, id: str, key: bytes | None) -> Steps[list[Bucket]]:
        """The id's own bucket, then all others: a message with a key lies in the key's bucket."""
        buckets = yield from self.open()
        number = keys.bucket_of(id.encode() if key is None else key, len(buckets))
        if key is not None:
            return [buckets[number]]
        return [buckets[number], *buckets[:number], *buckets[number + 1 :]]


def stored(row: Row, bucket: int) -> Stored:
    """A row of the store, decoded as far as it can be."""
    try:
        score, payload = commands.split_record(row.record)
        record = decode_record(payload)
        headers = _headers(record.headers)
        properties = amqp.decode_properties(*record.properties) if record.properties else {}
        if record.partition is not None:
            properties["partition"] = record.partition
    except DecodeError as exc:
        return Stored(
            id=row.id, state=row.state, due_ms=int(row.score), priority=0, destination="",
            body=row.record, reason=row.reason or str(exc), bucket=bucket,
        )  # fmt: skip
    return Stored(
        id=row.id,
        state=row.state,
        due_ms=int(score),
        priority=MAX_PRIORITY - round(score % 1 * 256),
        destination=record.destination,
        body=record.body,
        headers=headers,
        properties=properties,
        key=record.key,
        ttl_ms=record.ttl_ms,
        at_most_once=record.at_most_once,
        attempts=row.tried.failures,
        maybe_delivered=row.tried.maybe_delivered,
        reason=row.reason or None,
        dead_ms=int(row.score) if row.state is State.DEAD else None,
        bucket=bucket,
        fired=row.fired,
    )


def _headers(headers: bytes | HeaderPairs) -> list[tuple[str, Any]]:
    return amqp.decode_table(headers) if isinstance(headers, bytes) else list(headers)


def _calls(
    messages: Sequence[Accepted], todo: Iterable[int], buckets: int
) -> Iterable[tuple[int, list[int]]]:
    """Positions by bucket, in order, cut where a script call would grow too large."""
    by_bucket: dict[int, list[int]] = {}
    for i in todo:
        by_bucket.setdefault(keys.bucket_of(messages[i].basis, buckets), []).append(i)
    for number, places in by_bucket.items():
        call: list[int] = []
        size = 0
        for i in places:
            size += len(messages[i].payload)
            if call and (len(call) == _CALL_MESSAGES or size > _CALL_BYTES):
                yield number, call
                call, size = [], len(messages[i].payload)
            call.append(i)
        yield number, call


def _merged(buckets: Sequence[Bucket], pages: Sequence[Any]) -> tuple[Iterable[Any], bool]:
    """Rows of all buckets by (score, id), up to where a bucket that has more was cut off."""
    cuts = [(rows[-1].score, rows[-1].id.encode()) for rows, more in pages if more and rows]
    cut = min(cuts) if cuts else None
    lists = [
        [(row.score, row.id.encode(), bucket.number, row) for row in rows]
        for bucket, (rows, _) in zip(buckets, pages, strict=True)
    ]
    merged = heapq.merge(*lists, key=lambda r: r[:3])
    if cut is None:
        return merged, False
    return (r for r in merged if (r[0], r[1]) <= cut), True


def _scores(state: State, span_ms: tuple[int | None, int | None]) -> tuple[Any, Any]:
    """Score bounds for a span of due times; only what is ordered by due time has them."""
    if state not in (State.DELAYED, State.PARKED):
        return None, None
    low, high = span_ms
    return low, None if high is None else high + MAX_PRIORITY / 256


def _within(item: Stored, span_ms: tuple[int | None, int | None]) -> bool:
    low, high = span_ms
    return (low is None or item.due_ms >= low) and (high is None or item.due_ms <= high)


def _bucket_stats(number: int, replies: list[Any], flying: list[Row], now_ms: int) -> BucketStats:
    delayed, in_flight, parked, dead, head, parked_head, lease, left_ms = replies[:8]
    waiting = [score for score in (head, parked_head) if score is not None]
    waiting += [commands.split_record(row.record)[0] for row in flying if row.record]
    return BucketStats(
        number,
        delayed,
        in_flight,
        parked,
        dead,
        None if head is None else int(head),
        max(0, now_ms - int(min(waiting, default=now_ms))),
        None if lease is None else lease.rsplit(":", 2)[0],
        left_ms if lease is not None else None,
    )


def _workers(
    info: dict[bytes, bytes], expiries: list[bytes], counts: list[BucketStats], now_ms: int
) -> list[WorkerInfo]:
    workers = []
    for name, expires in zip(expiries[::2], expiries[1::2], strict=True):
        said = info.get(name, b"")
        if float(expires) > now_ms and said:
            about = json.loads(said[said.index(b"{") :])
            held = sum(c.owner == name.decode() for c in counts)
            workers.append(
                WorkerInfo(
                    *(name.decode(), about["host"], about["pid"], about["version"]),
                    *(about["started_ms"], held, int(float(expires))),
                )
            )
    return workers


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

    def accept(self, messages: Iterable[Message]) -> list[Accepted]:
        """Every message checked; the first refusal is raised before anything is sent."""
        kinds, limits = self.calls.kinds, self.calls.limits
        return [accept(message, kinds, limits) for message in messages]

    def id(self, id: str) -> str:
        return check_id(id, self.calls.limits)

    def when(self, delay: Delay, at: At) -> str:
        return when(delay, at, self.calls.limits)


def _one(receipts: list[Receipt]) -> Receipt:
    (receipt,) = receipts
    if receipt.answer is Answer.CONFLICT:
        raise MessageConflict(
            "conflict",
            "id",
            f"{receipt.id!r} is pending with other content, due at {receipt.due_ms} ms; "
            "choose another id, or on_conflict='replace'",
        )
    return receipt


def _policy(on_conflict: str) -> OnConflict:
    try:
        return OnConflict(on_conflict)
    except ValueError:
        raise ConfigError(
            f"on_conflict: {on_conflict!r} is not known; use one of {', '.join(OnConflict)}"
        ) from None


def _limit(limit: int) -> int:
    return max(1, min(limit, 1000))


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
        self.store = Store(redis_url, timeout_s=timeout_s)

    @classmethod
    def from_settings(cls, settings: Settings | None = None) -> Self:
        """A client as the settings say (environment, delaybridge.toml)."""
        return cls(**_from_settings(settings))

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
        properties: Mapping[str, Any] | None = None,
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
        return _one(self.schedule_many([message], on_conflict=on_conflict))

    def schedule_many(
        self, messages: Iterable[Message], *, on_conflict: str = OnConflict.FAIL
    ) -> list[Receipt]:
        """Accept many; one answer each, `conflict` among them. Nothing is sent if one is refused.

        StoreUnavailable, StoreFull: some buckets may have taken theirs; call again with the same
        ids.
        """
        policy = _policy(on_conflict)
        return self.store.complete(self._calls.schedule(self._check.accept(messages), policy))

    def cancel(self, id: str, *, key: bytes | str | None = None) -> Answer:
        """`cancelled`: nothing of it is delivered after this. Else in_flight, unknown, or
        cancelled_maybe_delivered (no further publish; an earlier one may have arrived)."""
        return self.store.complete(self._calls.cancel(self._check.id(id), check_key(key)))

    def reschedule(
        self, id: str, *, delay: Delay = None, at: At = None, key: bytes | str | None = None
    ) -> Answer:
        """`rescheduled`: nothing is delivered between this answer and the new due time."""
        due = self._check.when(delay, at)
        return self.store.complete(self._calls.reschedule(self._check.id(id), check_key(key), due))

    def get(self, id: str, *, key: bytes | str | None = None) -> Stored | None:
        """The message while it is pending, in flight or dead; None once it is settled."""
        return self.store.complete(self._calls.get(self._check.id(id), check_key(key)))

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
        return self.store.complete(
            self._calls.page(State(state), destination, span_ms, _limit(limit), cursor)
        )

    def dead(self, *, limit: int = 100, cursor: Cursor | None = None) -> Page:
        """The dead set by the time of burial."""
        return self.pending(state=State.DEAD, limit=limit, cursor=cursor)

    def kick(self, id: str, *, key: bytes | str | None = None) -> Answer:
        """`kicked`: out of the dead set, due now, its attempts forgotten; else `unknown`."""
        return self.store.complete(self._calls.kick(self._check.id(id), check_key(key)))

    def discard(self, id: str, *, key: bytes | str | None = None) -> Answer:
        """`discarded`: out of the dead set for good; else `unknown`."""
        return self.store.complete(self._calls.discard(self._check.id(id), check_key(key)))

    def stats(self) -> Stats:
        """Counts by state and bucket, and the fleet."""
        return self.store.complete(self._calls.stats())

    def close(self) -> None:
        """Close the connections."""
        self.store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncClient:
    """delaybridge on an event loop; arguments as `Client`.

    Calls of `schedule` made in the same tick of the loop travel together: one script call per
    bucket.
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
        self.store = AsyncStore(redis_url, timeout_s=timeout_s)
        self._waiting: dict[OnConflict, list[tuple[Accepted, asyncio.Future[Receipt]]]] = {}
        self._flushes: set[asyncio.Task[None]] = set()

    @classmethod
    def from_settings(cls, settings: Settings | None = None) -> Self:
        """A client as the settings say (environment, delaybridge.toml)."""
        return cls(**_from_settings(settings))

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
        properties: Mapping[str, Any] | None = None,
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
        policy = _policy(on_conflict)
        (accepted,) = self._check.accept([message])
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Receipt] = loop.create_future()
        if not self._waiting:
            loop.call_soon(self._flush)
        self._waiting.setdefault(policy, []).append((accepted, future))
        return _one([await future])

    async def schedule_many(
        self, messages: Iterable[Message], *, on_conflict: str = OnConflict.FAIL
    ) -> list[Receipt]:
        """As `Client.schedule_many`."""
        policy = _policy(on_conflict)
        return await self.store.complete(self._calls.schedule(self._check.accept(messages), policy))

    async def cancel(self, id: str, *, key: bytes | str | None = None) -> Answer:
        """As `Client.cancel`."""
        return await self.store.complete(self._calls.cancel(self._check.id(id), check_key(key)))

    async def reschedule(
        self, id: str, *, delay: Delay = None, at: At = None, key: bytes | str | None = None
    ) -> Answer:
        """As `Client.reschedule`."""
        due = self._check.when(delay, at)
        return await self.store.complete(
            self._calls.reschedule(self._check.id(id), check_key(key), due)
        )

    async def get(self, id: str, *, key: bytes | str | None = None) -> Stored | None:
        """As `Client.get`."""
        return await self.store.complete(self._calls.get(self._check.id(id), check_key(key)))

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
        return await self.store.complete(
            self._calls.page(State(state), destination, span_ms, _limit(limit), cursor)
        )

    async def dead(self, *, limit: int = 100, cursor: Cursor | None = None) -> Page:
        """As `Client.dead`."""
        return await self.pending(state=State.DEAD, limit=limit, cursor=cursor)

    async def kick(self, id: str, *, key: bytes | str | None = None) -> Answer:
        """As `Client.kick`."""
        return await self.store.complete(self._calls.kick(self._check.id(id), check_key(key)))

    async def discard(self, id: str, *, key: bytes | str | None = None) -> Answer:
        """As `Client.discard`."""
        return await self.store.complete(self._calls.discard(self._check.id(id), check_key(key)))

    async def stats(self) -> Stats:
        """As `Client.stats`."""
        return await self.store.complete(self._calls.stats())

    async def close(self) -> None:
        """Wait for schedules under way and close the connections."""
        await asyncio.gather(*self._flushes, return_exceptions=True)
        await self.store.close()

    def _flush(self) -> None:
        waiting, self._waiting = self._waiting, {}
        for policy, calls in waiting.items():
            task = asyncio.get_running_loop().create_task(self._schedule_together(policy, calls))
            self._flushes.add(task)
            task.add_done_callback(self._flushes.discard)

    async def _schedule_together(
        self, policy: OnConflict, calls: list[tuple[Accepted, asyncio.Future[Receipt]]]
    ) -> None:
        try:
            receipts = await self.store.complete(
                self._calls.schedule([a for a, _ in calls], policy)
            )
        except Exception as exc:  # every caller learns of it
            for _, future in calls:
                if not future.done():
                    future.set_exception(exc)
            return
        for (_, future), receipt in zip(calls, receipts, strict=True):
            if not future.done():
                future.set_result(receipt)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def _from_settings(settings: Settings | None) -> dict[str, Any]:
    from delaybridge.settings import Settings

    chosen = settings or Settings.load()
    return {
        "redis_url": chosen.redis.url,
        "namespace": chosen.namespace,
        "brokers": dict(chosen.brokers) or None,
        "buckets": chosen.buckets,
        "limits": chosen.limits.as_limits(),
        "timeout_s": chosen.redis.timeout_s,
    }
