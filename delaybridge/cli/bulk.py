"""One verb on many messages: on those named by id, or on those that a selection finds.

A selection is counted first and confirmed; the verb then goes out in batches, and each message has
its own answer. A reader that closes stdout misses answers, it does not stop the work.
"""

from __future__ import annotations

import functools
import json
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import click

from delaybridge.cli.failure import INTERRUPTED, Exit, Failure
from delaybridge.cli.grammar import argument_bytes, key_option
from delaybridge.cli.session import Session
from delaybridge.worker.interrupts import interrupts

if TYPE_CHECKING:
    from delaybridge.client import Client
    from delaybridge.errors import StoreDamaged
    from delaybridge.message import Answer
    from delaybridge.store.changes import Named
    from delaybridge.store.selection import Selected, Selection

T = TypeVar("T")
BATCH_MESSAGES = 250  # a pipeline that keeps Redis busy for about 4 ms
PENDING_STATES = ("delayed", "in_flight", "parked")
# What keeps a verb from taking effect: exit code and words. All other answers are good news.
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
_FILTERS = ("destination", "exchange", "states", "reason", "id_prefix", "due_from", "due_to")
Verb = Callable[["Client", Sequence["Named"], list[int]], "list[Answer]"]
"""The messages and how much later, in ms, each of them is due; one answer each."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What a bulk command was asked for: ids, or filters and what belongs to them.

    confirmed_by: the option that means yes.
    """

    ids: tuple[str, ...]
    key: bytes | None
    filters: dict[str, Any]
    dead: bool
    yes: bool = False
    dry_run: bool = False
    over: str | None = None
    confirmed_by: str = "--yes"

    def __post_init__(self) -> None:
        chosen = [name for name in (*_FILTERS, "everything") if self.filters.get(name)]
        if not self.ids and not chosen:
            what = "missing; give ids, or choose messages: --destination, --id-prefix, ..."
            raise Failure(Exit.REFUSED, "usage", "ID", what)
        for given, flag in ((self.ids, "ID"), (self.key, "--key")):
            if given and chosen:
                what = "given together with a filter; give one of them"
                raise Failure(Exit.REFUSED, "usage", flag, what)
        if self.dry_run and self.ids:
            raise Failure(Exit.REFUSED, "usage", "--dry-run", "only together with a filter")

    @property
    def selection(self) -> Selection:
        """The filters as the client takes them."""
        from delaybridge.message import State
        from delaybridge.store.selection import PENDING, Selection
        from delaybridge.times import at_ms

        chosen = self.filters
        pending = [state for state in PENDING if state.value in (chosen.get("states") or ())]
        low, high = chosen.get("due_from"), chosen.get("due_to")
        return Selection(
            states=(State.DEAD,) if self.dead else tuple(pending or PENDING),
            destination=chosen.get("destination"),
            exchange=chosen.get("exchange"),
            reason=chosen.get("reason"),
            id_prefix=chosen.get("id_prefix") or "",
            due_from_ms=None if low is None else at_ms(low, field="--due-from"),
            due_to_ms=None if high is None else at_ms(high, field="--due-to"),
        )

    @property
    def over_ms(self) -> int:
        """The span to spread the messages over."""
        from delaybridge.times import delay_ms

        return 0 if self.over is None else delay_ms(self.over, field="--over")


