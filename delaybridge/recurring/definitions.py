"""The calls of clients about recurring definitions: add, change, remove, list, run, backfill."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from contextlib import suppress
from itertools import islice
from typing import Any, NamedTuple

import msgspec

from delaybridge.errors import (
    DelayBridgeError,
    MessageConflict,
    MessageError,
    StoreError,
    StoreFull,
)
from delaybridge.message import Answer, OnConflict, tenant_text
from delaybridge.recurring import stored
from delaybridge.recurring.definition import Definition, check_name, due_text, is_name
from delaybridge.recurring.plan import LEAD_MS
from delaybridge.recurring.runs import RunMaking
from delaybridge.recurring.stored import DefinitionEntry, Span
from delaybridge.settings.durability import Keeping
from delaybridge.store.messages.scheduling import Receipt
from delaybridge.store.namespace import ledger_agreement
from delaybridge.store.protocol import keys
from delaybridge.store.protocol.verbs import Each, Steps, plain

BACKFILL_LIMIT = 10_000
_TRIES = 50  # of a change, while others change the same definition
_PAGE = 200
UNMADE = "no worker makes its runs; start one: delaybridge scan; or see: delaybridge health"
_UNWATCHED = "Redis lost when to look at it: workers mend this within a minute"
_ACTIVE, _PAUSED, _ENDED, _CHANGING, FAILING = "active", "paused", "ended", "changing", "failing"


class Recurring(NamedTuple):
    """A recurring definition and how far it is. Times in epoch ms.

    definition: None if what is stored makes no sense. state: `active`, `paused`, `ended` (no
    further run), `changing` (a change is under way) or `failing`; then `error` says why. next_ms,
    last_ms: due times of the next run and of the last one. missed: how many runs became due before
    they were made, since it was added.
    """

    name: str
    definition: Definition | None
    state: str
    next_ms: int | None
    last_ms: int | None
    missed: int
    error: str


class StoredDefinition(NamedTuple):
    """A definition as it is stored. look_ms: when a worker looks at it; None: never."""

    name: bytes
    raw: bytes
    raw_progress: bytes
    look_ms: int | None


class Backfilled(NamedTuple):
    """What a backfill did. made: runs scheduled; known: runs that had been made before.

    from_ms, to_ms: the span that is complete now, the end not included.
    """

    made: int
    known: int
    from_ms: int
    to_ms: int


class Definitions(RunMaking):
    """Changes definitions, exactly: a change ends the old plan before the new one begins."""

    def check(self, definition: Definition, now_ms: int) -> Definition:
        """The definition in canonical form. MessageError names the field at fault; without I/O."""
        found = definition.checked(now_ms)
        due_ms = next(found.times((found.start_ms or now_ms) - 1), now_ms)
        due_ms = min(due_ms, now_ms)  # a run far ahead is made when its time is near
        accepted = self.accepted_run(found, due_ms, ttl=found.ttl_ms)
        (to,) = msgspec.msgpack.decode(accepted.payload)[:1]
        if (owner := tenant_text(accepted.payload)) != found.tenant:
            what = f"{to} is a topic of tenant {owner}; add it as {owner}: tenant={owner!r} in"
            raise MessageError(
                "bad_destination", "destination", f"{what} Client, or a token of it over HTTP"
            )
        return msgspec.structs.replace(found, destination=to)

    def add(self, definition: Definition, *, replace: bool) -> Steps[Answer]:
        """Add a definition: `created`, `duplicate` (it is there already) or `replaced`.

        MessageConflict if the name has another definition, unless `replace`. MessageError if it is
        wrong, or there are too many.
        """

        def change(entry: DefinitionEntry, now_ms: int) -> dict[str, Any] | Answer:
            checked = self.check(definition, now_ms)
            fields: dict[str, Any] = msgspec.to_builtins(checked)
            if entry.definition == checked:
                return Answer.DUPLICATE
            if entry.raw and not replace:
                what = f"{checked.name!r} is another definition; choose a name, or replace it"
                raise MessageConflict("conflict", "name", what)
            return fields

        entry, _ = yield from self._change(definition.name, change)
        if isinstance(entry, Answer):
            return entry
        return Answer.REPLACED if entry.raw else Answer.CREATED

    def pause(self, name: str, *, paused: bool) -> Steps[dict[int, Answer] | None]:
        """Pause or resume; None if there is no such definition, {} if nothing had to be done.

        Paused: what became of each run that was ahead, by due time. A resumed definition goes on
        with its first run from now on.
        """

        def change(entry: DefinitionEntry, now_ms: int) -> dict[str, Any] | Answer:
            if not entry.raw:
                return Answer.UNKNOWN
            if entry.definition is None:
                raise MessageError("bad_definition", "name", f"{entry.error}; add it again")
            if entry.definition.paused is paused:
                return Answer.DUPLICATE
            return {**entry.own_fields, "paused": paused}

        entry, answers = yield from self._change(name, change)
        if entry is Answer.UNKNOWN and self.calls.durability.mode is Keeping.LEDGER:
            yield from ledger_agreement.refuse_if_lost(self.calls.namespace)
            entry, answers = yield from self._change(name, change)  # it may have come back
        return None if entry is Answer.UNKNOWN else answers

    def remove(self, name: str) -> Steps[dict[int, Answer] | None]:
        """Remove a definition, as `pause`; also one that cannot be read.

        One with a name that no definition may have, which made no runs, is found by the name shown.
        With a ledger, what is not there is removed, too: Redis may have lost it.
        """

        def change(entry: DefinitionEntry, now_ms: int) -> dict[str, Any] | Answer:
            return {**entry.own_fields, "removed": True} if entry.raw else Answer.DUPLICATE

        if not is_name(name) and (odd := (yield from self._stored_as(name))):
            yield [plain("ZREM", keys.recurring_due(self.calls.namespace), *odd)]
            of = keys.recurring_state(self.calls.namespace), keys.recurring(self.calls.namespace)
            yield [plain("HDEL", each, *odd) for each in of]
            return {}
        entry, answers = yield from self._change(name, change)
        return None if entry is Answer.DUPLICATE else answers

    def _stored_as(self, name: str) -> Steps[list[bytes]]:
        """The fields of the hash that are shown by this name."""
        stored = yield from self._all_stored()
        return [each for each in stored if each.decode(errors="backslashreplace") == name]

    def _all_stored(self) -> Steps[dict[bytes, bytes]]:
        found: dict[bytes, bytes] = {}
        cursor, of = b"0", keys.recurring(self.calls.namespace)
        while True:
            ((cursor, flat),) = yield [plain("HSCAN", of, cursor, "COUNT", _PAGE)]
            found.update(zip(flat[::2], flat[1::2], strict=True))
            if int(cursor) == 0:
                return found

    def get(self, name: str) -> Steps[Recurring | None]:
        """One definition; None if there is none of this name."""
        entry, look_ms, now_ms = yield from stored.read_one(self.calls.namespace, name)
        if not entry.raw:
            return None
        return recurring_of(entry, look_ms, now_ms)

    def list_all(self) -> Steps[list[Recurring]]:
        """Every definition in order of its name."""
        rows, now_ms = yield from self.read_all()
        return [recurring_of(stored.read_entry(*row[:3]), row.look_ms, now_ms) for row in rows]

    def read_all(self) -> Steps[tuple[list[StoredDefinition], int]]:
        """Every definition in order of its name, and Redis' time."""
        found = yield from self._all_stored()
        names = sorted(found)
        if not names:
            return [], 0
        states, looks, now_us = yield [
            plain("HMGET", keys.recurring_state(self.calls.namespace), *names),
            plain("ZMSCORE", keys.recurring_due(self.calls.namespace), *names),
            self.calls.clock(),
        ]
        rows = [
            StoredDefinition(name, found[name], state or b"", stored.look_ms_of(look))
            for name, state, look in zip(names, states, looks, strict=True)
        ]
        return rows, now_us // 1000

    def run(self, name: str) -> Steps[Receipt | None]:
        """Schedule one run now, besides the plan; None if there is no such definition.

        Its id ends at random: two calls in the same millisecond are two runs.
        """
        entry, _, now_ms = yield from stored.read_one(self.calls.namespace, name)
        if not entry.raw:
            return None
        definition = _sound(entry)
        id = f"{definition.given_name}@{due_text(now_ms)}/run-{secrets.token_hex(4)}"
        run = self.accepted_run(definition, now_ms, id=id, ttl=definition.ttl_ms)
        return (yield from self.calls.schedule_one(run, OnConflict.KEEP))

    def backfill(self, name: str, from_ms: int, to_ms: int | None) -> Steps[Backfilled | None]:
        """Make the runs of [from, to) that were not made, due now, in order; None if unknown.

        Only runs that are decided: none in the future, and none that the workers are yet to decide.
        A repeat goes on where an interrupted call ended, and makes nothing twice.
        """
        yield from self.calls.open()
        for _ in range(_TRIES):
            entry, look_ms, now_ms = yield from stored.read_one(self.calls.namespace, name)
            if not entry.raw:
                return None
            definition = _sound(entry)
            if "was" in entry.fields:
                yield from self.finish(entry)
                continue
            end_ms = now_ms + 1 if to_ms is None else to_ms
            span = stored.decided(entry, from_ms, end_ms, now_ms)
            current = entry.fields.get("backfill")
            if current is None:
                yield from self._begin_backfill(entry, look_ms, span)
                continue
            if current.get("from_ms") != from_ms:
                begin = due_text(current.get("from_ms", 0))
                what = f"a backfill from {begin} is not finished; repeat that one first"
                raise MessageConflict("conflict", "from", what)
            return (yield from self._backfill(entry, definition, current))
        raise StoreError(f"redis: the definition {name} changes all the time; try again")

    def _begin_backfill(
        self, entry: DefinitionEntry, look_ms: int | None, span: Span
    ) -> Steps[None]:
        definition = _sound(entry)
        runs = list(
            islice(stored.runs_within(definition, span, entry.progress.made), BACKFILL_LIMIT + 1)
        )
        if len(runs) > BACKFILL_LIMIT:
            until = due_text(runs[-1])
            what = (
                f"more than {BACKFILL_LIMIT:,} runs; backfill until {until}, then go on from there"
            )
            raise MessageError("too_many", "to", what)
        birth = stored.new_backfill()
        of_bucket = self.bucket_for(definition).key("sources")
        source = stored.source_of(entry.name, birth)
        yield [plain("HSET", of_bucket, source, span[0])]
        backfill = {"birth": birth, "from_ms": span[0] + 1, "to_ms": span[1] + 1}
        raw = stored.encoded({**entry.fields, "backfill": backfill})
        (answer,) = yield [
            stored.define(self.calls.namespace, entry, raw, entry.raw_progress, look_ms)
        ]
        if answer != 1:
            yield [plain("HDEL", of_bucket, source)]

    def _backfill(
        self, entry: DefinitionEntry, definition: Definition, current: Mapping[str, Any]
    ) -> Steps[Backfilled]:
        """Make the runs of a backfill under way, then write down that they were made."""
        span = current["from_ms"] - 1, current["to_ms"] - 1
        runs = list(stored.runs_within(definition, span, entry.progress.made))
        known = sum(1 for _ in stored.runs_within(definition, span, ())) - len(runs)
        messages = [self.accepted_run(definition, due_ms) for due_ms in runs]
        made = 0
        for call in self.schedule_runs(definition, current["birth"], messages, runs):
            yield from self.refuse_over_quota(messages)
            reply = yield Each([call(False)])
            if reply[0] is None:
                yield from self.calls.open(again=True)
                reply = yield Each([call(True)])
            if isinstance(reply[0], Exception):
                raise reply[0]
            fresh = sum(answer is Answer.CREATED for answer, _ in reply[0] or ())
            self.calls.quota.count(messages[0].payload, fresh)
            made += fresh
        yield from self._end_backfill(entry.name, current["birth"], span)
        return Backfilled(made, known + len(runs) - made, span[0] + 1, span[1] + 1)

    def _end_backfill(self, name: str, birth: str, span: Span) -> Steps[None]:
        for _ in range(_TRIES):
            entry, look_ms, _ = yield from stored.read_one(self.calls.namespace, name)
            if stored.birth_of({"plan": entry.fields.get("backfill")}) != birth:
                return  # another call has ended it, or the definition was changed
            fields = {each: value for each, value in entry.fields.items() if each != "backfill"}
            made = stored.spans_with(entry.progress.made, *span)
            progress = msgspec.json.encode(msgspec.structs.replace(entry.progress, made=made))
            raw = stored.encoded(fields)
            (answer,) = yield [stored.define(self.calls.namespace, entry, raw, progress, look_ms)]
            if answer == 1:
                source = stored.source_of(name, birth)
                yield [plain("HDEL", self.bucket_for(_sound(entry)).key("sources"), source)]
                return

    def _change(
        self, name: str, change: Callable[[DefinitionEntry, int], dict[str, Any] | Answer]
    ) -> Steps[tuple[DefinitionEntry | Answer, dict[int, Answer]]]:
        """Change a definition as `change` says, who is given it as it is; an answer: do nothing.

        `duplicate`: it is so already. With a ledger that is a change, too: of the time of now.

        Returns the definition as it was, and what became of the runs that were ahead.
        """
        check_name(name)
        yield from self.calls.open()
        for _ in range(_TRIES):
            entry, look_ms, now_ms = yield from stored.read_one(self.calls.namespace, name)
            if "was" in entry.fields:  # its caller is at work, or dead
                with suppress(MessageError):  # what it was to become makes no sense
                    yield from self._finish(entry)
                    continue
            fields = change(entry, now_ms)
            if isinstance(fields, Answer):
                if (yield from self._stays(entry, look_ms, fields)):
                    return fields, {}
            elif not entry.raw and not fields.get("paused"):
                if (yield from self.begin_plan(entry, fields, now_ms, stored.Progress())):
                    return entry, {}
            elif changing := (yield from self.begin_change(entry, fields, now_ms)):
                return entry, (yield from self._finish(changing))
        raise StoreError(f"redis: the definition {name} changes all the time; try again")

    def _stays(self, entry: DefinitionEntry, look_ms: int | None, answer: Answer) -> Steps[bool]:
        """Have the ledger know that a definition stays as it is; False: it has changed since."""
        if answer is not Answer.DUPLICATE or self.calls.durability.mode is not Keeping.LEDGER:
            return True
        same = entry.raw, entry.raw_progress, look_ms
        (written,) = yield [stored.define(self.calls.namespace, entry, *same, again=True)]
        return bool(written == 1)

    def _finish(self, entry: DefinitionEntry) -> Steps[dict[int, Answer]]:
        try:
            return (yield from self.finish(entry))
        except StoreFull as exc:
            what = f"the change of {entry.name} has begun, and workers finish it"
            raise StoreFull(f"redis: full; {what} when there is room: raise maxmemory") from exc


