"""Resuming: after a comparison with the ledger each definition goes on after its last run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from delaybridge.ledger.sql.rows import Control
from delaybridge.recurring import stored
from delaybridge.recurring.runs import RunMaking
from delaybridge.recurring.stored import DefinitionEntry, Progress
from delaybridge.store.protocol import keys
from delaybridge.store.protocol.bucket import Bucket
from delaybridge.store.protocol.verbs import RedisCommand, Steps, plain


def resume_plans(runs: RunMaking, controls: Sequence[Control], now_ms: int) -> Steps[None]:
    """Let each definition go on after the last run that was made, which the ledger knows.

    The buckets, and the progress, may have forgotten runs that were made. How many were missed
    before is not known any more, nor which of those in between.
    """
    state = keys.recurring_state(runs.calls.namespace)
    (raws,) = yield [plain("HMGET", state, *(each.name for each in controls))]
    entries = [
        (each, stored.read_entry(each.name, each.value, raw or b""))
        for each, raw in zip(controls, raws, strict=True)
    ]
    plans = [plan for each, entry in entries for plan in _plans(runs, each, entry)]
    if not plans:
        return
    known = yield [plain("HGET", name, source) for name, source, _ in plans]
    behind: list[RedisCommand[Any]] = [
        plain("HSET", *plan)
        for plan, at_ms in zip(plans, known, strict=True)
        if at_ms is None or int(at_ms) < plan[2]
    ]
    for each, entry in entries:
        if (progress := _progress(each, entry, now_ms)) is not None:
            raw = msgspec.json.encode(progress)
            behind.append(stored.define(runs.calls.namespace, entry, entry.raw, raw, now_ms))
    if behind:
        yield behind


def _plans(
    runs: RunMaking, control: Control, entry: DefinitionEntry
) -> Iterator[tuple[str, str, int]]:
    """Key, field and last run of each plan of a definition that its bucket must know."""
    was = stored.read_entry(entry.name, stored.encoded(entry.fields.get("was") or {}))
    for each in (entry, was):
        if each.definition is not None and each.birth:
            last_ms = _last_ms(control, each)
            bucket = runs.bucket_for(each.definition)
            yield bucket.key("sources"), stored.source_of(entry.name, each.birth), last_ms
            yield from _backfill(bucket, each)


def _backfill(bucket: Bucket, entry: DefinitionEntry) -> Iterator[tuple[str, str, int]]:
    """The backfill that is under way; from its beginning: some of its runs may be made twice."""
    found = entry.fields.get("backfill")
    if (birth := stored.birth_of({"plan": found})) and isinstance(found, dict):
        source = stored.source_of(entry.name, birth)
        yield bucket.key("sources"), source, int(found.get("from_ms", 1)) - 1


def _last_ms(control: Control, entry: DefinitionEntry) -> int:
    """The last run of a plan that was made, or is not to be made."""
    after_ms = int(entry.fields["plan"].get("after_ms", 0))
    return max(after_ms, control.made_ms) if control.birth == entry.birth else after_ms


def _progress(control: Control, entry: DefinitionEntry, now_ms: int) -> Progress | None:
    """The progress that a definition should have; None: it has it."""
    if not entry.birth or control.birth != entry.birth or entry.after_ms >= control.made_ms:
        return None
    before = entry.progress if entry.progress.birth == entry.birth else Progress()
    last_ms = control.made_ms
    return msgspec.structs.replace(
        before,
        birth=entry.birth,
        planned_ms=last_ms,
        ahead_ms=(last_ms,) if last_ms > now_ms else (),
        last_ms=before.last_ms if last_ms > now_ms else last_ms,
        made=stored.spans_with(before.made, entry.after_ms, last_ms),
    )
