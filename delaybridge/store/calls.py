"""What each call of a client does, written once, sans I/O; and what the answers look like.

`Calls` holds generators that yield lists of commands and are sent their replies; a store drives
them (`Store.complete`, `AsyncStore.complete`).
"""

from __future__ import annotations

import heapq
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from itertools import chain, islice
from typing import Any, NamedTuple

from delaybridge.accept.accept import Accepted
from delaybridge.amqp.header import decode_properties, decode_table
from delaybridge.errors import (
    ConfigError,
    DecodeError,
    StoreDamaged,
    StoreError,
    StoreFull,
    StoreWiped,
)
from delaybridge.message import (
    MAX_PRIORITY,
    Answer,
    HeaderPairs,
    Limits,
    OnConflict,
    State,
    decode_record,
)
from delaybridge.settings.namespace import check_buckets, check_namespace
from delaybridge.settings.urls import kinds_of
from delaybridge.store import announcements, damage, keys, looks, registry, verbs
from delaybridge.store.announcements import IngestInfo, SourceInfo, WorkerInfo
from delaybridge.store.command import Command
from delaybridge.store.damage import Damage
from delaybridge.store.ids import all_beside
from delaybridge.store.quota import Quota
from delaybridge.store.record import since_ms, split_record
from delaybridge.store.replies import Row
from delaybridge.store.selection import Selected, span_scores, within
from delaybridge.store.steps import Each, Steps, of_all
from delaybridge.store.troubles import Retrying, Said, Trouble, counted
from delaybridge.store.verbs import Bucket
from delaybridge.times import format_time

__all__ = ["IngestInfo", "SourceInfo", "WorkerInfo"]
Delay = timedelta | float | str | None
At = datetime | str | None
Named = str | Selected  # a message by its id, or as a selection found it
_Verb = Callable[[Bucket, bytes, str, int], Command[Answer]]  # stamp, id, its place in the call
Cursor = tuple[float, str]

DEFAULT_BUCKETS = 16
_CALL_MESSAGES = 1000
_WAITING = (State.DELAYED, State.PARKED, State.IN_FLIGHT)
_CALL_BYTES = 4 * 2**20
_SAMPLE = 1000  # messages of a bucket that stats looks at, of those that are tried again
_UNDECODABLE = "undecodable"
_EVICTION = "noeviction"
# How far a message had gone, for one id found in several buckets (under several keys).
FURTHEST = (
    Answer.IN_FLIGHT,
    Answer.CANCELLED_MAYBE_DELIVERED,
    Answer.RESCHEDULED_MAYBE_DELIVERED,
    Answer.CANCELLED,
    Answer.RESCHEDULED,
    Answer.KICKED,
    Answer.DISCARDED,
    Answer.UNREADABLE,
    Answer.DEAD,
    Answer.FOREIGN,
    Answer.UNKNOWN,
)


