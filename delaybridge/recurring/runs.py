"""Making the runs of recurring definitions: what workers do, and the plans that they follow."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple
from zlib import crc32

import msgspec

from delaybridge.accept.accept import Accepted, accept
from delaybridge.errors import DelayBridgeError, MessageError, StoreError, StoreUnavailable
from delaybridge.message import KNOWN, Answer, destination_text
from delaybridge.recurring import stored
from delaybridge.recurring.definition import Definition, due_text, read_definition
from delaybridge.recurring.plan import LEAD_MS, Planned, plan, ttl_ms
from delaybridge.recurring.stored import DefinitionEntry, Progress, Span
from delaybridge.store.messages.scheduling import Scheduling
from delaybridge.store.protocol.bucket import Bucket
from delaybridge.store.protocol.together import together
from delaybridge.store.protocol.verbs import (
    Each,
    RedisCommand,
    SourceOffsets,
    Steps,
    bucket_of,
    new_stamp,
    plain,
)

AT_ONCE = 50  # definitions of one look: a worker publishes meanwhile
_CALL_RUNS = 100  # of one script call
_LATER_MS = 10_000  # until a definition that cannot be made now is looked at again
_DAY_MS = 86_400_000
_MOST_AHEAD = 1000  # runs that a change cancels, besides those that are known


class Made(NamedTuple):
    """What became of one definition at a look.

    destination: of its messages. due_ms: the runs that were made, ascending; missed: how many
    became due before that. error: why none can be made now; is_new: unlike at the look before.
    """

    name: str
    destination: str
    due_ms: Sequence[int] = ()
    missed: int = 0
    error: str = ""
    is_new: bool = True


class _Turn(NamedTuple):
    """A definition to plan now, and its messages."""

    entry: DefinitionEntry
    planned: Planned
    messages: list[Accepted]
    error: str = ""


class RunMaking:
    """Makes the runs of a namespace's definitions."""

    def __init__(self, calls: Scheduling) -> None:
        self.calls = calls

    def make_taken(self, now_ms: int, entries: Sequence[DefinitionEntry]) -> Steps[list[Made]]:
        """Make the runs of definitions taken by `stored.recur`. Any number of workers may do so.

        Also answers for those whose change was finished, or whose plan begins again: further looks
        are due.
        """
        if not entries:
            return []
        yield from self.calls.open()
        yield from self.calls.quota.read_counts(self.calls.following.held())  # asked in `_turn`
        changing = [entry for entry in entries if "was" in entry.fields]
        turns = [self._turn(e, now_ms) for e in entries if "was" not in e.fields]
        made = yield from self._make(turns, now_ms)
        ended = yield from together([self.finish(entry) for entry in changing])
        for entry, found in zip(changing, ended, strict=True):
            if isinstance(found, Exception):
                failed = _failed(entry, now_ms, str(found))
                yield [self._written(failed, now_ms)]
                made.append(_made(failed))
            else:
                made.append(Made(entry.name, ""))
        return made

    def finish(self, entry: DefinitionEntry) -> Steps[dict[int, Answer]]:
        """End the plan before a change and begin the one after it, if that was not done yet.

        Answers with what became of the old plan's runs that were ahead. Safe to repeat, and for
        several callers at once: only one of them begins the plan.
        """
        fields = entry.own_fields
        old = stored.read_entry(entry.name, stored.encoded(entry.fields["was"] or {}))
        progress = entry.progress
        answers, after_ms, spans = yield from self._end_plan(entry, old)
        if old.definition and entry.definition and old.definition.grid != entry.definition.grid:
            spans = ()  # the runs are others
        last_ms = _last_ms(progress, after_ms, answers)
        kept = Progress(last_ms=last_ms, missed=progress.missed, made=spans)
        if fields.get("removed"):
            yield [stored.define(self.calls.namespace, entry, b"", b"", None)]
        elif fields.get("paused"):
            raw = stored.encoded(fields), msgspec.json.encode(kept)
            yield [stored.define(self.calls.namespace, entry, *raw, None)]
        else:
            yield from self.begin_plan(entry, fields, after_ms, kept)
        return answers

    def begin_plan(
        self, entry: DefinitionEntry, fields: dict[str, Any], after_ms: int, progress: Progress
    ) -> Steps[bool]:
        """Write the fields with a new plan; False: another call was faster.

        The bucket knows the plan before any worker can: no caller makes it known a second time.
        """
        definition = read_definition(entry.name, fields)
        birth, bucket = stored.new_birth(), self.bucket_for(definition)
        source = stored.source_of(entry.name, birth)
        (known,) = yield Each([plain("HSET", bucket.key("sources"), source, after_ms)])
        if isinstance(known, StoreError):  # raised here, so that callers can say what was done
            raise known
        planned = {**fields, "plan": {"birth": birth, "after_ms": after_ms}}
        raw = stored.encoded(planned), msgspec.json.encode(progress)
        (answer,) = yield [stored.define(self.calls.namespace, entry, *raw, after_ms)]
        if answer != 1:
            yield [plain("HDEL", bucket.key("sources"), source)]
        refuse_if_full(answer)
        return bool(answer)

    def bucket_for(self, definition: Definition) -> Bucket:
        """The bucket of all messages of a definition."""
        return self.calls.buckets[bucket_of(definition.shard_key, len(self.calls.buckets))]

    def accepted_run(
        self, definition: Definition, due_ms: int, *, id: str | None = None, ttl: int | None = None
    ) -> Accepted:
        """The checked message of a run. Raises MessageError."""
        message = definition.message(due_ms, id=id, ttl_ms=ttl)
        found = accept(message, self.calls.kinds, self.calls.limits)
        return msgspec.structs.replace(found, shard_key=definition.shard_key)

    def schedule_runs(
        self,
        definition: Definition,
        birth: str,
        messages: Sequence[Accepted],
        due_ms: Sequence[int],
    ) -> list[Callable[[bool], RedisCommand[Any]]]:
        """Script calls that schedule runs, ascending, of a plan or backfill, if it is known."""
        bucket, source = self.bucket_for(definition), stored.source_of(definition.name, birth)

        def command(at: int) -> Callable[[bool], RedisCommand[Any]]:
            part = slice(at, at + _CALL_RUNS)
            stamped = [(new_stamp(), message) for message in messages[part]]
            offsets = SourceOffsets(source, due_ms[part])
            return lambda first: bucket.schedule(stamped, KNOWN, source=offsets, first=first)

        return [command(at) for at in range(0, len(messages), _CALL_RUNS)]

    def refuse_over_quota(self, messages: Sequence[Accepted]) -> Steps[None]:
        """Raise StoreFull if a quota has no room for the first of one definition's messages."""
        if messages:
            held = self.calls.following.held()
            yield from self.calls.quota.check(messages[0].payload, held)

    def _turn(self, entry: DefinitionEntry, now_ms: int) -> _Turn:
        nothing = Planned([], 0, 0, entry.progress.planned_ms, now_ms + _LATER_MS)
        definition = entry.definition
        if definition is not None and definition.paused:
            return _Turn(entry, nothing._replace(look_ms=None), [])
        if definition is None or not entry.birth:
            return _Turn(entry, nothing, [], entry.error or "it has no plan: add it again")
        try:
            planned = plan(definition, entry.after_ms, now_ms, is_first=entry.is_first)
            far_ms = now_ms + self.calls.limits.delay_ms - _DAY_MS
            if planned.due_ms and planned.due_ms[-1] > far_ms:  # it cannot be accepted yet
                return _Turn(entry, nothing._replace(look_ms=now_ms + _DAY_MS), [])
            messages = [
                self.accepted_run(definition, due_ms, ttl=ttl_ms(definition, due_ms))
                for due_ms in planned.due_ms
            ]
            if messages and (full := self.calls.quota.refusal(messages[0].payload)) is not None:
                raise full
        except DelayBridgeError as exc:
            return _Turn(entry, nothing, [], str(exc))
        except Exception as exc:  # one odd definition must not stop the others
            return _Turn(entry, nothing, [], f"{type(exc).__name__}: {exc}")
        return _Turn(entry, planned, messages)

    def _make(self, turns: Sequence[_Turn], now_ms: int) -> Steps[list[Made]]:
        """Schedule the messages, then write down that this is done."""
        calls = [(at, call) for at, turn in enumerate(turns) for call in self._calls(turn)]
        replies = yield Each(call(False) for _, call in calls)
        if None in replies:  # a bucket without a birth id
            yield from self.calls.open(again=True)
            replies = yield Each(call(True) for _, call in calls)
        turns, lost = list(turns), []
        for (at, _), reply in zip(calls, replies, strict=True):
            if isinstance(reply, StoreError) or reply is None:
                why = str(reply or "the bucket is another's")
                turns[at] = _failed(turns[at].entry, now_ms, why)
            elif not reply:  # its plan has ended; if it should not have, it begins again
                lost.append(at)
        errors = yield from together([self._begin_again(turns[at].entry, now_ms) for at in lost])
        again = dict(zip(lost, errors, strict=True))
        kept = [
            _failed(turn.entry, now_ms, str(again[at])) if again.get(at) else turn
            for at, turn in enumerate(turns)
            if at not in again or again[at]
        ]
        made = yield from self._write(kept, now_ms)
        return made + [Made(turns[at].entry.name, "") for at in lost if not again[at]]

    def _write(self, turns: Sequence[_Turn], now_ms: int) -> Steps[list[Made]]:
        """Write down what was done; what another call has written is not ours."""
        written: list[Any] = list((yield Each(self._written(turn, now_ms) for turn in turns)))
        # A repeated write answers 1 if the first took effect; without an answer its runs would go
        # unreported.
        unclear = [at for at, one in enumerate(written) if isinstance(one, StoreUnavailable)]
        again = yield Each(self._written(turns[at], now_ms) for at in unclear)
        for at, answer in zip(unclear, again, strict=True):
            written[at] = answer
        return [_made(turn) for turn, answer in zip(turns, written, strict=True) if answer == 1]

    def _calls(self, turn: _Turn) -> list[Callable[[bool], RedisCommand[Any]]]:
        entry, definition = turn.entry, turn.entry.definition
        if not turn.messages or definition is None:
            return []
        return self.schedule_runs(definition, entry.birth, turn.messages, turn.planned.due_ms)

    def _written(self, turn: _Turn, now_ms: int) -> RedisCommand[int]:
        entry, planned = turn.entry, turn.planned
        progress = _progress(turn, now_ms)
        raw = msgspec.json.encode(progress)
        return stored.define(self.calls.namespace, entry, entry.raw, raw, planned.look_ms)

    def _begin_again(self, entry: DefinitionEntry, now_ms: int) -> Steps[None]:
        """A plan that its bucket does not know: Redis lost a write, unless it was changed."""
        changing = yield from self.begin_change(entry, entry.own_fields, now_ms)
        if changing is not None:
            yield from self.finish(changing)

    def begin_change(
        self, entry: DefinitionEntry, fields: dict[str, Any], now_ms: int
    ) -> Steps[DefinitionEntry | None]:
        """Write the new fields next to the old ones, for `finish`; None: another call was faster.

        From then on no worker plans it; if the caller dies, one of them finishes the change. If a
        change is under way that no worker can finish, this one takes its place.
        """
        was = entry.fields.get("was", entry.fields)
        raw = stored.encoded({**fields, "was": was, "since_ms": now_ms})
        look_ms, progress = now_ms + LEAD_MS, entry.raw_progress
        (answer,) = yield [stored.define(self.calls.namespace, entry, raw, progress, look_ms)]
        refuse_if_full(answer)
        return stored.read_entry(entry.name, raw, progress) if answer == 1 else None

    def _end_plan(
        self, entry: DefinitionEntry, old: DefinitionEntry
    ) -> Steps[tuple[dict[int, Answer], int, tuple[Span, ...]]]:
        """End the plan before a change, and cancel its runs that were not due when it began.

        Answers with what became of them, after which run the next plan begins, and the spans in
        which every run was made. Once its bucket does not know the plan, no worker can make another
        run of it. All who end the same plan send the same stamp, and get the same answers.
        """
        since_ms, progress = entry.since_ms, entry.progress
        births = old.birth, stored.birth_of({"plan": old.fields.get("backfill")})
        sources = [stored.source_of(old.name, birth) for birth in births if birth]
        definition, time = old.definition, self.calls.clock()
        if not sources or definition is None:  # its bucket is not known
            forget: list[RedisCommand[Any]] = [
                plain("HDEL", each.key("sources"), *sources) for each in self.calls.following.held()
            ]
            yield forget if sources else []
            return {}, since_ms, progress.made
        bucket = self.bucket_for(definition)
        fenced, ended_us = yield [stored.fence(bucket, sources), time]
        due_ms = _ahead(definition, progress, since_ms, ended_us // 1000) if old.birth else []
        ids = [f"{definition.name}@{due_text(each)}" for each in due_ms]
        stamp = crc32(entry.raw).to_bytes(4)
        # Only while the old plan is known: a run of this name may be one of the next plan.
        cancels = [bucket.cancel(stamp, id, source=sources[0], offset="") for id in ids]
        forget = [plain("HDEL", bucket.key("sources"), *sources)]
        *replies, then_us = yield [*cancels, time]
        yield forget
        if not old.birth:
            return {}, since_ms, progress.made
        answers = dict(zip(due_ms, replies, strict=False))
        last_ms = then_us // 1000 if fenced[0] is None else fenced[0]  # the last that was made
        after_ms = max([since_ms, *(at for at, one in answers.items() if _left(one, at, last_ms))])
        made = stored.spans_with(progress.made, _planned_ms(old, progress), min(last_ms, after_ms))
        return answers, after_ms, stored.spans_until(made, after_ms)


def _last_ms(progress: Progress, after_ms: int, answers: Mapping[int, Answer]) -> int | None:
    """The last run of a plan that has ended; those that were ahead may have become due."""
    ahead = (at for at in progress.ahead_ms if at <= after_ms)
    past = (at for at in ahead if answers.get(at) is not Answer.CANCELLED)
    return max(past, default=progress.last_ms)


def _left(answer: Answer, due_ms: int, last_ms: int) -> bool:
    """Whether a run was made and is not cancelled: it has arrived, or is about to."""
    if answer is Answer.UNKNOWN:
        return due_ms <= last_ms
    return answer is not Answer.CANCELLED


def _planned_ms(old: DefinitionEntry, progress: Progress) -> int:
    """The last run of an old plan that its progress has."""
    return old._replace(progress=progress).after_ms


def refuse_if_full(answer: int) -> None:
    """MessageError if `stored.define` found too many definitions."""
    if answer < 0:
        what = f"there are {stored.DEFINITIONS_LIMIT:,} definitions; remove one"
        raise MessageError("too_many", "name", what)


def _ahead(definition: Definition, progress: Progress, since_ms: int, ended_ms: int) -> list[int]:
    """The runs that may have been made and were not due when a change began, by due time.

    ended_ms: when the plan had ended. No worker planned later than that, so none made more runs
    than those due soon after, and one.
    """
    found = [due_ms for due_ms in progress.ahead_ms if due_ms > since_ms]
    try:
        for due_ms in islice(definition.times(since_ms), _MOST_AHEAD):
            found.append(due_ms)
            if due_ms > ended_ms + LEAD_MS:
                break
    except MessageError:  # someone wrote the definition by hand: it made nothing
        pass
    return sorted(set(found))


def _failed(entry: DefinitionEntry, now_ms: int, error: str) -> _Turn:
    planned = Planned([], 0, 0, entry.progress.planned_ms, now_ms + _LATER_MS)
    return _Turn(entry, planned, [], error)


def _progress(turn: _Turn, now_ms: int) -> Progress:
    """The progress after a turn."""
    entry, planned, old = turn.entry, turn.planned, turn.entry.progress
    if turn.error or not planned.due_ms and not planned.missed:
        return msgspec.structs.replace(old, error=turn.error)
    runs = [*old.ahead_ms, *planned.due_ms]
    past = [due_ms for due_ms in runs if due_ms <= now_ms]
    made = old.made
    if caught := [due_ms for due_ms in planned.due_ms if due_ms <= planned.since_ms]:
        made = stored.spans_with(made, entry.after_ms, caught[-1])
    return Progress(
        birth=entry.birth,
        planned_ms=planned.planned_ms,
        ahead_ms=tuple(due_ms for due_ms in runs if due_ms > now_ms),
        last_ms=max(past, default=old.last_ms),
        missed=old.missed + planned.missed,
        made=stored.spans_with(made, planned.since_ms, planned.planned_ms),
    )


def _made(turn: _Turn) -> Made:
    entry = turn.entry
    return Made(
        entry.name,
        destination_text(turn.messages[0].payload) if turn.messages else "",
        turn.planned.due_ms,
        turn.planned.missed,
        turn.error,
        is_new=turn.error != entry.progress.error,
    )
