"""Applies one verb to many messages, named by id or matched by filters.

Matches are counted and confirmed first. The verb then goes out in batches, and each message gets an
answer. A reader that closes stdout misses answers but does not stop the work.
"""

from __future__ import annotations

import json
import signal
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from inspect import signature
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from delaybridge.client.notes import Notes
from delaybridge.client.spreading import Spreading
from delaybridge.client.surface import TABLE
from delaybridge.client.verbs import Verb as TableVerb
from delaybridge.errors import StoreDamaged
from delaybridge.message import State
from delaybridge.operate.cli.messages.targets import Targets
from delaybridge.operate.terminal.failure import INTERRUPTED, Exit, Failure
from delaybridge.operate.terminal.interrupts import interrupts
from delaybridge.operate.terminal.invocation import Invocation
from delaybridge.operate.terminal.progress import progress

if TYPE_CHECKING:
    from delaybridge import Answer, Client, Selection
    from delaybridge.store.messages.changes import Named

_PASSES = 10
BATCH_MESSAGES = 250  # a pipeline that keeps Redis busy for about 4 ms
# Answer -> the exit code and the words of its failure.
_FAILURES = {
    "unknown": (Exit.NOT_FOUND, ""),
    "in_flight": (Exit.CONFLICT, ""),
    "unreadable": (
        Exit.CONFLICT,
        "its record cannot be read; see: delaybridge dead show, and discard it",
    ),
    "dead": (Exit.CONFLICT, "it is in the dead set; bring it back: delaybridge dead kick"),
    "refused": (Exit.CONFLICT, "the new destination does not take it; it stays as it is"),
    "changed": (Exit.CONFLICT, "others changed it, or it goes elsewhere; it stays as it is"),
}
NOT_DEAD = "not in the dead set"
_PENDING_WORDS = {
    "unknown": "no such message is pending",
    "in_flight": "too late: it is handed to the broker",
}
_DEAD_WORDS = {
    "unknown": NOT_DEAD,
    "in_flight": "it may live: it is dead and elsewhere; try again once that is mended",
}
Verb = Callable[..., "list[Answer]"]
"""Called with a client and some messages, such as `Client.cancel_many`."""


class BulkVerb(NamedTuple):
    """A verb for many messages, with further arguments. name: at a client, as `dead.kick_many`.

    asks: what people are asked to confirm, before the number of messages.
    """

    name: str
    asks: str
    fields: Mapping[str, Any] = {}

    def __call__(self, client: Client, messages: Sequence[Named], **how: Any) -> list[Answer]:
        """Do it, and return the answer for each message."""
        found: list[Answer] = attrgetter(self.name)(client)(messages, **self.fields, **how)
        return found

    def row(self) -> TableVerb[..., Any]:
        """Its row in the table of verbs."""
        return TABLE[self.name]

    @property
    def has_notes(self) -> bool:
        """Whether its answers depend on what is in a message."""
        return "bound_for" in signature(self.row().call).parameters

    @property
    def is_of_dead(self) -> bool:
        """Whether it changes dead messages only."""
        return [*self.row().states] == [State.DEAD]


def perform(call: Invocation, targets: Targets, bulk: BulkVerb) -> int:
    """Apply the verb and print the answer for every message; the exit code.

    All ids are checked before anything is done. Verbs that destroy something ask first, even if the
    messages are named by id. A dry run with ids prints what would be answered now, and has the exit
    code of that. The failure of a single id is raised.
    """
    from delaybridge.accept.accept import check_id

    ids, named = [*dict.fromkeys(targets.ids)], targets.from_file
    verb = _begun(call, targets, bulk) if ids or named is not None else cast(Verb, bulk)
    for id in ids:
        check_id(id, call.settings.limits.as_limits())
    with call.client(remedy="run the command again") as client:
        sweep = Sweep(call, client, verb, targets.key, targets.over_ms)
        if bulk.has_notes:
            bulk(client, [], dry_run=True)  # MessageError if there can be no such destination
        if named is not None:
            return _sweep_file(sweep, named)
        if not ids:
            return _sweep_matches(sweep, targets, bulk)
        if len(ids) > 1:
            sweep.counted = Counter({None: len(ids)})
            return sweep.run([ids])
        (answer,) = verb(client, ids, key=targets.key)
        if answer.value in _FAILURES:
            exit, what = _FAILURES[answer.value]
            words = _DEAD_WORDS if bulk.is_of_dead else _PENDING_WORDS
            notes = "; ".join(getattr(answer, "notes", ()))
            raise Failure(exit, answer.value, ids[0], notes or words.get(answer.value, what))
        _show(call, ids, [answer])
        for note in getattr(answer, "notes", ()):
            call.note(note)
        return Exit.DONE


