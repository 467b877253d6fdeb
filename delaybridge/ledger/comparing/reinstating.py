"""Reinstating: rules and recurring definitions that Redis lost come back from the ledger.

The hash `controls` says under which run of the server they were compared with the ledger (`healed`,
as a bucket's `marks` do), how many there were then, and the time of each change: a clock of their
own, which only grows. Of Redis and the ledger the later change counts; in a tie, a pause. Each
field of a rule is a control of its own (`rule_fields`): whoever changes a rule that Redis lost
changes that field, and no other.

A comparison has a name of its own, and ends in vain if another one has begun since, or anything was
changed. No worker begins another for a while, so that those of many workers come to an end. Until
one has ended, nothing is claimed, no run is made, and no rule is eased.
"""

from __future__ import annotations

import secrets
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from delaybridge.ledger.comparing import older_ledger
from delaybridge.ledger.comparing.resuming import resume_plans
from delaybridge.ledger.comparing.rule_controls import controls_of, field_and_place, joined
from delaybridge.ledger.sql.rows import DEFINITION, RULE, Control, ControlName
from delaybridge.recurring.definition import DEFINITION_BYTES, is_name
from delaybridge.recurring.runs import RunMaking
from delaybridge.store.messages.scheduling import Scheduling
from delaybridge.store.namespace import registry
from delaybridge.store.namespace.rule_fields import parts
from delaybridge.store.namespace.rules import PLACE_BYTES, RULE_BYTES
from delaybridge.store.protocol import keys, replies
from delaybridge.store.protocol.keys import SCRIPT_KEYS
from delaybridge.store.protocol.verbs import Arg, LedgerSteps, RedisCommand, Steps, Work, plain

if TYPE_CHECKING:
    from delaybridge.ledger.sql.controls import ControlRecords

_PAGE = 200
_WHOLE = "place"  # besides the kinds of controls: a rule as a whole
_LATEST_MS = 2**53
_UNDER_WAY_MS = 15_000  # no two transactions take longer; who began it may have died
_STORED_BYTES = 4 * DEFINITION_BYTES  # while a change is under way it is there twice

Here = dict[ControlName, Control]


def unrecorded(
    namespace: str, limit: int = -1, *, after_ms: int = 0
) -> RedisCommand[dict[bytes, int]]:
    """Changes that the ledger may lack, and their times; the first ones later than this."""
    words = keys.unrecorded(namespace), f"({after_ms}", "+inf", "WITHSCORES", "LIMIT", 0, limit
    return plain("ZRANGEBYSCORE", *words, parse=_read_times)


def read_changed(namespace: str, times: Mapping[bytes, int]) -> Steps[list[Control]]:
    """What was changed at these times; without what was changed, or lost, again since."""
    if not times:
        return []
    names = [_named(each) for each in times]
    *values, then = yield [
        *(plain("HGET", *_place_of(namespace, name)) for name in names),
        plain("ZMSCORE", keys.unrecorded(namespace), *times),
    ]
    return [
        Control(*name, _value_of(name, value or b""), at_ms)
        for name, value, at_ms, now in zip(names, values, times.values(), then, strict=True)
        if now is not None and _time(now) == at_ms
    ]


def _place_of(namespace: str, name: ControlName) -> tuple[str, bytes]:
    """The key and the field that a control is in, or a part of."""
    if name[0] == RULE:
        return keys.destinations(namespace), field_and_place(name[1])[1]
    return keys.recurring(namespace), name[1]


def _value_of(name: ControlName, stored: bytes) -> bytes:
    """The control's part of what is stored in its place."""
    if name[0] == RULE:
        return parts(stored).get(field_and_place(name[1])[0], b"")
    return stored


def recorded(namespace: str, found: Iterable[Control]) -> list[RedisCommand[int]]:
    """The ledger has these changes. Each has a time of its own."""
    name = keys.unrecorded(namespace)
    times = [each.changed_ms for each in found]
    return [plain("ZREMRANGEBYSCORE", name, at_ms, at_ms, parse=int) for at_ms in times]


def reinstate(
    namespace: str, of: Comparison, controls: Iterable[Control] = (), *, healed: str = ""
) -> RedisCommand[int]:
    """Bring controls back, and the rules that they are part of; see `lua/reinstate.lua`."""
    args: list[Arg] = [of.pending, of.clock, healed, of.last_ms, of.now_ms]
    for each in controls:
        args += each.kind, each.name, each.changed_ms, each.value
    names = tuple(f"{{{namespace}}}:{key}" for key in SCRIPT_KEYS["reinstate"])
    return RedisCommand("reinstate", names, args, int)


