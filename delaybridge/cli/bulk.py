"""Applies one verb to many messages, named by id or matched by filters.

Matches are counted and confirmed first. The verb then goes out in batches, and each message gets an
answer. A reader that closes stdout misses answers but does not stop the work.
"""

from __future__ import annotations

import json
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from delaybridge.cli.failure import INTERRUPTED, Exit, Failure
from delaybridge.cli.session import Session
from delaybridge.cli.targets import Targets
from delaybridge.worker.interrupts import interrupts

if TYPE_CHECKING:
    from delaybridge.client import Client
    from delaybridge.errors import StoreDamaged
    from delaybridge.message import Answer
    from delaybridge.store.changes import Named
    from delaybridge.store.selection import Selected, Selection

T = TypeVar("T")
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


def perform(
    session: Session, targets: Targets, word: str, verb: Verb, *, unknown: str = "no such message"
) -> int:
    """Apply the verb and print the answer for every message; the exit code."""
    if targets.ids:
        return _each(session, targets, verb, unknown)
    return sweep(session, targets, word, verb)


def sweep(session: Session, targets: Targets, word: str, verb: Verb) -> int:
    """Count the messages that match the filters, ask, and apply the verb; the exit code.

    Counts only if the number is needed: to ask, to spread the messages, or for --dry-run.
    """
    over_ms = targets.over or 0
    with session.client(remedy="run the command again") as client:
        by_bucket = None
        if targets.dry_run or over_ms or not targets.yes:
            by_bucket, states, damage = _counted(client, targets.selection)
            text = f"{states.total():,} messages"
            if states:
                text += f" ({', '.join(f'{n:,} {state}' for state, n in states.items())})"
            if targets.dry_run:
                data = {"matched": states.total(), **states}
                session.output.result(data, text.replace("messages", "messages match", 1))
                if damage is not None:
                    raise damage
                return Exit.DONE
            if states:
                session.confirm(f"{word} {text}", yes=targets.yes, flag=targets.confirmed_by)
        return Sweep(session, client, verb, by_bucket, over_ms).run(targets.selection)


def _counted(
    client: Client, selection: Selection
) -> tuple[Counter[int], Counter[str], StoreDamaged | None]:
    """Messages by bucket and by state; the error if some could not be read."""
    from delaybridge.errors import StoreDamaged

    by_bucket, by_state = Counter[int](), Counter[str]()
    try:
        for page in client.select(selection):
            by_bucket.update(one.bucket for one in page)
            by_state.update(one.state.value for one in page)
    except StoreDamaged as exc:
        return by_bucket, by_state, exc
    return by_bucket, by_state, None


@dataclass
class Sweep:
    """One run of a verb over matching messages. counted: by bucket, None if not counted."""

    session: Session
    client: Client
    verb: Verb
    counted: Counter[int] | None
    over_ms: int
    answers: Counter[str] = field(default_factory=Counter)
    damage: StoreDamaged | None = None
    _places: Counter[int] = field(default_factory=Counter)

    def run(self, selection: Selection) -> int:
        """Apply the verb to all pages; the exit code. An interruption undoes nothing.

        StoreDamaged: the verb was applied to all messages that can be read.
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
        except StoreDamaged as exc:  # in this bucket; the others come first
            self.damage = self.damage or exc
            return
        self.answers.update(answer.value for answer in answers)
        if not _is_watched(self.session):
            _show(self.session, [one.id for one in some], answers)

    def _later_ms(self, one: Selected) -> int:
        """Spread each bucket's messages evenly over the span, in their order."""
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
    """How much later the message at `place` of `count` is due; uncounted ones come last."""
    return over_ms * min(place, count - 1) // count if count > 0 else 0


def exit_code(answers: Counter[str]) -> int:
    """0 if no message failed, 6 if some did; if all did, the code of the reason."""
    obstacles = [_OBSTACLES[answer][0] for answer in answers if answer in _OBSTACLES]
    if not obstacles:
        return Exit.DONE
    return max(obstacles) if len(obstacles) == len(answers) else Exit.PARTLY


def _each(session: Session, targets: Targets, verb: Verb, unknown: str) -> int:
    """Check all ids, then apply the verb. The failure of a single id is raised."""
    from delaybridge.accept.accept import check_id

    ids = [*dict.fromkeys(targets.ids)]
    for id in ids:
        check_id(id, session.settings.limits.as_limits())
    places = iter(range(len(ids)))
    answers = Counter[str]()
    with session.client() as client:
        for some in _batches(ids):
            later_ms = [spread(next(places), len(ids), targets.over or 0) for _ in some]
            found = verb(client, some, later_ms)
            if len(targets.ids) == 1 and (obstacle := _OBSTACLES.get(found[0].value)):
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


def _is_watched(session: Session) -> bool:
    """Whether stdout is a terminal: people want the sum, not a line per message."""
    return not session.output.json and sys.stdout is not None and sys.stdout.isatty()


def _progress(session: Session, total: int | None) -> AbstractContextManager[Callable[[int], None]]:
    """A bar on stderr if it is a terminal."""
    if session.output.json or sys.stderr is None or not sys.stderr.isatty():
        return nullcontext(lambda _count: None)
    from delaybridge.cli.progress import bar

    return bar(total)
