"""Applies one verb to many messages, named by id or matched by filters.

Matches are counted and confirmed first. The verb then goes out in batches, and each message gets an
answer. A reader that closes stdout misses answers but does not stop the work.
"""

from __future__ import annotations

import json
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import click

from delaybridge.cli import grammar
from delaybridge.cli.failure import INTERRUPTED, Exit, Failure, refused
from delaybridge.cli.grammar import Decorator, option, options
from delaybridge.cli.session import Invocation
from delaybridge.errors import StoreDamaged
from delaybridge.worker.interrupts import interrupts

if TYPE_CHECKING:
    from delaybridge import Answer, Client, Selection
    from delaybridge.store.changes import Named

PENDING_STATES = ("delayed", "in_flight", "parked")
BATCH_MESSAGES = 250  # a pipeline that keeps Redis busy for about 4 ms
# Answers that mean failure: exit code and words.
_OBSTACLES = {
    "unknown": (Exit.NOT_FOUND, ""),
    "in_flight": (Exit.CONFLICT, "too late: it is handed to the broker"),
    "unreadable": (
        Exit.CONFLICT,
        "its record is missing or cannot be read, so it would only be buried again; "
        "see: delaybridge dead show, and discard it",
    ),
    "dead": (Exit.CONFLICT, "it is in the dead set; bring it back: delaybridge dead kick"),
}
Verb = Callable[["Client", Sequence["Named"], list[int]], "list[Answer]"]
"""Takes messages and a delay in ms for each of them; returns one answer per message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Targets:
    """Ids, or filters, and how the verb is to be applied. Failure if they contradict each other.

    default_states: searched if `states` is empty. due_from_ms, due_to_ms: epoch ms. over: the ms to
    spread the messages over. confirmed_by: the option that means yes.
    """

    ids: tuple[str, ...] = ()
    key: bytes | None = None
    destination: str | None = None
    exchange: str | None = None
    states: tuple[str, ...] = ()
    reason: str | None = None
    id_prefix: str | None = None
    due_from_ms: int | None = None
    due_to_ms: int | None = None
    everything: bool = False
    default_states: tuple[str, ...] = PENDING_STATES
    yes: bool = False
    dry_run: bool = False
    over: int | None = None
    confirmed_by: str = "--yes"

    def __post_init__(self) -> None:
        text = self.destination or self.exchange or self.reason or self.id_prefix
        span = self.due_from_ms or self.due_to_ms
        has_filter = bool(text or self.states or span or self.everything)
        if not self.ids and not has_filter:
            what = "missing; give ids, or choose messages: --destination, --id-prefix, ..."
            raise refused("ID", what)
        for given, flag in ((self.ids, "ID"), (self.key, "--key")):
            if given and has_filter:
                raise refused(flag, "given together with a filter; give one of them")
        if self.dry_run and self.ids:
            raise refused("--dry-run", "only together with a filter")

    @property
    def selection(self) -> Selection:
        """The filters as the client takes them."""
        from delaybridge.message import State
        from delaybridge.store.selection import PENDING, Selection

        states = self.states or self.default_states
        return Selection(
            states=tuple(state for state in (*PENDING, State.DEAD) if state in states),
            destination=self.destination,
            exchange=self.exchange,
            reason=self.reason,
            id_prefix=self.id_prefix or "",
            due_from_ms=self.due_from_ms,
            due_to_ms=self.due_to_ms,
        )


_EXCHANGE = option(
    "--exchange [BROKER:]X",
    "Only messages to this exchange, with any routing key, or to this topic.",
)
_STATES = option(
    "--state",
    "Only messages in this state; once for each state. [default: all three]",
    to="states",
    type=click.Choice(PENDING_STATES),
    multiple=True,
)
_ALL = option("--all", "All dead messages.", to="everything")
_REASON = option("--reason R", "Only messages that failed for this reason, as unroutable.")
_ID_PREFIX = option("--id-prefix TEXT", "Only messages whose id begins with this.")
_SPAN = "Spread them evenly over this span, in their order."
_OVER = option("--over DURATION", _SPAN, type=grammar.DURATION)
_DRY_RUN = option("--dry-run", "Only count what a filter matches.")
_YES = option("--yes", "Do not ask.")


def target_options(*, dead: bool = False, over: bool = False) -> Decorator:
    """ID..., -k and the filters of a bulk verb: the fields of `Targets`."""
    return options(
        click.argument("ids", nargs=-1, metavar="[ID...]"),
        grammar.key_option,
        grammar.destination_option,
        _EXCHANGE,
        _ALL if dead else _STATES,
        _REASON,
        _ID_PREFIX,
        grammar.due_options,
        *([_OVER] if over else []),
        _DRY_RUN,
        _YES,
    )


def perform(
    call: Invocation,
    targets: Targets,
    word: str,
    verb: Verb,
    unknown: str = "no such message",
    *,
    confirm_ids: bool = False,
) -> int:
    """Apply the verb and print the answer for every message; the exit code.

    All ids are checked before anything is done. The failure of a single id is raised. confirm_ids:
    several ids are confirmed, too.
    """
    from delaybridge.accept.accept import check_id

    ids = [*dict.fromkeys(targets.ids)]
    if confirm_ids and len(ids) > 1:
        call.confirm(f"{word} {len(ids)} messages", yes=targets.yes)
    for id in ids:
        check_id(id, call.settings.limits.as_limits())
    with call.client(remedy="run the command again") as client:
        sweep = Sweep(call, client, verb, targets.over or 0)
        if not ids:
            return _sweep_matches(sweep, targets, word)
        if len(ids) > 1:
            sweep.counted = Counter({None: len(ids)})
            return sweep.run([ids])
        (answer,) = verb(client, ids, [0])
        if answer.value in _OBSTACLES:
            exit, what = _OBSTACLES[answer.value]
            raise Failure(exit, answer.value, ids[0], what or unknown)
        _show(call, ids, [answer])
        return Exit.DONE


def _sweep_matches(sweep: Sweep, targets: Targets, word: str) -> int:
    """Count the messages that match the filters, ask, and apply the verb; the exit code.

    Counts only if the number is needed: to ask, to spread the messages, or for --dry-run.
    """
    selection, call = targets.selection, sweep.call
    if targets.dry_run or targets.over or not targets.yes:
        states, damage = sweep.count(selection)
        text = f"{states.total():,} messages"
        if states:
            text += f" ({', '.join(f'{n:,} {state}' for state, n in states.items())})"
        if targets.dry_run:
            data = {"matched": states.total(), **states}
            call.output.result(data, text.replace("messages", "messages match", 1))
            if damage is not None:
                raise damage
            return Exit.DONE
        if states:
            call.confirm(f"{word} {text}", yes=targets.yes, flag=targets.confirmed_by)
    try:
        return sweep.run(sweep.client.select(selection), quiet=_is_watched(call))
    finally:
        sweep.show_summary()


@dataclass
class Sweep:
    """One run of a verb over many messages. counted: by bucket, None if not counted."""

    call: Invocation
    client: Client
    verb: Verb
    over_ms: int = 0
    counted: Counter[int | None] | None = None
    answers: Counter[str] = field(default_factory=Counter)
    damage: StoreDamaged | None = None
    _places: Counter[int | None] = field(default_factory=Counter)

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

    def run(self, pages: Iterable[Sequence[Named]], *, quiet: bool = False) -> int:
        """Apply the verb to all pages; the exit code. An interruption undoes nothing.

        StoreDamaged: the verb was applied to all messages that can be read.
        """
        total = None if self.counted is None else self.counted.total()
        with interrupts(signal.SIGINT) as check:
            try:
                with _progress(self.call, total) as advance:
                    for page in pages:
                        for start in range(0, len(page), BATCH_MESSAGES):
                            some = page[start : start + BATCH_MESSAGES]
                            self._do(some, quiet)
                            advance(len(some))
                            check()
            except KeyboardInterrupt:
                return INTERRUPTED.show(as_json=self.call.output.json)
        if self.damage is not None:
            raise self.damage
        return exit_code(self.answers)

    def _do(self, some: Sequence[Named], quiet: bool) -> None:
        try:
            answers = self.verb(self.client, some, [*map(self._later_ms, some)])
        except StoreDamaged as exc:  # in this bucket; the others come first
            self.damage = self.damage or exc
            return
        self.answers.update(answer.value for answer in answers)
        if not quiet:
            _show(self.call, [one if isinstance(one, str) else one.id for one in some], answers)

    def _later_ms(self, one: Named) -> int:
        """Spread the messages evenly over the span, in their order, bucket by bucket."""
        if self.counted is None:
            return 0
        bucket = None if isinstance(one, str) else one.bucket
        place, count = self._places[bucket], self.counted[bucket]
        self._places[bucket] += 1
        # One that was not counted comes last.
        return self.over_ms * min(place, count - 1) // count if count > 0 else 0

    def show_summary(self) -> None:
        """Print on stderr how often each answer was given."""
        output, matched = self.call.output, self.answers.total()
        if output.json:
            output.error_line(json.dumps({"summary": {"matched": matched, **self.answers}}))
        else:
            counts = [f"{n:,} {word}" for word, n in self.answers.most_common()]
            self.call.note(", ".join(counts) or "no message matches")


def exit_code(answers: Counter[str]) -> int:
    """0 if no message failed, 6 if some did; if all did, the code of the reason."""
    obstacles = [_OBSTACLES[answer][0] for answer in answers if answer in _OBSTACLES]
    if not obstacles:
        return Exit.DONE
    return max(obstacles) if len(obstacles) == len(answers) else Exit.PARTLY


def _show(call: Invocation, ids: Sequence[str], answers: Sequence[Answer]) -> None:
    rows = zip(ids, answers, strict=True)
    call.output.results(({"id": id, "answer": a.value}, f"{id}  {a.value}") for id, a in rows)


def _is_watched(call: Invocation) -> bool:
    """Whether stdout is a terminal: people want the sum, not a line per message."""
    return not call.output.json and sys.stdout is not None and sys.stdout.isatty()


def _progress(call: Invocation, total: int | None) -> AbstractContextManager[Callable[[int], None]]:
    """A bar on stderr if it is a terminal."""
    if call.output.json or sys.stderr is None or not sys.stderr.isatty():
        return nullcontext(lambda _count: None)
    from delaybridge.cli.progress import bar

    return bar(total)