def bulk_options(*, dead: bool = False, over: bool = False) -> Callable[[Callable[..., Any]], Any]:
    """ID..., -k and the filters of a bulk verb; the command gets them as one `Asked`."""
    options = [
        click.argument("ids", nargs=-1, metavar="[ID...]"),
        key_option,
        click.option(
            "--destination", metavar="D", help="Only messages to exactly this destination."
        ),
        click.option(
            "--exchange",
            metavar="[BROKER:]X",
            help="Only messages to this exchange, with any routing key, or to this topic.",
        ),
        _state_option(dead),
        click.option(
            "--reason",
            metavar="R",
            help="Only messages that failed for this reason, as unroutable.",
        ),
        click.option(
            "--id-prefix", metavar="TEXT", help="Only messages whose id begins with this."
        ),
        click.option("--due-from", metavar="TIME", help="Only messages due at this time or later."),
        click.option("--due-to", metavar="TIME", help="Only messages due at this time or earlier."),
        *([_OVER] if over else []),
        click.option("--dry-run", is_flag=True, help="Only count what a filter matches."),
        click.option("--yes", is_flag=True, help="Do not ask."),
    ]

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(command)
        def gathered(*args: Any, ids: tuple[str, ...], key: str | None, **given: Any) -> Any:
            filters = {name: given.pop(name, None) for name in (*_FILTERS, "everything")}
            own = {name: given.pop(name) for name in ("yes", "dry_run", "over") if name in given}
            key_bytes = None if key is None else argument_bytes(key)
            return command(*args, asked=Asked(ids, key_bytes, filters, dead, **own), **given)

        for option in reversed(options):
            gathered = option(gathered)
        return gathered

    return decorate


def _state_option(dead: bool) -> Callable[[Any], Any]:
    if dead:
        return click.option("--all", "everything", is_flag=True, help="All dead messages.")
    return click.option(
        "--state",
        "states",
        type=click.Choice(PENDING_STATES),
        multiple=True,
        help="Only messages in this state; once for each state. [default: all three]",
    )


_OVER = click.option(
    "--over", metavar="DURATION", help="Spread them evenly over this span, in their order."
)


def perform(
    session: Session, asked: Asked, word: str, verb: Verb, *, unknown: str = "no such message"
) -> int:
    """Do it to every message asked for and say what became of each; the exit code."""
    if asked.ids:
        return _each(session, asked, verb, unknown)
    return sweep(session, word, asked.selection, verb, asked)


def sweep(session: Session, word: str, selection: Selection, verb: Verb, asked: Asked) -> int:
    """The verb on all that the selection finds: counted, confirmed, done; the exit code.

    Nothing is counted where nobody asks how many there are.
    """
    over_ms = asked.over_ms
    with session.client(remedy="run the command again") as client:
        counted = None
        if asked.dry_run or over_ms or not asked.yes:
            counted, damage = _counted(client, selection)
            states = _summed(counted, 1)
            if asked.dry_run:
                text = f"{states.total():,} messages match{_in_brackets(states)}"
                session.output.result({"matched": states.total(), **states}, text)
                if damage is not None:
                    raise damage
                return Exit.DONE
            if states:
                what = f"{word} {states.total():,} messages{_in_brackets(states)}"
                session.confirm(what, yes=asked.yes, flag=asked.confirmed_by)
        by_bucket = None if counted is None else _summed(counted, 0)
        return Sweep(session, client, verb, by_bucket, over_ms).run(selection)


def _counted(
    client: Client, selection: Selection
) -> tuple[Counter[tuple[int, str]], StoreDamaged | None]:
    """Messages by bucket and state; why some could not be read, if so."""
    from delaybridge.errors import StoreDamaged

    counted = Counter[tuple[int, str]]()
    try:
        for page in client.select(selection):
            counted.update((one.bucket, one.state.value) for one in page)
    except StoreDamaged as exc:
        return counted, exc
    return counted, None


def _summed(counted: Counter[tuple[int, str]], place: int) -> Counter[Any]:
    """By bucket (0) or by state (1)."""
    summed = Counter[Any]()
    for names, count in counted.items():
        summed[names[place]] += count
    return summed