class Receipt(str):
    """The answer of one `schedule`: the word itself, and what became of the message.

    It is a `str` equal to an `Answer` (`created`, `duplicate`, ...); printed, it also shows id and
    due time. id: the message's.
    due_ms: when it is due, by the store's clock; of a duplicate or conflict, when the message
    already pending is. bucket: where it lies.
    """

    __slots__ = ("answer", "bucket", "due_ms", "id")
    answer: Answer
    id: str
    due_ms: int
    bucket: int

    def __new__(cls, answer: Answer, id: str, due_ms: int, bucket: int) -> Receipt:
        made = str.__new__(cls, answer)
        made.answer, made.id, made.due_ms, made.bucket = answer, id, due_ms, bucket
        return made

    def __str__(self) -> str:
        return f"{self.answer.value} {self.id} due {format_time(self.due_ms)}"

    def __format__(self, spec: str) -> str:
        return format(str(self), spec)

    def __repr__(self) -> str:
        return (
            f"Receipt({self.answer.value!r}, id={self.id!r}, due_ms={self.due_ms}, "
            f"bucket={self.bucket})"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """A message as it lies in the store. due_ms: when it is (next) due.

    first_due_ms: when it was first due, where a failed publish has moved that. last_error: how the
    last publish failed; failing_ms: since when. fired: handed to the broker, or about to be.
    reason: why it is parked or dead. dead_ms: when it was buried. is_readable: its record is there
    and understood; else body is that record, and nothing but id, state, reason, dead_ms is known.
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
    first_due_ms: int | None = None
    last_error: str | None = None
    failing_ms: int | None = None
    reason: str | None = None
    dead_ms: int | None = None
    bucket: int = 0
    fired: bool = False
    is_readable: bool = True


class Page(NamedTuple):
    """Some messages in order, and where the next page begins (None: this was the last)."""

    items: list[Stored]
    cursor: Cursor | None


class BucketStats(NamedTuple):
    """One bucket. owner: the lease's holder, None if nobody; lease_ms: what is left of it.

    damage: the keys that hold what delaybridge never wrote there; what they hold is not counted.
    dead_dropped: messages that were dropped because the dead set was beyond its bounds.
    """

    bucket: int
    delayed: int
    in_flight: int
    parked: int
    dead: int
    next_due_ms: int | None
    overdue_ms: int
    owner: str | None
    lease_ms: int | None
    damage: tuple[Damage, ...] = ()
    dead_dropped: int = 0


class Stats(NamedTuple):
    """The whole namespace. overdue_ms: how late the oldest message still waiting is; 0 if none.

    retrying: messages whose last publish failed, of each bucket about a thousand (retrying_sampled:
    there are more). troubles: what the workers park, and why.
    """

    now_ms: int
    delayed: int
    in_flight: int
    parked: int
    dead: int
    next_due_ms: int | None
    overdue_ms: int
    buckets: list[BucketStats]
    workers: list[WorkerInfo]
    ingests: Sequence[IngestInfo] = ()
    retrying: Sequence[Retrying] = ()
    retrying_sampled: bool = False
    troubles: Sequence[Trouble] = ()
    damage: tuple[Damage, ...] = ()
    dead_dropped: int = 0

    @property
    def all_damage(self) -> list[Damage]:
        """Of the namespace's keys, then of the buckets'."""
        return [*self.damage, *(one for bucket in self.buckets for one in bucket.damage)]


class Calls:
    """What each call of a client does, sans I/O."""

    def __init__(
        self,
        namespace: str,
        brokers: Mapping[str, str] | None,
        buckets: int | None,
        limits: Limits,
    ) -> None:
        self.namespace = check_namespace(namespace)
        self.limits = limits
        self.kinds = kinds_of(brokers)
        self._asked = None if buckets is None else check_buckets(buckets)
        self.quota = Quota(limits, self.kinds)
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
        record, memory = yield Each([registry.read_birth(self.namespace), registry.info("memory")])
        if (error := of_all([record, memory])) is not None or isinstance(memory, StoreError):
            raise error or memory
        if isinstance(record, StoreError):
            found = damage.of_birth(self.namespace)
            raise StoreDamaged(f"redis: {found}; write it again: {found.remedy}") from record
        if memory.get("maxmemory_policy", _EVICTION) != _EVICTION:
            raise ConfigError(
                f"redis: maxmemory-policy is {memory['maxmemory_policy']}: Redis would drop "
                f"messages when full; set: maxmemory-policy {_EVICTION}"
            )
        if record is None:  # only now a write: a full Redis would refuse it
            count = self._asked or DEFAULT_BUCKETS
            _, record = yield registry.birth(self.namespace, count, secrets.token_hex(8))
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
        """`schedule_accepted`, as a new call."""
        return self.schedule_accepted([(verbs.new_stamp(), m) for m in messages], policy)

    def schedule_accepted(
        self, messages: Sequence[tuple[bytes, Accepted]], policy: OnConflict
    ) -> Steps[list[Receipt]]:
        """The receipt of each; raised if one of them was refused by the store."""
        answer = receipts((yield from self.schedule_each(messages, policy)))
        if isinstance(answer, Exception):
            raise answer
        return answer

    def schedule_each(
        self, messages: Sequence[tuple[bytes, Accepted]], policy: OnConflict
    ) -> Steps[list[Receipt | Exception]]:
        """One script call per bucket and thousand messages, all in one pipeline.

        The receipt of each, or why the store refused the script call that it was part of.
        """
        found: list[Any] = [None] * len(messages)
        todo = list(range(len(messages)))
        for again in (False, True):
            buckets = yield from self.open(again=again)
            todo = todo if again else (yield from self._within_quota(messages, todo, found))
            calls = list(_calls(messages, todo, len(buckets)))
            replies = yield Each(
                [
                    buckets[number].schedule([messages[i] for i in call], policy, first=again)
                    for number, call in calls
                ]
            )
            todo = []
            for (number, call), reply in zip(calls, replies, strict=True):
                if reply is None:  # born in another namespace, or not yet: read the record anew
                    todo += call
                    continue
                if isinstance(reply, StoreError):
                    reply = yield from self.explained(buckets[number], reply)
                for i, receipt in zip(call, _receipts(messages, call, reply, number), strict=True):
                    found[i] = receipt
            if not todo:
                return found
        for i in todo:
            found[i] = StoreWiped()
        return found

    def _within_quota(
        self,
        messages: Sequence[tuple[bytes, Accepted]],
        todo: list[int],
        found: list[Any],
    ) -> Steps[list[int]]:
        """Those that may be written; the others' errors are noted."""
        if not (yield from self.quota.look(self._buckets)):
            return todo
        for i in todo:
            payload = messages[i][1].payload
            found[i] = self.quota.refusal(payload)
            if found[i] is None:
                self.quota.count(payload)
        return [i for i in todo if found[i] is None]

    def cancel(self, id: str, key: bytes | None) -> Steps[Answer]:
        """Cancel by id in its own bucket and, without a key, in every other."""
        (answer,) = yield from self.cancel_many([id], key)
        return answer

    def reschedule(self, id: str, key: bytes | None, due: str) -> Steps[Answer]:
        """Reschedule by id, likewise."""
        (answer,) = yield from self.reschedule_many([id], [due], key)
        return answer

    def kick(self, id: str, key: bytes | None) -> Steps[Answer]:
        """Kick by id, likewise."""
        (answer,) = yield from self.kick_many([id], [0], key)
        return answer

    def discard(self, id: str, key: bytes | None) -> Steps[Answer]:
        """Discard by id, likewise."""
        (answer,) = yield from self.discard_many([id], key)
        return answer

    def cancel_many(self, messages: Sequence[Named], key: bytes | None) -> Steps[list[Answer]]:
        """Cancel each; all in one pipeline."""
        return (yield from self._each(messages, key, lambda b, s, id, _: b.cancel(s, id)))

    def reschedule_many(
        self, messages: Sequence[Named], dues: Sequence[str], key: bytes | None
    ) -> Steps[list[Answer]]:
        """Reschedule each to its own time, likewise."""
        return (
            yield from self._each(messages, key, lambda b, s, id, i: b.reschedule(s, id, dues[i]))
        )

    def kick_many(
        self, messages: Sequence[Named], delays_ms: Sequence[int], key: bytes | None
    ) -> Steps[list[Answer]]:
        """Kick each, due that much later, or what is quarantined under that id.

        Not what would only be buried again.
        """
        refused = yield from self._unreadable(messages, key)
        places = [i for i in range(len(messages)) if i not in refused]
        answers = yield from self._each_or_beside(
            [messages[i] for i in places],
            *(key, lambda b, s, id, i: b.kick(s, id, delays_ms[places[i]])),
        )
        kicked = dict(zip(places, answers, strict=True))
        return [kicked.get(i, Answer.UNREADABLE) for i in range(len(messages))]

    def _unreadable(self, messages: Sequence[Named], key: bytes | None) -> Steps[set[int]]:
        """The places of those that were buried as unreadable, and are so to this version, too."""
        buckets = yield from self.open()
        asked = [(i, b) for i, m in enumerate(messages) for b in _asked_for(m, key, buckets)]
        reasons = yield [looks.why_dead(bucket, _id(messages[i])) for i, bucket in asked]
        doubtful = [
            at for at, why in zip(asked, reasons, strict=True) if why.startswith(_UNDECODABLE)
        ]
        rows = (yield [b.get(_id(messages[i])) for i, b in doubtful]) if doubtful else []
        return {
            i
            for (i, _), row in zip(doubtful, rows, strict=True)
            if row is not None and not stored(row, 0).is_readable
        }

    def discard_many(self, messages: Sequence[Named], key: bytes | None) -> Steps[list[Answer]]:
        """Discard each, likewise."""
        return (
            yield from self._each_or_beside(messages, key, lambda b, s, id, _: b.discard(s, id))
        )

    def get(self, id: str, key: bytes | None) -> Steps[Stored | None]:
        """The message, wherever it is."""
        asked = _asked_for(id, key, (yield from self.open()))
        rows = yield Each(bucket.get(id) for bucket in asked)
        for bucket, row in zip(asked, rows, strict=True):
            if isinstance(row, Row):
                (found,) = yield from self._explained([stored(row, bucket.number)])
                return found
        yield from self._check(asked, rows)
        return None

    def quarantined(self, id: str) -> Steps[list[Stored]]:
        """What ingest could not accept of the messages that brought this id."""
        bucket = _asked_for(id, None, (yield from self.open()))[0]
        rows = yield [bucket.get(name) for name in all_beside(id)]
        return [stored(row, bucket.number) for row in rows if row is not None]

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
        low, high = span_scores(state, span_ms)
        items: list[Stored] = []
        while True:
            pages = yield Each(
                bucket.page(state, limit=limit, after=cursor, low=low, high=high)
                for bucket in buckets
            )
            yield from self._check(buckets, pages)
            rows, more = _merged(buckets, pages)
            for score, _, number, row in rows:
                # One id under several keys, at one score: no cursor could point between them.
                if len(items) >= limit and cursor != (score, row.id):
                    return Page((yield from self._explained(items)), cursor)
                cursor = (score, row.id)
                item = stored(row, number)
                if destination in (None, item.destination) and within(item.due_ms, span_ms):
                    items.append(item)
            if more and len(items) >= limit:
                return Page((yield from self._explained(items)), cursor)
            if not more:
                return Page((yield from self._explained(items)), None)

    def _explained(self, items: list[Stored]) -> Steps[list[Stored]]:
        """The same; of what is parked with the reason that the worker of its bucket gives."""
        numbers = sorted({item.bucket for item in items if item.state is State.PARKED})
        if not numbers:
            return items
        asked = [looks.holder(self._buckets[number]) for number in numbers]
        replies = yield Each([*asked, *registry.fleet(self.namespace), registry.store_time()])
        if (error := of_all(replies)) is not None:
            raise error
        *holders, info, expiries, now_us = replies
        holder_of = dict(zip(numbers, holders, strict=True))
        living = announcements.workers(_intact([info, expiries]), [], now_us // 1000)
        said = {each.name: each.said for each in living}
        return [
            replace(item, reason=_why_parked(item.destination, holder_of[item.bucket], said))
            if item.state is State.PARKED
            else item
            for item in items
        ]

    def stats(self) -> Steps[Stats]:
        """Counts of every bucket, and the fleet, in one pipeline."""
        buckets = yield from self.open()
        parts: list[list[Command[Any]]] = []
        for bucket in buckets:
            firsts = [bucket.page(state, limit=1) for state in _WAITING]
            parts.append([*looks.counts(bucket), *firsts, *damage.look(bucket)])
        parts += (registry.fleet(self.namespace, ingests=ingests) for ingests in (False, True))
        parts.append(damage.look_at_lists(self.namespace))
        asked = Each(chain.from_iterable(parts))
        *flat, now_us = yield Each([*asked, registry.store_time()])
        if (error := of_all([*flat, now_us])) is not None:
            raise error
        now_ms, replies = now_us // 1000, iter(flat)
        *of_buckets, workers, ingests, lists = (list(islice(replies, len(p))) for p in parts)
        retrying, sampled = yield from self._retrying()
        counts = [
            _bucket_stats(bucket, of, now_ms)
            for bucket, of in zip(buckets, of_buckets, strict=True)
        ]
        owners = [c.owner for c in counts]
        living = announcements.workers(_intact(workers), owners, now_ms)
        return Stats(
            now_ms,
            sum(c.delayed for c in counts),
            sum(c.in_flight for c in counts),
            sum(c.parked for c in counts),
            sum(c.dead for c in counts),
            min((c.next_due_ms for c in counts if c.next_due_ms is not None), default=None),
            max(c.overdue_ms for c in counts),
            counts,
            living,
            announcements.ingests(_intact(ingests), now_ms),
            retrying,
            sampled,
            [trouble for each in living for trouble in each.said.troubles(each.name)],
            (*damage.found_in_lists(self.namespace, lists), *_reported(living, counts)),
            sum(c.dead_dropped for c in counts),
        )

    def _retrying(self) -> Steps[tuple[list[Retrying], bool]]:
        """What is tried again, by destination and reason; whether that is not all of it."""
        buckets = self._buckets
        replies = yield Each(looks.failing(bucket, _SAMPLE) for bucket in buckets)
        answers = [({}, True) if isinstance(reply, StoreError) else reply for reply in replies]
        asked = [(b, found) for b, (found, _) in zip(buckets, answers, strict=True) if found]
        # A worker of an older version settles a message and leaves its error behind.
        tried = (yield [looks.tried(bucket, found) for bucket, found in asked]) if asked else []
        failing = [
            each
            for (_, found), known in zip(asked, tried, strict=True)
            for each, now in zip(found.values(), known, strict=True)
            if now is not None
        ]
        return counted(failing), not all(whole for _, whole in answers)

    def _each(
        self, messages: Sequence[Named], key: bytes | None, verb: _Verb
    ) -> Steps[list[Answer]]:
        """The verb on each message; where several buckets are asked, the furthest answer."""
        buckets = yield from self.open()
        stamp = verbs.new_stamp()
        places = [_asked_for(message, key, buckets) for message in messages]
        asked = [
            [verb(bucket, stamp, _id(message), i) for bucket in place]
            for i, (message, place) in enumerate(zip(messages, places, strict=True))
        ]
        replies = iter((yield Each(chain.from_iterable(asked))))
        answers = []
        for place in places:
            mine = list(islice(replies, len(place)))
            answer = min(filter(_is_answer, mine), key=FURTHEST.index, default=Answer.UNKNOWN)
            if answer is Answer.UNKNOWN:  # unless it lies in the bucket that cannot say so
                yield from self._check(place, mine)
            answers.append(answer)
        return answers

    def _check(self, asked: Sequence[Bucket], replies: Sequence[Any]) -> Steps[None]:
        """Raise what the first bucket that refused its verb was damaged by."""
        for bucket, reply in zip(asked, replies, strict=True):
            if isinstance(reply, StoreError):
                raise (yield from self.explained(bucket, reply))

    def explained(self, bucket: Bucket, error: StoreError) -> Steps[StoreError]:
        """The error, with the key that is damaged, if that is why."""
        if isinstance(error, StoreFull) or of_all([error]):
            return error
        found = damage.found(bucket, (yield Each(damage.look(bucket))))
        if not found:
            return error
        return StoreDamaged(f"redis: {found[0]}; see: delaybridge doctor")

    def _each_or_beside(
        self, messages: Sequence[Named], key: bytes | None, verb: _Verb
    ) -> Steps[list[Answer]]:
        """As `_each`; on all that is quarantined under an id where the id itself is unknown."""
        answers = yield from self._each(messages, key, verb)
        stamp, buckets = verbs.new_stamp(), self._buckets
        for i, (message, answer) in enumerate(zip(messages, answers, strict=True)):
            if answer is Answer.UNKNOWN and isinstance(message, str):
                bucket = _asked_for(message, None, buckets)[0]
                found = yield [verb(bucket, stamp, name, i) for name in all_beside(message)]
                answers[i] = min(found, key=FURTHEST.index)
        return answers


def _is_answer(reply: object) -> bool:
    return isinstance(reply, Answer)


def _asked_for(message: Named, key: bytes | None, buckets: list[Bucket]) -> list[Bucket]:
    """The id's own bucket, then all others: a message with a key lies in the key's bucket."""
    if isinstance(message, Selected):
        return [buckets[message.bucket]]
    number = keys.bucket_of(message.encode() if key is None else key, len(buckets))
    if key is not None:
        return [buckets[number]]
    return [buckets[number], *buckets[:number], *buckets[number + 1 :]]


def _id(message: Named) -> str:
    return message.id if isinstance(message, Selected) else message


def _receipts(
    messages: Sequence[tuple[bytes, Accepted]], call: Sequence[int], reply: Any, number: int
) -> list[Any]:
    """Of each message of one script call: its receipt, or the error of the call."""
    if isinstance(reply, Exception):
        return [reply] * len(call)
    return [
        Receipt(answer, messages[i][1].id, due_ms, number)
        for i, (answer, due_ms) in zip(call, reply, strict=True)
    ]


def receipts(found: list[Receipt | Exception]) -> list[Receipt] | Exception:
    """The answer to one caller: its receipts, or why there is not one for each message."""
    errors = [one for one in found if isinstance(one, Exception)]
    if not errors:
        return found  # type: ignore[return-value]
    # Only where all others are known to be stored does StoreFull tell how many are not.
    doubt = next((error for error in errors if not isinstance(error, StoreFull)), None)
    if doubt is None and len(errors) < len(found):
        why = "Redis is out of memory" if str(errors[0]) == str(StoreFull()) else errors[0]
        return StoreFull(
            f"{why}: {len(errors)} of {len(found)} messages were not written; call again with the "
            "same ids"
        )
    return doubt or errors[0]


def stored(row: Row, bucket: int) -> Stored:
    """A row of the store, decoded as far as it can be."""
    dead_ms = row.score_ms if row.state is State.DEAD else None
    try:
        score, payload = split_record(row.record)
        record = decode_record(payload)
        headers = _headers(record.headers)
        properties = _properties(record.properties)
        if record.partition is not None:
            properties["partition"] = record.partition
    except DecodeError as exc:
        return Stored(
            id=row.id, state=row.state, due_ms=row.score_ms, priority=0, destination="",
            body=row.record, reason=row.reason or f"{exc.code}: {exc.detail}", bucket=bucket,
            attempts=row.tried.failures, dead_ms=dead_ms, is_readable=False,
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
        first_due_ms=row.tried.due_ms,
        last_error=row.failing and row.failing.error,
        failing_ms=row.failing and row.failing.since_ms,
        reason=(row.reason or None) if row.state is State.DEAD else None,
        dead_ms=dead_ms,
        bucket=bucket,
        fired=row.fired,
    )


def _why_parked(destination: str, holder: str | None, said: Mapping[str, Said]) -> str:
    if holder is None:
        return "no_worker: its bucket has none"
    return said.get(holder, Said()).why(destination)


def _properties(properties: tuple[int, bytes, bytes] | bytes | None) -> dict[str, Any]:
    if isinstance(properties, bytes):
        return dict(decode_table(properties))
    return decode_properties(*properties) if properties else {}


def _headers(headers: bytes | HeaderPairs) -> list[tuple[str, Any]]:
    return decode_table(headers) if isinstance(headers, bytes) else list(headers)


def _calls(
    messages: Sequence[tuple[bytes, Accepted]], todo: Iterable[int], buckets: int
) -> Iterable[tuple[int, list[int]]]:
    """Positions by bucket, in order, cut where a script call would grow too large."""
    by_bucket: dict[int, list[int]] = {}
    for i in todo:
        by_bucket.setdefault(keys.bucket_of(messages[i][1].shard_key, buckets), []).append(i)
    for number, places in by_bucket.items():
        call: list[int] = []
        size = 0
        for i in places:
            size += len(messages[i][1].payload)
            if call and (len(call) == _CALL_MESSAGES or size > _CALL_BYTES):
                yield number, call
                call, size = [], len(messages[i][1].payload)
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


def _bucket_stats(bucket: Bucket, replies: list[Any], now_ms: int) -> BucketStats:
    # What cannot be read is not counted: its key is among the damage.
    looks = len(replies) - len(damage.look(bucket))
    counts = [None if isinstance(reply, StoreError) else reply for reply in replies[:looks]]
    delayed, in_flight, parked, dead, head, parked_head, holder, left_ms, dropped, *firsts = counts
    rows = (row for page in firsts if page for row in page[0])
    waiting = [at_ms for row in rows if (at_ms := _late_from_ms(row)) is not None]
    return BucketStats(
        bucket.number,
        *(delayed or 0, in_flight or 0, parked or 0, dead or 0),
        None if head is None else int(head),
        max(0, now_ms - min(waiting, default=now_ms)),
        holder,
        left_ms if holder is not None else None,
        tuple(damage.found(bucket, replies[looks:])),
        dropped or 0,
    )


def _reported(living: Sequence[WorkerInfo], counts: Sequence[BucketStats]) -> Iterable[Damage]:
    """What workers found damaged and a look does not show."""
    shown = {str(count.bucket) for count in counts if count.damage}
    for worker in living:
        for bucket, said in worker.damaged.items():
            if bucket not in shown and said:
                what, _, remedy = said.partition("; mend it: ")
                yield Damage(f"bucket {bucket}", f"waits: {what}", remedy or "see the worker's log")


def _intact(replies: list[Any]) -> announcements.Said:
    """What is said and until when; nothing of what cannot be read."""
    info, expiries = replies
    known = {} if isinstance(info, StoreError) else info
    return known, [] if isinstance(expiries, StoreError) else expiries


def _late_from_ms(row: Row) -> int | None:
    """From when on a message that waits is late; None where nothing says so."""
    try:
        return since_ms(row.record)
    except DecodeError:
        return None if row.state is State.IN_FLIGHT else row.score_ms