def recurring_of(entry: DefinitionEntry, look_ms: int | None, now_ms: int) -> Recurring:
    """An entry for callers. look_ms: when a worker looks at it."""
    progress, definition = entry.progress, entry.definition
    state, error = _state_of(entry, look_ms, now_ms)
    next_ms = min((each for each in progress.ahead_ms if each > now_ms), default=None)
    if definition is not None and entry.birth and look_ms is not None:
        try:
            usual = definition.times(now_ms if next_ms is None else now_ms + LEAD_MS)
            usual_ms = next(usual, None)
        except DelayBridgeError as exc:  # the zone is unknown here
            usual_ms, state, error = None, FAILING, str(exc)
        if next_ms is None:
            next_ms = usual_ms
        elif usual_ms is not None and progress.planned_ms > usual_ms:
            state, error = FAILING, "planned ahead: Redis' clock was set back; pause and resume it"
    past = [due_ms for due_ms in progress.ahead_ms if due_ms <= now_ms]
    last_ms = max(past, default=progress.last_ms)
    return Recurring(entry.name, definition, state, next_ms, last_ms, progress.missed, error)


def _state_of(entry: DefinitionEntry, look_ms: int | None, now_ms: int) -> tuple[str, str]:
    """The state of an entry, and its error."""
    error = entry.error or entry.progress.error
    if error:
        return FAILING, error
    if "was" in entry.fields:
        return _CHANGING, ""
    if entry.definition is not None and entry.definition.paused:
        return _PAUSED, ""
    if not entry.birth:
        return FAILING, "it was written by hand and has no plan; add it"
    if look_ms is None:
        return _state_without_look(entry)
    if look_ms < now_ms - stored.LATE_LOOK_MS:
        return FAILING, UNMADE
    return _ACTIVE, ""


def _state_without_look(entry: DefinitionEntry) -> tuple[str, str]:
    """Ended, unless there is a further run: then Redis lost when to look at it."""
    try:
        is_over = next(_sound(entry).times(entry.after_ms), None) is None
    except DelayBridgeError as exc:
        return FAILING, str(exc)
    return (_ENDED, "") if is_over else (FAILING, _UNWATCHED)


def _sound(entry: DefinitionEntry) -> Definition:
    """The definition; MessageError if it makes no sense."""
    if entry.definition is None:
        raise MessageError("bad_definition", "name", f"{entry.error}; add it again")
    return entry.definition