def _begun(call: Invocation, targets: Targets, bulk: BulkVerb) -> Verb:
    """The verb for messages that are named, once it may begin."""
    verb, count = cast(Verb, bulk), len({*targets.ids})
    if targets.dry_run:
        call.note("dry run: nothing is changed")
        return partial(verb, dry_run=True)
    if bulk.row().is_destructive and count != 1:
        which = f"{count} messages" if count else "the messages that are named in the file"
        call.confirm(f"{bulk.asks} {which}", yes=targets.yes)
    return verb


def _sweep_file(sweep: Sweep, named: Iterable[bytes]) -> int:
    """Apply the verb to the messages that a file names, page by page; the exit code."""
    from delaybridge.carry.receipts import named_in

    limits = sweep.call.settings.limits.as_limits()
    pages = named_in(named, limits, sweep.client.run(lambda calls: calls.open()))
    try:
        return sweep.run(pages, quiet=sweep.call.output.is_watched)
    finally:
        if sweep.answers:
            sweep.show_summary()


def _sweep_matches(sweep: Sweep, targets: Targets, bulk: BulkVerb) -> int:
    """Count the messages that match the filters, ask, and apply the verb; the exit code.

    Counts only if the number is needed: to ask, to spread the messages, or for --dry-run.
    """
    selection, call = targets.selection, sweep.call
    if targets.dry_run or targets.over_ms or not targets.yes:
        states, damage = sweep.count(selection)
        if damage is None and not states:
            _check_used(sweep, targets)
        text = f"{states.total():,} messages"
        if states:
            text += f" ({', '.join(f'{n:,} {state}' for state, n in states.items())})"
        if targets.dry_run:
            data = {"matched": states.total(), **states}
            call.output.result(data, text.replace("messages", "messages match", 1))
            return sweep.foretell(selection, bulk, damage)
        if states:
            call.confirm(f"{bulk.asks} {text}", yes=targets.yes, flag=targets.confirmed_by)
    try:
        code = sweep.run(_pages(sweep, targets), quiet=call.output.is_watched)
    finally:
        sweep.show_summary()
    if not sweep.answers:
        _check_used(sweep, targets)
    return code


def _check_used(sweep: Sweep, targets: Targets) -> None:
    """No message matches: Failure if there is none to the destination at all, and no rule."""
    if targets.destination is not None:
        if (found := sweep.client.destinations(targets.destination)).is_unused:
            raise Failure(Exit.NOT_FOUND, "unused", "destination", found.unused_text)
        if found.near:
            sweep.call.note(found.unused_text)


def _pages(sweep: Sweep, targets: Targets) -> Iterator[Sequence[Named]]:
    """The pages of the matches; of a purge again, until a pass changes nothing.

    Messages move while they are looked for, and none of a purged destination may stay.
    """
    for _ in range(_PASSES if targets.repeated else 1):
        late, changed = sweep.answers["in_flight"], sweep.changed
        yield from sweep.client.select(targets.selection)
        sweep.answers -= Counter({"in_flight": late})  # each pass sees them again
        if sweep.changed == changed:
            return


