"""Entries into the store: many in one pipeline, in their order."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Any

from delaybridge import failpoints
from delaybridge.errors import NotDurable, StoreFull, StoreUnavailable, StoreWiped
from delaybridge.events import Emit, StoreSilent
from delaybridge.ingest.entries import Change, Entry, Schedule
from delaybridge.ingest.owner import Owner
from delaybridge.message import Answer
from delaybridge.store import keys
from delaybridge.store.calls import Calls
from delaybridge.store.changes import ANSWER_PRECEDENCE
from delaybridge.store.command import Each, RedisCommand, Steps
from delaybridge.store.durability import confirmed
from delaybridge.store.store import AsyncStore
from delaybridge.store.verbs import NO_SOURCE, Bucket, SourceOffsets

AGAIN_S = 0.05  # between two attempts for an id that is in flight
PATIENCE_S = 30.0  # how long an id may be in flight before the entry is quarantined
TURN_MESSAGES = 200  # read in one turn of the loop: Redis is to get the batch before meanwhile
_SCHEDULED = frozenset((Answer.CREATED, Answer.DUPLICATE))
_CALL_MESSAGES = 1000
_CALL_BYTES = 4 * 2**20
_PAUSE_S = 0.2


@dataclass(slots=True)
class _Call:
    """One script call (a change: one per bucket), and the places of its entries."""

    kind: tuple[Any, ...]
    buckets: list[Bucket]
    places: list[int] = field(default_factory=list)
    size: int = 0
    is_full: bool = False

    def may_take(self, kind: tuple[Any, ...], size: int) -> bool:
        """Whether an entry of this kind and size may join; if not, no later one may, either."""
        if len(self.places) >= _CALL_MESSAGES or self.size + size > _CALL_BYTES:
            self.is_full = True
        self.is_full |= self.kind != kind
        return not self.is_full

    def take_answers(self, found: Sequence[Any], answers: list[Answer | None]) -> None:
        """Put the scripts' answers into the places of its entries."""
        if self.kind[0] == "change":
            answers[self.places[0]] = min(found, key=ANSWER_PRECEDENCE.index)
            return
        for place, answer in zip(self.places, found[0], strict=False):
            answers[place] = answer if isinstance(answer, Answer) else answer[0]


class EntryStore:
    """The store, as the ingest of a broker uses it. calls: of the namespace."""

    def __init__(self, store: AsyncStore, calls: Calls, emit: Emit) -> None:
        self.calls = calls
        self._store, self._emit = store, emit

    def owner(self, take_over: Iterable[str]) -> Owner:
        """This namespace, as its sources name it."""
        return Owner.of(self.calls.namespace, self.calls.birth, take_over)

    async def insist(self, entries: Sequence[Entry]) -> list[Answer | None]:
        """`store_entries`, repeated while the store is full or does not answer."""
        while True:
            try:
                answers = await self._store.complete(store_entries(self.calls, entries))
            except NotDurable as exc:
                self._emit(StoreSilent(reason=str(exc)))
                await self._until_confirmed()
                continue
            except (StoreUnavailable, StoreFull) as exc:
                self._emit(StoreSilent(reason=str(exc)))
                await asyncio.sleep(_PAUSE_S)
                continue
            if failpoints.ARE_SET and entries:
                failpoints.reach("ingest.stored")
            return answers

    async def _until_confirmed(self) -> None:
        """Wait until Redis confirms writes again.

        Entries that are sent again each time, and are due soon, would be published each time.
        """
        while True:
            try:
                await self._store.complete(confirmed(self.calls.buckets))
                return
            except StoreUnavailable as exc:
                self._emit(StoreSilent(reason=str(exc)))
                await asyncio.sleep(_PAUSE_S)


def are_scheduled(entries: Sequence[Entry], answers: Sequence[Answer | None]) -> bool:
    """Whether all entries are pending messages now: the usual case, with nothing left to do."""
    return _SCHEDULED.issuperset(answers) and all(type(entry) is Schedule for entry in entries)


def store_entries(calls: Calls, entries: Sequence[Entry]) -> Steps[list[Answer | None]]:
    """The answer to each entry; None: it was not looked at and must be sent again.

    Entries of one bucket take effect in their order. Entries from a source get one call per bucket,
    which stops at a conflict or an id in flight; entries after it, or beyond the call's bounds, are
    not looked at. Send a change from a source by itself, once all entries before it are answered.
    StoreWiped if the namespace is not there, or is another one, after its record was read again.
    """
    answers: list[Answer | None] = [None] * len(entries)
    todo: Iterable[int] = range(len(entries))
    for again in (False, True):
        buckets = yield from calls.open(again=again)
        if not again and (yield from calls.quota.look(buckets)):
            _check_quota(calls, entries)
        planned = _plan(entries, todo, buckets)
        # Each command is made when it is sent: Redis works on the one before meanwhile.
        replies = yield Each(
            partial(_command, call, bucket, entries, first=again)
            for call in planned
            for bucket in call.buckets
        )
        error = next((reply for reply in replies if isinstance(reply, Exception)), None)
        if error is not None:
            try:
                raise error
            finally:
                del error, replies  # or the frame and the error would hold each other
        rest = iter(replies)
        todo = _take_answers(((c, list(islice(rest, len(c.buckets)))) for c in planned), answers)
        if not todo:
            return answers
    raise StoreWiped


def _take_answers(
    answered: Iterable[tuple[_Call, list[Any]]], answers: list[Answer | None]
) -> list[int]:
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


def _check_quota(calls: Calls, entries: Sequence[Entry]) -> None:
    """StoreFull before anything is written if there is not room for all."""
    payloads = [entry.accepted.payload for entry in entries if isinstance(entry, Schedule)]
    for payload in payloads:
        if (refusal := calls.quota.refusal(payload)) is not None:
            raise refusal
    for payload in payloads:
        calls.quota.count(payload)


def _plan(entries: Sequence[Entry], todo: Iterable[int], buckets: Sequence[Bucket]) -> list[_Call]:
    planned: list[_Call] = []
    latest: dict[tuple[int, str], _Call] = {}  # by bucket and source
    for place in todo:
        entry = entries[place]
        if isinstance(entry, Change):
            planned.append(_Call(("change",), _buckets_of(entry, buckets), [place]))
            latest.clear()
            continue
        if isinstance(entry, Schedule):
            shard_key, size, source = (
                entry.accepted.shard_key,
                len(entry.accepted.payload),
                entry.source,
            )
            kind: tuple[Any, ...] = ("schedule", entry.policy, source, entry.reach, entry.maybe)
        else:
            shard_key, size, source = (entry.own_id or entry.id).encode(), len(entry.payload), ""
            kind = ("quarantine",)
        number = keys.bucket_of(shard_key, len(buckets))
        call = latest.get((number, source))
        if call is None or not call.may_take(kind, size):
            if call is not None and source:
                continue
            call = latest[number, source] = _Call(kind, [buckets[number]])
            planned.append(call)
        call.places.append(place)
        call.size += size
    return planned


def _buckets_of(entry: Change, buckets: Sequence[Bucket]) -> list[Bucket]:
    """The bucket of its key; without a key first the id's own, then all others."""
    own = keys.bucket_of(
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
