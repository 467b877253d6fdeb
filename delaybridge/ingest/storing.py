"""Entries into the store: many in one pipeline, in their order."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Any

from delaybridge import failpoints
from delaybridge.errors import NotDurable, StoreError, StoreFull, StoreUnavailable, StoreWiped
from delaybridge.events import Emit, StoreSilent
from delaybridge.ingest.entries import Change, Entry, Quarantine, Schedule
from delaybridge.ingest.owner import Owner
from delaybridge.message import Answer
from delaybridge.store.calls import Calls
from delaybridge.store.messages.changes import furthest
from delaybridge.store.protocol import verbs
from delaybridge.store.protocol.bucket import Bucket
from delaybridge.store.protocol.together import together
from delaybridge.store.protocol.verbs import (
    NO_SOURCE,
    Each,
    EachMade,
    RedisCommand,
    SourceOffsets,
    Steps,
    plain,
)
from delaybridge.store.redis.durability import confirmed
from delaybridge.store.redis.store import AsyncStore

AGAIN_S = 0.05  # between two attempts for an id that is in flight
PATIENCE_S = 30.0  # how long an id may be in flight before the entry is quarantined
TURN_MESSAGES = 200  # read in one turn of the loop: Redis is to get the batch before meanwhile
_CREATED = frozenset((Answer.CREATED,))
_SCHEDULED = _CREATED | {Answer.DUPLICATE}
_CALL_MESSAGES = 1000
_CALL_BYTES = 4 * 2**20
_PAUSE_S = 0.2

Found = Answer | Exception | None
"""What became of an entry. None: it was not looked at and must be sent again. An error: of its
bucket; whether the entry took effect is unknown. `OverLimit`: it was not sent."""


class OverLimit(StoreFull):
    """As many messages as a quota allows are pending: this one waits until some have gone out."""

    def __init__(self, limit: str) -> None:
        super().__init__(f"{limit} is reached: raise it, or wait until some have gone out")


@dataclass(slots=True)
class _Call:
    """One script call (a change: one per bucket), and the places of its entries.

    room: for more of them, in bytes; negative: none may join any more.
    """

    kind: tuple[Any, ...]
    buckets: list[Bucket]
    places: list[int] = field(default_factory=list)
    room: int = _CALL_BYTES

    def take_answers(self, found: Sequence[Any], answers: list[Found]) -> None:
        """Put the scripts' answers into the places of its entries.

        Of several buckets' answers one counts; an error only if no bucket had anything to change.
        """
        error = next((reply for reply in found if isinstance(reply, Exception)), None)
        if self.kind[0] == "change":
            answer = furthest(reply for reply in found if isinstance(reply, Answer))
            answers[self.places[0]] = error if error and answer is Answer.UNKNOWN else answer
            return
        if error is not None:
            found = [[error] * len(self.places)]
        for place, answer in zip(self.places, found[0], strict=False):
            answers[place] = answer[0] if isinstance(answer, tuple) else answer


class EntryStore:
    """The store, as the ingest of a broker uses it. calls: of the namespace."""

    def __init__(self, store: AsyncStore, calls: Calls, emit: Emit) -> None:
        self.calls = calls
        self._store, self._emit = store, emit

    def owner(self, take_over: Iterable[str]) -> Owner:
        """This namespace, as its sources name it."""
        return Owner.of_namespace(self.calls.namespace, self.calls.birth, take_over)

    @property
    def redis(self) -> AsyncStore:
        """For what is the namespace's."""
        return self._store

    @property
    def buckets(self) -> int:
        """How many there are, once the store has answered."""
        return len(self.calls.buckets)

    async def store(self, entries: Sequence[Entry]) -> list[Found]:
        """`store_entries`, repeated while the store as a whole is full or does not answer."""
        while True:
            try:
                answers = await self._store.complete(store_entries(self.calls, entries))
            except (StoreUnavailable, StoreFull) as exc:
                await self.pause({None: exc}, _PAUSE_S)
                continue
            if entries:
                failpoints.reach("ingest.stored")
            return answers

    async def pause(self, errors: Mapping[Any, Exception], pause_s: float) -> None:
        """Wait before entries are sent again, by bucket: why they were not stored. None: any."""
        for error in {str(e): e for e in errors.values()}.values():
            if isinstance(error, StoreUnavailable | StoreFull) and type(error) is not OverLimit:
                self._emit(StoreSilent(reason=str(error)))
        lacking = {n for n, error in errors.items() if isinstance(error, NotDurable)}
        if lacking:
            await self._until_confirmed(lacking)
        else:
            await asyncio.sleep(pause_s)

    async def _until_confirmed(self, numbers: set[Any]) -> None:
        """Wait until Redis confirms writes again.

        Entries that are sent again each time, and are due soon, would be published each time.
        """
        of = [b for i, b in enumerate(self.calls.buckets) if i in numbers or None in numbers]
        while True:
            try:
                await self._store.complete(confirmed(of))
                return
            except StoreError as exc:
                self._emit(StoreSilent(reason=str(exc)))
                await asyncio.sleep(_PAUSE_S)