@dataclass
class Sweep:
    """One run of a verb over many messages. counted: by bucket, None if not counted."""

    call: Invocation
    client: Client
    verb: Verb
    key: bytes | None = None
    over_ms: int = 0
    counted: Counter[int | None] | None = None
    answers: Counter[str] = field(default_factory=Counter)
    damage: StoreDamaged | None = None
    _spreading: Spreading | None = None
    notes: Notes = field(default_factory=Notes)

    @property
    def changed(self) -> int:
        """How many messages the verb has changed."""
        return sum(n for answer, n in self.answers.items() if answer not in _FAILURES)

    def count(self, selection: Selection) -> tuple[Counter[str], StoreDamaged | None]:
        """Messages by state; the error if some could not be read."""
        self.counted, by_state = Counter(), Counter[str]()
        try:
            for page in self.client.select(selection):
                self.counted.update(one.bucket for one in page)
                by_state.update(one.state.value for one in page)
        except StoreDamaged as exc:
            return by_state, exc
        return by_state, None

    def foretell(self, selection: Selection, bulk: BulkVerb, damage: StoreDamaged | None) -> int:
        """Show on stderr what the answers would be, if that depends on more than the state."""
        if damage is not None:
            raise damage
        if not bulk.has_notes:
            return Exit.DONE
        self.verb = partial(self.verb, dry_run=True)
        code = self.run(self.client.select(selection), quiet=True)
        self.show_summary()
        return code

    def run(self, pages: Iterable[Sequence[Named]], *, quiet: bool = False) -> int:
        """Apply the verb to all pages; the exit code. An interruption undoes nothing.

        StoreDamaged: the verb was applied to all messages that can be read.
        """
        total = None if self.counted is None else self.counted.total()
        output = self.call.output
        has_bar = not output.json and quiet == output.is_watched  # else answers would run into it
        with interrupts(signal.SIGINT) as check:
            try:
                with progress(total, wanted=has_bar) as advance:
                    for page in pages:
                        for start in range(0, len(page), BATCH_MESSAGES):
                            some = page[start : start + BATCH_MESSAGES]
                            self._do(some, quiet)
                            advance(len(some))
                            check()
            except KeyboardInterrupt:
                return INTERRUPTED.show(as_json=output.json)
        if self.damage is not None:
            raise self.damage
        return exit_code(self.answers)

    def _do(self, some: Sequence[Named], quiet: bool) -> None:
        try:
            answers = self.verb(self.client, some, key=self.key, **self._spread(some))
        except StoreDamaged as exc:  # in this bucket; the others come first
            self.damage = self.damage or exc
            return
        self.answers.update(answer.value for answer in answers)
        ids = [one if isinstance(one, str) else one.id for one in some]
        self.notes.add_answers(ids, answers)
        if not quiet:
            _show(self.call, ids, answers)

    def _spread(self, some: Sequence[Named]) -> dict[str, list[int]]:
        """Spread the messages evenly over the span, in their order, bucket by bucket."""
        if not self.over_ms or self.counted is None:
            return {}
        self._spreading = self._spreading or Spreading(self.over_ms, self.counted)
        return {"spread_ms": self._spreading.later_ms(some)}

    def show_summary(self) -> None:
        """Print on stderr how often each answer was given."""
        output, matched = self.call.output, self.answers.total()
        if output.json:
            notes = {"notes": found} if (found := self.notes.lines()) else {}
            summary = {"matched": matched, **self.answers, **notes}
            output.error_line(json.dumps({"summary": summary}))
        else:
            for note in self.notes.lines():
                self.call.note(note)
            counts = [f"{n:,} {word}" for word, n in self.answers.most_common()]
            self.call.note(", ".join(counts) or "no message matches")


def exit_code(answers: Counter[str]) -> int:
    """0 if no message failed, 6 if some did; if all did, the code of the reason."""
    codes = [_FAILURES[answer][0] for answer in answers if answer in _FAILURES]
    if not codes:
        return Exit.DONE
    return max(codes) if len(codes) == len(answers) else Exit.PARTLY


def _show(call: Invocation, ids: Sequence[str], answers: Sequence[Answer]) -> None:
    rows = zip(ids, answers, strict=True)
    call.output.results(({"id": id, "answer": a.value}, f"{id}  {a.value}") for id, a in rows)