@dataclass
class Sweep:
    """One run of a verb over a selection. counted: messages by bucket, if they were counted."""

    session: Session
    client: Client
    verb: Verb
    counted: Counter[int] | None
    over_ms: int
    answers: Counter[str] = field(default_factory=Counter)
    damage: StoreDamaged | None = None
    _places: Counter[int] = field(default_factory=Counter)

    def run(self, selection: Selection) -> int:
        """All pages; the exit code. An interruption leaves what is done, done.

        StoreDamaged: all was done that can be read.
        """
        total = None if self.counted is None else self.counted.total()
        with interrupts(signal.SIGINT) as check:
            try:
                with _progress(self.session, total) as advance:
                    for page in self.client.select(selection):
                        for some in _batches(page):
                            self._do(some)
                            advance(len(some))
                            check()
                if self.damage is not None:
                    raise self.damage
            except KeyboardInterrupt:
                return INTERRUPTED.show(as_json=self.session.output.json)
            finally:
                self._summary()
        return exit_code(self.answers)

    def _do(self, some: Sequence[Selected]) -> None:
        from delaybridge.errors import StoreDamaged

        try:
            answers = self.verb(self.client, some, [*map(self._later_ms, some)])
        except StoreDamaged as exc:  # of this bucket: the others are swept first
            self.damage = self.damage or exc
            return
        self.answers.update(answer.value for answer in answers)
        if not _is_watched(self.session):
            _show(self.session, [one.id for one in some], answers)

    def _later_ms(self, one: Selected) -> int:
        """Each bucket's messages evenly over the span, in their order."""
        if self.counted is None:
            return 0
        place = self._places[one.bucket]
        self._places[one.bucket] += 1
        return spread(place, self.counted[one.bucket], self.over_ms)

    def _summary(self) -> None:
        output, matched = self.session.output, self.answers.total()
        if output.json:
            output.error_line(json.dumps({"summary": {"matched": matched, **self.answers}}))
        else:
            counts = [f"{n:,} {word}" for word, n in self.answers.most_common()]
            self.session.note(", ".join(counts) or "no message matches")


def spread(place: int, count: int, over_ms: int) -> int:
    """How much later the message at this place of so many is due; what came since is last."""
    return over_ms * min(place, count - 1) // count if count > 0 else 0


def exit_code(answers: Counter[str]) -> int:
    """0; where something stood in the way of some, 6; of all, the code that says what."""
    obstacles = [_OBSTACLES[answer][0] for answer in answers if answer in _OBSTACLES]
    if not obstacles:
        return Exit.DONE
    return max(obstacles) if len(obstacles) == len(answers) else Exit.PARTLY


def _each(session: Session, asked: Asked, verb: Verb, unknown: str) -> int:
    """All ids are checked first; one alone is answered by its error."""
    from delaybridge.accept.accept import check_id

    ids = [*dict.fromkeys(asked.ids)]
    for id in ids:
        check_id(id, session.settings.limits.as_limits())
    over_ms = asked.over_ms
    places = iter(range(len(ids)))
    answers = Counter[str]()
    with session.client() as client:
        for some in _batches(ids):
            later_ms = [spread(next(places), len(ids), over_ms) for _ in some]
            found = verb(client, some, later_ms)
            if len(asked.ids) == 1 and (obstacle := _OBSTACLES.get(found[0].value)):
                exit, what = obstacle
                raise Failure(exit, found[0].value, ids[0], what or unknown)
            _show(session, some, found)
            answers.update(answer.value for answer in found)
    return exit_code(answers)


def _batches(some: list[T]) -> Iterator[list[T]]:
    for start in range(0, len(some), BATCH_MESSAGES):
        yield some[start : start + BATCH_MESSAGES]


def _show(session: Session, ids: Sequence[str], answers: Sequence[Answer]) -> None:
    rows = zip(ids, answers, strict=True)
    session.output.results(({"id": id, "answer": a.value}, f"{id}  {a.value}") for id, a in rows)


def _in_brackets(states: Counter[str]) -> str:
    return f" ({', '.join(f'{n:,} {state}' for state, n in states.items())})" if states else ""


def _is_watched(session: Session) -> bool:
    """Whether stdout is a terminal: a person wants the sum."""
    return not session.output.json and sys.stdout is not None and sys.stdout.isatty()


def _progress(session: Session, total: int | None) -> AbstractContextManager[Callable[[int], None]]:
    """A bar on stderr where a person looks on."""
    if session.output.json or sys.stderr is None or not sys.stderr.isatty():
        return nullcontext(lambda _count: None)
    from delaybridge.cli.progress import count_bar

    return count_bar(total)