class Comparison(NamedTuple):
    """A comparison. name: as `healed` has it at the end. clock: as it was at the beginning.

    back_ms: what the ledger has of before may be older than what Redis has (`older_ledger`).
    Without a name: a worker brings back what it knows, and the ledger may not.
    """

    name: str
    clock: str
    now_ms: int
    last_ms: int = 0
    back_ms: int = 0

    @property
    def pending(self) -> str:
        """As `healed` has it until the end."""
        return f"?{self.name}" if self.name else ""


def agree(calls: Scheduling, records: ControlRecords, who: str) -> LedgerSteps[int | None]:
    """Bring Redis and the ledger into agreement: how many were reinstated.

    who: a name of the caller's own, letters and digits. None: something was changed meanwhile, or
    another one compares them now, and nothing is certain.
    """
    namespace = calls.namespace
    yield from calls.open()
    comparison = yield from _begin(namespace, who)
    if comparison is None:
        return None
    here, lost, rules = yield from _read(namespace)
    stored: Sequence[Control] = yield Work(records.all)
    both = _both(comparison, here, lost, stored)
    for new in pages(both.new):
        yield Work(partial(records.record, found=new))
        yield from _go_on(namespace, comparison)
    comparison, changed = comparison._replace(last_ms=both.last_ms), 0
    for wanted in _with_rules(both.wanted, rules):
        (found,) = yield [reinstate(namespace, comparison, wanted)]
        if found < 0:
            return None
        changed += found
    for page in pages(both.definitions):
        yield from resume_plans(RunMaking(calls), page, comparison.now_ms)
    (found,) = yield [reinstate(namespace, comparison, healed=comparison.name)]
    return None if found < 0 else changed


