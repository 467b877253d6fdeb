"""Reinstating: rules and recurring definitions that Redis lost come back from the ledger.

The hash `controls` says under which run of the server they were compared with the ledger (`healed`,
as a bucket's `marks` do), how many there were then, and the time of each change: a clock of their
own, which only grows. Of Redis and the ledger the later change counts; in a tie, a pause.

A comparison has a name of its own, and ends in vain if another one has begun since, or anything was
changed. Nobody begins another for a while, so that those of many workers come to an end. Until one
has ended, nothing is claimed, no run is made, and no rule is eased.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from delaybridge.ledger.rows import DEFINITION, RULE, Control, ControlName
from delaybridge.ledger.work import Work
from delaybridge.recurring.definition import DEFINITION_BYTES, is_name
from delaybridge.store import keys, older_ledger, recurring, registry, replies
from delaybridge.store.command import Arg, LedgerSteps, RedisCommand, Steps, plain
from delaybridge.store.keys import SCRIPT_KEYS
from delaybridge.store.making import Making
from delaybridge.store.recurring import DefinitionEntry, Progress
from delaybridge.store.rules import PLACE_BYTES, RULE_BYTES
from delaybridge.store.verbs import Bucket

if TYPE_CHECKING:
    from delaybridge.ledger.controls import ControlRecords

_PAGE = 200
_UNDER_WAY_MS = 15_000  # two transactions take no longer; who began it may have died
_STORED_BYTES = 4 * DEFINITION_BYTES  # while a change is under way it is there twice

Here = dict[ControlName, Control]


class Agreement(NamedTuple):
    """How far Redis agrees with the ledger: what `controls` says."""

    healed: str = ""
    rules: int = 0
    definitions: int = 0


def watched(namespace: str, asked: Sequence[RedisCommand[Any]]) -> list[RedisCommand[Any]]:
    """These commands, and what tells whether they were answered by what agrees with the ledger."""
    name = keys.controls(namespace)
    look = plain("HMGET", name, "healed", "rules", "definitions", parse=_read_agreement)
    return [look, *asked, look, registry.info("server", name)]


def agreed(found: Sequence[Any]) -> tuple[Agreement | None, Sequence[Any]]:
    """What the replies to `watched` tell, None: they do not agree; and those to the commands."""
    before, *own, after, about = found
    if any(isinstance(each, Exception) for each in (before, after, about)):
        return None, own
    run = about.get("run_id", "")
    # The name of the comparison tells that nothing was lost and brought back in between.
    is_same = before.healed == after.healed and after.healed.startswith(f"{run}:")
    return (before if is_same and run else None), own


def _read_agreement(reply: Sequence[bytes | None]) -> Agreement:
    healed, *counts = reply
    rules, definitions = (int(each) if each and each.isdigit() else 0 for each in counts)
    return Agreement((healed or b"").decode(errors="replace"), rules, definitions)


def unrecorded(namespace: str, limit: int) -> RedisCommand[dict[bytes, int]]:
    """Changes that the ledger may lack, and their times."""
    words = keys.unrecorded(namespace), 0, limit - 1, "WITHSCORES"
    return plain("ZRANGE", *words, parse=_read_times)


def read_changed(namespace: str, times: Mapping[bytes, int]) -> Steps[list[Control]]:
    """What was changed at these times; without what was changed, or lost, again since."""
    if not times:
        return []
    names = [_named(each) for each in times]
    hashes = {RULE: keys.destinations(namespace), DEFINITION: keys.recurring(namespace)}
    *values, then = yield [
        *(plain("HGET", hashes[kind], name) for kind, name in names),
        plain("ZMSCORE", keys.unrecorded(namespace), *times),
    ]
    return [
        Control(*name, value or b"", at_ms)
        for name, value, at_ms, now in zip(names, values, times.values(), then, strict=True)
        if now is not None and int(float(now)) == at_ms
    ]


def recorded(namespace: str, found: Iterable[Control]) -> list[RedisCommand[int]]:
    """The ledger has these changes. Each has a time of its own."""
    name = keys.unrecorded(namespace)
    times = [each.changed_ms for each in found]
    return [plain("ZREMRANGEBYSCORE", name, at_ms, at_ms, parse=int) for at_ms in times]


def reinstate(
    namespace: str, of: Comparison, controls: Iterable[Control], *, is_last: bool = False
) -> RedisCommand[int]:
    """Bring controls back; see `lua/reinstate.lua`."""
    args: list[Arg] = [
        of.pending, of.clock, of.name if is_last else "", of.last_ms, of.now_ms,
    ]  # fmt: skip
    for each in controls:
        args += each.kind, each.name, each.changed_ms, each.value
    names = tuple(f"{{{namespace}}}:{key}" for key in SCRIPT_KEYS["reinstate"])
    return RedisCommand("reinstate", names, args, int)


class Comparison(NamedTuple):
    """A comparison. name: as `healed` has it at the end. clock: as it was at the beginning.

    back_ms: what the ledger has of before may be older than what Redis has (`older_ledger`).
    """

    name: str
    clock: str
    now_ms: int
    last_ms: int = 0
    back_ms: int = 0

    @property
    def pending(self) -> str:
        """As `healed` has it until the end."""
        return f"?{self.name}"


def agree(calls: Making, records: ControlRecords, who: str) -> LedgerSteps[int | None]:
    """Bring Redis and the ledger into agreement: how many were reinstated.

    who: a name of the caller's own, letters and digits. None: something was changed meanwhile, or
    another one compares them now, and nothing is certain.
    """
    namespace = calls.namespace
    yield from calls.open()
    comparison = yield from _begin(namespace, who)
    if comparison is None:
        return None
    here, lost = yield from _read(namespace)
    stored: Sequence[Control] = yield Work(records.all)
    both = _both(comparison, here, lost, stored)
    if both.new:
        yield Work(lambda on: records.record(on, both.new))
    comparison, changed = comparison._replace(last_ms=both.last_ms), 0
    for page in _pages(both.wanted):
        (found,) = yield [reinstate(namespace, comparison, page)]
        if found < 0:
            return None
        changed += found
    for page in _pages(both.definitions):
        yield from _resume_plans(calls, page, comparison.now_ms)
    (found,) = yield [reinstate(namespace, comparison, [], is_last=True)]
    return None if found < 0 else changed


class _Both(NamedTuple):
    """What Redis and the ledger have, together.

    new: what the ledger lacks; wanted: what Redis lacks, or has without a time. definitions: those
    that there are, with their last runs. last_ms: later than each change.
    """

    new: Sequence[Control]
    wanted: Sequence[Control]
    definitions: Sequence[Control]
    last_ms: int


def _both(
    comparison: Comparison, here: Here, lost: set[ControlName], stored: Sequence[Control]
) -> _Both:
    known = {each.key: each for each in stored}
    changed = (each.changed_ms for each in (*stored, *here.values()))
    last_ms = max([comparison.last_ms, *changed]) + 1
    # What has no time was there before the ledger, or was written by hand: it is of now.
    new = {
        key: each if each.changed_ms else each._replace(changed_ms=last_ms)
        for key, each in here.items()
        if each.wins(known.get(key))
    }
    wanted = [each for key, each in new.items() if not here[key].changed_ms]
    removed = _removed(stored, here.keys() | lost, comparison.back_ms, last_ms)
    new |= removed
    wanted += _lacking([each for each in stored if each.key not in removed], here, lost)
    made = {each.key: (each.birth, each.made_ms) for each in stored}
    alive = (Control(*each[:4], *made.get(key, ())) for key, each in (known | new).items())
    definitions = [each for each in alive if each.kind == DEFINITION and each.value]
    return _Both([*new.values()], wanted, definitions, last_ms)


def _removed(stored: Sequence[Control], seen: Set[ControlName], back_ms: int, now_ms: int) -> Here:
    """What an older ledger has, as removed now: it was since, Redis has not even a time of it."""
    old = (each for each in stored if each.value and each.changed_ms <= back_ms)
    unseen = (each for each in old if each.key not in seen)
    return {each.key: each._replace(value=b"", changed_ms=now_ms) for each in unseen}


def _pages(controls: Sequence[Control]) -> Iterator[Sequence[Control]]:
    return (controls[i : i + _PAGE] for i in range(0, len(controls), _PAGE))


def _begin(namespace: str, who: str) -> Steps[Comparison | None]:
    """Begin a comparison; None: another one is under way."""
    name = keys.controls(namespace)
    about, healed, now_us, told = yield [
        registry.info("server", name),
        plain("HGET", name, "healed"),
        registry.store_time(name),
        older_ledger.told(namespace),
    ]
    run, now_ms = about.get("run_id", ""), now_us // 1000
    if _is_under_way((healed or b"").decode(errors="replace"), run, who, now_ms):
        return None
    own = f"{run}:{now_ms}.{secrets.token_hex(8)}.{who}"
    _, clock = yield [plain("HSET", name, "healed", f"?{own}"), plain("HGET", name, "clock")]
    text = (clock or b"").decode(errors="replace")
    last_ms = max(now_ms, int(text) if text.isdigit() else 0)
    return Comparison(own, text, now_ms, last_ms, told.back_ms)


def _is_under_way(healed: str, run: str, who: str, now_ms: int) -> bool:
    """Whether a comparison of another one began not long ago, under this run of the server."""
    of_run, _, own = healed.partition(":")
    began_ms, _, rest = own.partition(".")
    is_pending = of_run == f"?{run}" and began_ms.isdigit() and not rest.endswith(f".{who}")
    return is_pending and 0 <= now_ms - int(began_ms) < _UNDER_WAY_MS


def _read(namespace: str) -> Steps[tuple[Here, set[ControlName]]]:
    """What Redis has, and what has a time there but is gone."""
    hashes = keys.controls, keys.destinations, keys.recurring
    times, rules, definitions, told = yield [
        *(plain("HGETALL", of(namespace), parse=replies.read_mapping) for of in hashes),
        unrecorded(namespace, 0),
    ]
    at_ms = {_named(field): int(value) for field, value in times.items() if b":" in field}
    here: Here = {
        key: Control(*key, b"", changed_ms)  # removed
        for field, changed_ms in told.items()
        if (key := _named(field)) not in at_ms
    }
    for kind, found in ((RULE, rules), (DEFINITION, definitions)):
        for name, value in found.items():
            if _is_ours(kind, name, value):
                here[kind, name] = Control(kind, name, value, at_ms.get((kind, name), 0))
    return here, at_ms.keys() - here.keys()


def _is_ours(kind: str, name: bytes, value: bytes) -> bool:
    """Whether one of our calls may have written it; by hand anything may be."""
    if kind == RULE:
        return 0 < len(name) <= PLACE_BYTES and len(value) <= RULE_BYTES
    return is_name(name.decode(errors="replace")) and len(value) <= _STORED_BYTES


def _lacking(stored: Sequence[Control], here: Here, lost: set[ControlName]) -> Iterator[Control]:
    """What the ledger has and belongs into Redis."""
    for each in stored:
        if (known := here.get(each.key)) is None:
            if each.value or each.key in lost:
                yield each
        elif each.wins(known):
            yield each


def _resume_plans(calls: Making, controls: Sequence[Control], now_ms: int) -> Steps[None]:
    """Let each definition go on after the last run that was made, which the ledger knows.

    The buckets, and the progress, may have forgotten runs that were made. How many were missed
    before is not known any more, nor which of those in between.
    """
    state = keys.recurring_state(calls.namespace)
    (raws,) = yield [plain("HMGET", state, *(each.name for each in controls))]
    entries = [
        (each, recurring.read_entry(each.name, each.value, raw or b""))
        for each, raw in zip(controls, raws, strict=True)
    ]
    plans = [plan for each, entry in entries for plan in _plans(calls, each, entry)]
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
            behind.append(recurring.define(calls.namespace, entry, entry.raw, raw, now_ms))
    if behind:
        yield behind


def _plans(
    calls: Making, control: Control, entry: DefinitionEntry
) -> Iterator[tuple[str, str, int]]:
    """Key, field and last run of each plan of a definition that its bucket must know."""
    was = recurring.read_entry(entry.name, recurring.encoded(entry.fields.get("was") or {}))
    for each in (entry, was):
        if each.definition is not None and each.birth:
            last_ms = _last_ms(control, each)
            bucket = calls.bucket_for(each.definition)
            yield bucket.key("sources"), recurring.source_of(entry.name, each.birth), last_ms
            yield from _backfill(bucket, each)


def _backfill(bucket: Bucket, entry: DefinitionEntry) -> Iterator[tuple[str, str, int]]:
    """The backfill that is under way; from its beginning: some of its runs may be made twice."""
    found = entry.fields.get("backfill")
    if (birth := recurring.birth_of({"plan": found})) and isinstance(found, dict):
        source = recurring.source_of(entry.name, birth)
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
        made=recurring.spans_with(before.made, entry.after_ms, last_ms),
    )


def _named(field: bytes) -> ControlName:
    kind, _, name = field.partition(b":")
    return kind.decode(errors="replace"), name


def _read_times(reply: Sequence[Any]) -> dict[bytes, int]:
    return {name: int(float(at)) for name, at in zip(reply[::2], reply[1::2], strict=True)}
