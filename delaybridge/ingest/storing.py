"""What ingest asks of the store, sans I/O: many entries in one pipeline, in their order."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from delaybridge.errors import StoreFull, StoreUnavailable, StoreWiped
from delaybridge.events import Emit, StoreSilent
from delaybridge.ingest.entries import Change, Entry, Schedule
from delaybridge.message import Answer
from delaybridge.store import keys
from delaybridge.store.calls import Calls
from delaybridge.store.changes import FURTHEST
from delaybridge.store.command import Command
from delaybridge.store.steps import Steps
from delaybridge.store.store import AsyncStore
from delaybridge.store.verbs import NOWHERE, Bucket, Source

AGAIN_S = 0.05  # between two looks at an id that is in flight
PATIENCE_S = 30.0  # then it is quarantined
_SCHEDULED = frozenset((Answer.CREATED, Answer.DUPLICATE))
_CALL_MESSAGES = 1000
_CALL_BYTES = 4 * 2**20
_PAUSE_S = 0.2


@dataclass(slots=True)
class _Call:
    """One script call and the entries it speaks of, by their places."""

    kind: tuple[Any, ...]
    buckets: list[Bucket]
    places: list[int] = field(default_factory=list)
    size: int = 0
    is_full: bool = False


async def insist(
    store: AsyncStore, calls: Calls, emit: Emit, entries: Sequence[Entry]
) -> list[Answer | None]:
    """`store_entries`, until the store answers: also one that is full does some day."""
    while True:
        try:
            return await store.complete(store_entries(calls, entries))
        except (StoreUnavailable, StoreFull) as exc:
            emit(StoreSilent(reason=str(exc)))
            await asyncio.sleep(_PAUSE_S)


def are_scheduled(entries: Sequence[Entry], answers: Sequence[Answer | None]) -> bool:
    """Whether all are messages that are pending now: the usual case, and nothing is left to do."""
    return _SCHEDULED.issuperset(answers) and all(type(entry) is Schedule for entry in entries)


def store_entries(calls: Calls, entries: Sequence[Entry]) -> Steps[list[Answer | None]]:
    """The answer of each entry; None: it was not looked at, and is to be sent again.

    Entries of one bucket take effect in their order. From a source there is one call a bucket: what
    follows a conflict, or an id in flight, or does not fit, is not looked at; and a change from a
    source is only sent by itself, when all before it have their answers.
    """
    answers: list[Answer | None] = [None] * len(entries)
    todo: Iterable[int] = range(len(entries))
    for again in (False, True):
        buckets = yield from calls.open(again=again)
        if not again and (yield from calls.quota.look(buckets)):
            _check_quota(calls, entries)
        planned = _plan(entries, todo, buckets)
        asked = [_commands(call, entries, first=again) for call in planned]
        replies = iter((yield [command for part in asked for command in part]))
        left: list[int] = []
        unborn: set[int] = set()
        for call, part in zip(planned, asked, strict=True):
            found = [next(replies) for _ in part]
            # Born in another namespace, or not yet: read the record anew. A change waits for what
            # stands before it.
            if found[0] is None or call.buckets[0].number in unborn:
                unborn.add(call.buckets[0].number)
                left += call.places
            elif call.kind[0] == "change":
                answers[call.places[0]] = min(found, key=FURTHEST.index)
            else:
                for place, answer in zip(call.places, found[0], strict=False):
                    answers[place] = answer if isinstance(answer, Answer) else answer[0]
        if not left:
            return answers
        todo = sorted(left)
    raise StoreWiped


def _check_quota(calls: Calls, entries: Sequence[Entry]) -> None:
    """StoreFull, before anything is written: the source waits until there is room for all."""
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
            planned.append(_Call(("change",), _asked(entry, buckets), [place]))
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
        if call is not None and (call.is_full or call.kind != kind or _is_full(call, size)):
            call.is_full = True
            if source:
                continue
            call = None
        if call is None:
            call = latest[number, source] = _Call(kind, [buckets[number]])
            planned.append(call)
        call.places.append(place)
        call.size += size
    return planned


def _asked(entry: Change, buckets: Sequence[Bucket]) -> list[Bucket]:
    """The shard key's bucket; without one, the id's own and then all others."""
    own = keys.bucket_of(
        entry.id.encode() if entry.shard_key is None else entry.shard_key, len(buckets)
    )
    if entry.shard_key is not None:
        return [buckets[own]]
    return [buckets[own], *buckets[:own], *buckets[own + 1 :]]


def _is_full(call: _Call, size: int) -> bool:
    return len(call.places) >= _CALL_MESSAGES or call.size + size > _CALL_BYTES


def _commands(call: _Call, entries: Sequence[Entry], *, first: bool) -> list[Command[Any]]:
    mine: list[Any] = [entries[place] for place in call.places]
    if call.kind[0] == "quarantine":
        kept = [(e.stamp, e.id, e.payload, e.reason) for e in mine]
        return [call.buckets[0].quarantine(kept, first=first)]
    if call.kind[0] == "change":
        (entry,) = mine
        return [_change(entry, bucket) for bucket in call.buckets]
    _, policy, name, reach, maybe = call.kind
    source = Source(name, [entry.offset for entry in mine]) if name else NOWHERE
    messages = [(entry.stamp, entry.accepted) for entry in mine]
    return [
        call.buckets[0].schedule(
            messages, policy, source=source, reach=reach, maybe=maybe, first=first
        )
    ]


def _change(entry: Change, bucket: Bucket) -> Command[Answer]:
    """It in one bucket."""
    given: dict[str, Any] = {
        "source": entry.source,
        "offset": max(entry.offset, 0),
        "reach": entry.reach,
    }
    if entry.when:
        return bucket.reschedule(entry.stamp, entry.id, entry.when, **given)
    turns = entry.otherwise is not None
    return bucket.cancel(entry.stamp, entry.id, **given, otherwise=turns)