def remind(namespace: str, known: Iterable[Control]) -> Steps[None]:
    """Bring changes back that Redis lost, and the ledger may lack; with their times.

    A comparison that is under way ends in vain: it has not seen them.
    """
    name = keys.controls(namespace)
    yield [plain("HSETNX", name, "clock", 1)]  # from now on each change moves it
    clock, now_us = yield [plain("HGET", name, "clock"), registry.store_time(name)]
    here, _, rules = yield from _read(namespace)
    wanted = [each for each in known if _is_wanted(each, here.get(each.key), {each.key})]
    text = (clock or b"").decode(errors="replace")
    last_ms = max([int(text) if text.isdigit() else 0, *(each.changed_ms for each in wanted)]) + 1
    now = Comparison("", text, now_us // 1000, last_ms)
    for page in _with_rules(wanted, rules):
        (found,) = yield [reinstate(namespace, now, page)]
        if found < 0:
            return  # something was changed meanwhile: the next look finds it
        now = now._replace(clock=str(last_ms))


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
    new = _new(here, known, last_ms)
    wanted = [each for key, each in new.items() if not here[key].changed_ms]
    removed = _removed(stored, here.keys() | lost, comparison.back_ms, last_ms)
    new |= removed
    kept = (each for each in stored if each.key not in removed)
    wanted += [each for each in kept if _is_wanted(each, here.get(each.key), lost)]
    made = {each.key: (each.birth, each.made_ms) for each in stored}
    alive = (Control(*each[:4], *made.get(key, ())) for key, each in (known | new).items())
    definitions = [each for each in alive if each.kind == DEFINITION and each.value]
    return _Both([*new.values()], wanted, definitions, last_ms)


def _new(here: Here, known: Here, now_ms: int) -> Here:
    """What the ledger lacks. What has no time was there before it, or is by hand: it is of now."""
    return {
        key: each if each.changed_ms else each._replace(changed_ms=now_ms)
        for key, each in here.items()
        if each.wins(known.get(key)) or _is_by_hand(each, known[key])
    }


def _removed(stored: Sequence[Control], seen: Set[ControlName], back_ms: int, now_ms: int) -> Here:
    """What an older ledger has, as removed now: it was since, Redis has not even a time of it."""
    old = (each for each in stored if each.value and each.changed_ms <= back_ms)
    unseen = (each for each in old if each.key not in seen)
    return {each.key: each._replace(value=b"", changed_ms=now_ms) for each in unseen}


def _is_by_hand(here: Control, known: Control) -> bool:
    """Whether it is a pause without a time: a client without a ledger may have set it just now."""
    is_rule = here.kind == RULE and not here.changed_ms
    return is_rule and here.is_paused and here.value != known.value


def pages(controls: Sequence[Control]) -> Iterator[Sequence[Control]]:
    """As many as one transaction, or one script, takes at a time."""
    return (controls[i : i + _PAGE] for i in range(0, len(controls), _PAGE))


def _with_rules(
    wanted: Iterable[Control], rules: Mapping[bytes, bytes]
) -> Iterator[Sequence[Control]]:
    """Pages of these controls; after the fields of a rule the whole rule, as it will be."""
    by_place = defaultdict[bytes, list[Control]](list)
    found: list[list[Control]] = []
    for each in wanted:
        if each.kind == RULE:
            by_place[field_and_place(each.name)[1]].append(each)
        else:
            found.append([each])
    for place, fields in by_place.items():
        values = [(field_and_place(each.name)[0], each.value) for each in fields]
        whole = joined(rules.get(place, b""), values)
        found.append([*fields, Control(_WHOLE, place, whole, 0)])
    for i in range(0, len(found), _PAGE):
        yield [each for own in found[i : i + _PAGE] for each in own]


def _begin(namespace: str, who: str) -> Steps[Comparison | None]:
    """Begin a comparison; None: another one is under way."""
    name = keys.controls(namespace)
    about, (healed, going, clock), now_us, told = yield [
        registry.info("server", name),
        plain("HMGET", name, "healed", "going", "clock"),
        registry.store_time(name),
        older_ledger.read_past(namespace),
    ]
    run, now_ms = about.get("run_id", ""), now_us // 1000
    last = (healed or b"").decode(errors="replace"), (going or b"").decode(errors="replace")
    if _is_under_way(*last, run, who, now_ms):
        return None
    own = f"{run}:{now_ms}.{secrets.token_hex(8)}.{who}"
    text = (clock or b"").decode(errors="replace")
    # From now on a change of a client without a ledger moves the clock, too.
    clock_ms = int(text) if text.isdigit() else 1
    begin = Comparison("", text, now_ms, clock_ms)
    (begun,) = yield [reinstate(namespace, begin, healed=f"?{own}")]
    # Without its clock Redis has lost what it knew: then the ledger's past is all there is.
    back_ms = told.back_ms if text else 0
    found = Comparison(own, str(clock_ms), now_ms, max(now_ms, clock_ms), back_ms)
    return None if begun < 0 else found


def _go_on(namespace: str, comparison: Comparison) -> Steps[None]:
    """Say that a comparison is still under way."""
    name = keys.controls(namespace)
    (now_us,) = yield [registry.store_time(name)]
    yield [plain("HSET", name, "going", f"{now_us // 1000}.{comparison.name}")]


def _is_under_way(healed: str, going: str, run: str, who: str, now_ms: int) -> bool:
    """Whether a comparison of another one went on not long ago, under this run of the server."""
    of_run, _, own = healed.partition(":")
    began_ms, _, rest = own.partition(".")
    went_ms, _, name = going.partition(".")
    last_ms = went_ms if name == healed.removeprefix("?") else began_ms
    is_pending = of_run == f"?{run}" and last_ms.isdigit() and not rest.endswith(f".{who}")
    return is_pending and 0 <= now_ms - int(last_ms) < _UNDER_WAY_MS


def _read(namespace: str) -> Steps[tuple[Here, set[ControlName], Mapping[bytes, bytes]]]:
    """What Redis has, what has a time there but is gone, and the rules as they are stored."""
    hashes = keys.controls, keys.destinations, keys.recurring
    times, rules, definitions, told = yield [
        *(plain("HGETALL", of(namespace), parse=replies.read_mapping) for of in hashes),
        unrecorded(namespace),
    ]
    at_ms = {_named(field): _time(value) for field, value in times.items() if b":" in field}
    here: Here = {
        key: Control(*key, b"", changed_ms)  # removed
        for field, changed_ms in told.items()
        if (key := _named(field)) not in at_ms
    }
    rules = {place: value for place, value in rules.items() if _is_ours(RULE, place, value)}
    for place, value in rules.items():
        here |= {each.key: each for each in controls_of(place, value, at_ms)}
    for name, value in definitions.items():
        if _is_ours(DEFINITION, name, value):
            key = DEFINITION, name
            here[key] = Control(*key, value, at_ms.get(key, 0))
    return here, at_ms.keys() - here.keys(), rules


def _is_ours(kind: str, name: bytes, value: bytes) -> bool:
    """Whether one of our calls may have written it; by hand anything may be."""
    if kind == RULE:
        return 0 < len(name) <= PLACE_BYTES and len(value) <= RULE_BYTES
    return is_name(name.decode(errors="replace")) and len(value) <= _STORED_BYTES


def _is_wanted(control: Control, here: Control | None, lost: set[ControlName]) -> bool:
    """Whether what the ledger has of a control belongs into Redis."""
    if here is None:
        return bool(control.value) or control.key in lost
    return control.wins(here) and not _is_by_hand(here, control)


def _named(field: bytes) -> ControlName:
    kind, _, name = field.partition(b":")
    return kind.decode(errors="replace"), name


def _read_times(reply: Sequence[Any]) -> dict[bytes, int]:
    return {name: _time(at) for name, at in zip(reply[::2], reply[1::2], strict=True)}


def _time(written: bytes) -> int:
    """A time; 0 if it cannot be one: it may have been written by hand."""
    try:
        found = float(written)
    except ValueError:
        return 0
    return int(found) if 0 < found < _LATEST_MS else 0