def are_scheduled(
    entries: Sequence[Entry], answers: Sequence[Found], *, are_loose: bool = False
) -> bool:
    """Whether all entries are pending messages now: the usual case, with nothing left to do.

    are_loose: as `Schedule` has it; then a duplicate may be another message.
    """
    if not {Schedule}.issuperset(map(type, entries)):
        return False
    # Counting looks at identity, and hashing a member of an enumeration calls Python.
    return answers.count(Answer.CREATED) == len(answers) or (
        (_CREATED if are_loose else _SCHEDULED).issuperset(answers)
    )


def store_entries(calls: Calls, entries: Sequence[Entry]) -> Steps[list[Found]]:
    """What became of each entry: the error of one bucket concerns only its own entries.

    Entries of one bucket, and those of one id, take effect in their order. Send what follows a
    change in its id once that is answered: it may have to be sent again. Entries from a source get
    one call per bucket, which stops at a conflict or an id in flight; entries after it, or beyond
    the call's bounds, are not looked at. Send a change from a source by itself, once all entries
    before it are answered. StoreWiped if the namespace is not there, or no bucket is of it.
    """
    buckets = yield from calls.open()
    answers: list[Found] = [None] * len(entries)
    todo: Sequence[int] = range(len(entries))
    with calls.quota.under_way():
        if (yield from calls.quota.read_counts(calls.following.held())):
            todo = _check_quota(calls, entries, answers, buckets)
        todo = yield from _send(calls, entries, todo, answers)
        if todo:
            yield from _send_first(calls, entries, todo, answers)
    return answers


def _send(
    calls: Calls,
    entries: Sequence[Entry],
    todo: Iterable[int],
    answers: list[Found],
    *,
    first: bool = False,
) -> Steps[list[int]]:
    """Send these; places to be sent again, as `_take_answers` says."""
    planned = _plan(entries, todo, calls.buckets)
    asked = [(call, bucket) for call in planned for bucket in call.buckets]
    # Each command is made when it is sent: Redis works on the one before meanwhile.
    replies = yield EachMade(
        partial(_command, call, bucket, entries, first=first) for call, bucket in asked
    )
    yield from _explain(calls, [bucket for _, bucket in asked], replies)
    rest = iter(replies)
    return _take_answers(((c, list(islice(rest, len(c.buckets)))) for c in planned), answers)


def _send_first(
    calls: Calls, entries: Sequence[Entry], todo: Sequence[int], answers: list[Found]
) -> Steps[None]:
    """Send to buckets that have no birth id yet, once the namespace's record was read again."""
    (found,) = yield from together([calls.open(again=True)])
    if isinstance(found, StoreUnavailable):
        for place in todo:
            answers[place] = found.with_traceback(None)  # its frames hold the entries
        return
    if isinstance(found, Exception):
        raise found
    if todo := (yield from _send(calls, entries, todo, answers, first=True)):
        yield from _refuse(calls, entries, todo, answers)


def _explain(calls: Calls, asked: Sequence[Bucket], replies: list[Any]) -> Steps[None]:
    """Put the damaged key of each bucket that refused into its errors."""
    found: dict[int, StoreError] = {}
    for place, (bucket, reply) in enumerate(zip(asked, replies, strict=True)):
        if isinstance(reply, StoreError):
            if bucket.number not in found:
                found[bucket.number] = yield from calls.explained(bucket, reply)
            replies[place] = found[bucket.number]


def _refuse(
    calls: Calls, entries: Sequence[Entry], todo: Sequence[int], answers: list[Found]
) -> Steps[None]:
    """Put an error in the places of buckets that say they are another namespace's.

    StoreWiped if all of them are; one alone is damaged.
    """
    births = yield Each(plain("HGET", each.key("marks"), "birth") for each in calls.buckets)
    if calls.birth.encode() not in births:
        raise StoreWiped
    found: dict[int, StoreError] = {}
    for place in todo:
        shard_key = shard_key_of(entries[place]) or id_of(entries[place]).encode()
        number = verbs.bucket_of(shard_key, len(calls.buckets))
        if number not in found:
            found[number] = yield from calls.explained(calls.buckets[number], StoreWiped())
        answers[place] = found[number]


def _take_answers(answered: Iterable[tuple[_Call, list[Any]]], answers: list[Found]) -> list[int]:
    """Put the answers of all calls into their places; places to be sent again.

    A bucket that answers None is not initialized, or is of another namespace. Its later entries are
    sent again, too, since a change must come after the entries before it.
    """
    left: list[int] = []
    unborn: set[int] = set()
    for call, found in answered:
        number = call.buckets[0].number
        if found[0] is None or number in unborn:
            unborn.add(number)
            left += call.places
        else:
            call.take_answers(found, answers)
    return sorted(left)


