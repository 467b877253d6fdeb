"""Recurring definitions as they are stored, and the commands that read and write them.

A definition is a JSON object in the hash `recurring`: the fields of a `Definition`, and our own:

- `plan`: `birth`, drawn whenever the definition is added, changed or resumed, and `after_ms`: its
  first run is due later. A paused definition has none.
- `was`: the definition before a change that is not finished yet, and `since_ms`: when it began.
  Workers finish it if its caller cannot.
- `backfill`: the backfill that is under way.

All messages of a definition are in one bucket. Its hash `sources` has a field for each plan, with
the due time of the last run that was made: a run is made only while its plan is known there, and
only if it is due later. So a worker that acts on what it read long ago makes nothing twice, and
nothing at all for a plan that has ended.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile
from typing import Any, NamedTuple

import msgspec

from delaybridge.errors import MessageError, StoreError
from delaybridge.recurring.definition import Definition, Moment, is_name, read_definition
from delaybridge.store.namespace import registry
from delaybridge.store.protocol import keys, replies
from delaybridge.store.protocol.bucket import Bucket
from delaybridge.store.protocol.verbs import RedisCommand, Steps, plain
from delaybridge.times import YEAR_3000_MS

DEFINITIONS_LIMIT = 10_000
LATE_LOOK_MS = 10_000  # a look that is later: no worker looks
PAUSE_MS = 1500  # a worker that took a definition and died makes others wait for this long
OWN_FIELDS = ("plan", "was", "since_ms", "backfill")
_MOST_SPANS = 100
_SOURCE, _BACKFILL = "recurring", "backfill-"
_MISNAMED = "no definition may have this name: remove it"

Span = tuple[int, int]  # epoch ms; the first is not included, the last is
Fields = Mapping[str, Any]


class Progress(msgspec.Struct, frozen=True, omit_defaults=True):
    """How far the workers are. birth: of the plan that this is about.

    planned_ms: the last run that is decided. ahead_ms: runs that were made and were not due then.
    last_ms: the last run before them. missed: how many runs became due before they were made.
    made: spans in which every run was made. error: why nothing can be made now.
    """

    birth: str = ""
    planned_ms: Moment = 0
    ahead_ms: tuple[int, ...] = ()
    last_ms: int | None = None
    missed: int = 0
    made: tuple[Span, ...] = ()
    error: str = ""


class DefinitionEntry(NamedTuple):
    """One definition as it was read. definition: None if it makes no sense; error says why.

    odd_name: its name as it is stored, if that is not a name.
    """

    name: str
    raw: bytes
    fields: dict[str, Any]
    definition: Definition | None
    error: str
    raw_progress: bytes
    progress: Progress
    odd_name: bytes = b""

    @property
    def key(self) -> bytes | str:
        """Its name as it is stored."""
        return self.odd_name or self.name

    @property
    def birth(self) -> str:
        """The birth of the plan that workers follow; empty if there is none."""
        return birth_of(self.fields)

    @property
    def after_ms(self) -> int:
        """The last run that is decided."""
        if self.progress.birth == self.birth:
            return self.progress.planned_ms
        return int(self.fields["plan"].get("after_ms", 0))

    @property
    def since_ms(self) -> int:
        """When the change that is under way began."""
        found = self.fields.get("since_ms")
        return found if isinstance(found, int) and 0 <= found < YEAR_3000_MS else 0

    @property
    def is_first(self) -> bool:
        """Whether no run of this plan was made yet."""
        return self.progress.birth != self.birth

    @property
    def own_fields(self) -> dict[str, Any]:
        """The definition's fields, without ours."""
        return {name: value for name, value in self.fields.items() if name not in OWN_FIELDS}


def read_entry(name: bytes | str, raw: bytes, raw_progress: bytes = b"") -> DefinitionEntry:
    """An entry, whatever someone may have written by hand."""
    text = name if isinstance(name, str) else name.decode(errors="backslashreplace")
    progress = _progress(raw_progress)
    if isinstance(name, bytes) and not is_name(text):
        return DefinitionEntry(text, raw, {}, None, _MISNAMED, raw_progress, progress, name)
    try:
        fields = msgspec.json.decode(raw)
        definition = read_definition(text, fields)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as exc:
        return DefinitionEntry(text, raw, {}, None, f"not JSON: {exc}", raw_progress, progress)
    except MessageError as exc:
        found = fields if isinstance(fields, dict) else {}
        return DefinitionEntry(text, raw, found, None, exc.detail, raw_progress, progress)
    return DefinitionEntry(text, raw, fields, definition, "", raw_progress, progress)


def _progress(raw: bytes) -> Progress:
    try:
        return msgspec.json.decode(raw, type=Progress) if raw else Progress()
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return Progress()


def birth_of(fields: Fields) -> str:
    """The birth of the plan in these fields; empty if there is none."""
    plan = fields.get("plan")
    if not isinstance(plan, dict):
        return ""
    found, after_ms = plan.get("birth"), plan.get("after_ms", 0)
    sane = isinstance(after_ms, int) and 0 <= after_ms < YEAR_3000_MS
    return found if isinstance(found, str) and sane else ""


def encoded(fields: Fields) -> bytes:
    """Fields as they are stored."""
    return msgspec.json.encode(fields)


def new_birth() -> str:
    """A birth that no other plan has."""
    return secrets.token_hex(6)