def _check_quota(
    calls: Calls, entries: Sequence[Entry], answers: list[Found], buckets: Sequence[Bucket]
) -> list[int]:
    """Put `OverLimit` in the places of entries for which there is no room; returns the others.

    What may not overtake such an entry waits with it: the same id, the same source and bucket.
    """
    todo: list[int] = []
    full: dict[object, OverLimit] = {}
    for place, entry in enumerate(entries):
        ways: list[object] = [id_of(entry)]
        if not isinstance(entry, Quarantine) and entry.source:
            ways.append((entry.source, verbs.bucket_of(shard_key_of(entry) or b"", len(buckets))))
        error = next((full[way] for way in ways if way in full), None) or _no_room(calls, entry)
        if error is None:
            todo.append(place)
        else:
            full |= dict.fromkeys(ways, error)
            answers[place] = error
    return todo


def _no_room(calls: Calls, entry: Entry) -> OverLimit | None:
    """The error if this entry is over a quota; otherwise it counts."""
    if not isinstance(entry, Schedule):
        return None
    if (refusal := calls.quota.refusal(entry.accepted.payload)) is not None:
        return OverLimit(refusal.limit)
    calls.quota.count(entry.accepted.payload)
    return None


def _plan(entries: Sequence[Entry], todo: Iterable[int], buckets: Sequence[Bucket]) -> list[_Call]:
    planned: list[_Call] = []
    latest: defaultdict[str, dict[int, _Call]] = defaultdict(dict)  # by source and bucket
    kind: tuple[Any, ...] = ()
    for place in todo:
        entry = entries[place]
        if isinstance(entry, Schedule):
            accepted, source = entry.accepted, entry.source
            size, key = len(accepted.payload), accepted.shard_key
            asked: tuple[Any, ...] = "schedule", entry.policy, source, entry.reach, entry.maybe
        elif isinstance(entry, Change):
            planned.append(_Call(("change",), _buckets_of(entry, buckets), [place]))
            latest.clear()
            kind = ()
            continue
        else:
            size, key, source = len(entry.payload), id_of(entry).encode(), ""
            asked = ("quarantine",)
        if asked != kind:
            kind, calls = asked, latest[source]
        number = verbs.bucket_of(key, len(buckets))
        call = calls.get(number)
        if (
            call is None or call.room < size or call.kind != kind
            or len(call.places) == _CALL_MESSAGES
        ):  # fmt: skip
            if call is not None and source:
                call.room = -1
                continue
            call = calls[number] = _Call(kind, [buckets[number]], [])
            planned.append(call)
        call.places.append(place)
        call.room -= size
    return planned


def id_of(entry: Entry) -> str:
    """The id of the message that it makes or changes; of a refused one, its own."""
    if isinstance(entry, Schedule):
        return entry.accepted.id
    return entry.own_id or entry.id if isinstance(entry, Quarantine) else entry.id


def shard_key_of(entry: Entry) -> bytes | None:
    """What chooses its bucket; None: it asks all."""
    if isinstance(entry, Schedule):
        return entry.accepted.shard_key
    return entry.shard_key if isinstance(entry, Change) else id_of(entry).encode()


def _buckets_of(entry: Change, buckets: Sequence[Bucket]) -> list[Bucket]:
    """The bucket of its key; without a key first the id's own, then all others."""
    own = verbs.bucket_of(
        entry.id.encode() if entry.shard_key is None else entry.shard_key, len(buckets)
    )
    if entry.shard_key is not None:
        return [buckets[own]]
    return [buckets[own], *buckets[:own], *buckets[own + 1 :]]


def _command(
    call: _Call, bucket: Bucket, entries: Sequence[Entry], *, first: bool
) -> RedisCommand[Any]:
    mine: list[Any] = [entries[place] for place in call.places]
    if call.kind[0] == "quarantine":
        return bucket.quarantine([(e.stamp, e.id, e.payload, e.reason) for e in mine], first=first)
    if call.kind[0] == "change":
        return _change(mine[0], bucket)
    _, policy, name, reach, maybe = call.kind
    source = SourceOffsets(name, [entry.offset for entry in mine]) if name else NO_SOURCE
    messages = [(entry.stamp, entry.accepted) for entry in mine]
    return bucket.schedule(messages, policy, source=source, reach=reach, maybe=maybe, first=first)


def _change(entry: Change, bucket: Bucket) -> RedisCommand[Answer]:
    read_from: dict[str, Any] = {
        "source": entry.source,
        "offset": max(entry.offset, 0),
        "reach": entry.reach,
    }
    if entry.when:
        return bucket.reschedule(entry.stamp, entry.id, entry.when, **read_from)
    return bucket.cancel(entry.stamp, entry.id, **read_from, otherwise=entry.otherwise is not None)