def new_backfill() -> str:
    """The birth of a backfill."""
    return _BACKFILL + new_birth()


def plan_in(source: str) -> tuple[str, str] | None:
    """Name and birth of the plan that is a field of `sources`; None if it is something else."""
    kind, _, name = source.partition(":")
    name, _, birth = name.rpartition(":")
    return None if kind != _SOURCE or birth.startswith(_BACKFILL) else (name, birth)


def source_of(name: str, birth: str) -> str:
    """The field of a plan, or of a backfill, in its bucket's `sources`."""
    return f"{_SOURCE}:{name}:{birth}"


def spans_with(spans: Sequence[Span], first_ms: int, last_ms: int) -> tuple[Span, ...]:
    """The spans and one more, sorted and merged; at most 100, the latest."""
    merged: list[Span] = []
    for low, high in sorted([*spans, (first_ms, last_ms)]):
        if merged and low <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(merged[-1][1], high)
        elif low < high:
            merged.append((low, high))
    return tuple(merged[-_MOST_SPANS:])


def spans_until(spans: Sequence[Span], end_ms: int) -> tuple[Span, ...]:
    """The spans up to a time."""
    return tuple((low, min(high, end_ms)) for low, high in spans if low < end_ms)


def decided(entry: DefinitionEntry, from_ms: int, to_ms: int, now_ms: int) -> Span:
    """The part of [from, to) that workers leave to a backfill."""
    last_ms = min(to_ms - 1, now_ms)
    if entry.birth:
        last_ms = min(last_ms, entry.after_ms)
    if last_ms < from_ms:
        what = "no run between from and to is decided; to is in the future, or before from"
        raise MessageError("bad_time", "to", what)
    return from_ms - 1, last_ms


def runs_within(definition: Definition, span: Span, without: Sequence[Span]) -> Iterator[int]:
    """Runs in a span that are in none of the others."""
    runs = takewhile(lambda due_ms: due_ms <= span[1], definition.times(span[0]))
    return (due_ms for due_ms in runs if not any(low < due_ms <= high for low, high in without))


def _keys(namespace: str) -> tuple[str, str, str]:
    of = keys.recurring, keys.recurring_due, keys.recurring_state
    return of[0](namespace), of[1](namespace), of[2](namespace)


def define(
    namespace: str,
    entry: DefinitionEntry,
    after: bytes,
    progress: bytes,
    look_ms: int | None,
    *,
    again: bool = False,
) -> RedisCommand[int]:
    """Write a definition and its progress, if both are as in `entry`; see `lua/define.lua`.

    again: it is a change for the ledger also if it is as it was.
    """
    look = "" if look_ms is None else look_ms
    args = (
        entry.key, entry.raw, after, entry.raw_progress, progress, look, DEFINITIONS_LIMIT,
        int(again), "", registry.UNRECORDED,
    )  # fmt: skip
    names = *_keys(namespace), keys.controls(namespace), keys.unrecorded(namespace)
    return RedisCommand("define", names, args, registry.written)


def recur(
    namespace: str, limit: int, *, now_ms: int | None = None
) -> RedisCommand[tuple[int, list[DefinitionEntry]]]:
    """The definitions to look at now, with Redis' time; see `lua/recur.lua`."""
    args = ("" if now_ms is None else now_ms, PAUSE_MS, limit)
    return RedisCommand("recur", _keys(namespace), args, _taken)


def _taken(reply: list[Any]) -> tuple[int, list[DefinitionEntry]]:
    now_ms, *rest = reply
    triples = zip(rest[::3], rest[1::3], rest[2::3], strict=True)
    return now_ms, [read_entry(*triple) for triple in triples]


def first_look(namespace: str) -> RedisCommand[float | None]:
    """When workers are to look at the next definition, epoch ms; None: at none."""
    due = keys.recurring_due(namespace)
    return plain("ZRANGE", due, 0, 0, "WITHSCORES", parse=replies.read_first_score)


def late_look_ms(look_ms: float | StoreError | None, now_ms: int) -> int:
    """How late the first look is, by the reply to `first_look`; 0 if a worker looks."""
    if look_ms is None or isinstance(look_ms, StoreError) or look_ms <= 0:
        return 0
    late_ms = now_ms - int(look_ms)
    return late_ms if late_ms > LATE_LOOK_MS else 0


def fence(bucket: Bucket, sources: Sequence[str]) -> RedisCommand[list[int | None]]:
    """Make no run of these plans any more; the last that was made of each, None if unknown."""
    name = (bucket.key("sources"),)
    return RedisCommand("fence", name, sources, lambda r: [int(n) if n else None for n in r])


def look_ms_of(score: bytes | float | None) -> int | None:
    """When a worker looks at a definition; None: never."""
    return None if score is None else int(float(score))


def read_one(namespace: str, name: str) -> Steps[tuple[DefinitionEntry, int | None, int]]:
    """An entry (`raw` is empty: there is none), when a worker looks at it, and Redis' time."""
    definitions, due, states = _keys(namespace)
    raw, progress, look_ms, now_us = yield [
        plain("HGET", definitions, name),
        plain("HGET", states, name),
        plain("ZSCORE", due, name, parse=look_ms_of),
        registry.store_time(definitions),
    ]
    return read_entry(name, raw or b"", progress or b""), look_ms, now_us // 1000
