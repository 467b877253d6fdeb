"""Who is taken for dead, as a model of its own: an owner, two fellows, the server that all ask.

An owner has a *line*, a connection that is open as long as its process lives. It announces the
line's number and the run of the server that gave it. A fellow asks that server which lines it has.
If the owner's is not among them, twice, the fellow ends its announcement and releases its lease.
Every order of single steps is tried; times are in ticks.

Promises:

1. Who lives is taken for dead only if its line alone was away for as long as two questions are
   apart, and it announced nothing meanwhile.
2. Who lives is taken for dead once at most, so its leases end early once at most.
3. A dead owner's lease is released within a question and the time between two, if a fellow has had
   answers for longer than a lease; if its line was cut before, once more the time between two.
4. The lease of the next process of that name is never released.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

TTL, APART, EACH = 3, 1, 1
_END = 2 * TTL  # nothing is looked at after this tick


class TakeOverRules(NamedTuple):
    """What can be taken out, to see what it is for."""

    twice: bool = True  # the line is missed twice, some time apart
    unrenewed: bool = True  # no announcement came between the two
    same_run: bool = True  # only lines of this run of the server are missed in it
    answered: bool = True  # the fellow has had answers for longer than a lease
    once: bool = True  # who was taken for dead and lives announces no line any more
    by_token: bool = True  # the lease that was held when the line was missed, not the one of now


class Said(NamedTuple):
    """An announcement. at: when it was made; line: of the run, None: it has none."""

    at: int
    run: int
    line: int | None


class Fellow(NamedTuple):
    """What a fellow knows. since: when its own line began. asked: its last question.

    missed: the announcement whose line was missed, the token then, and when; marked: it has ended
    that announcement, and is about to release this token.
    """

    since: int = -TTL - 1
    asked: int = 0
    missed: tuple[Said, int, int] | None = None
    marked: int | None = None


class OverState(NamedTuple):
    """Everything. run: of the server. lines: those that it has, of the owner.

    line: the owner's, as it is now, with its run; drawn: the number of the last one. away: since
    when it has none that is announced, None: it has; alone: the fellows' were not cut then. said:
    as the server has it; None: it is over, and `over` has it, unless another one came since. token:
    of the lease, its first owner's is 1. cuts, moves: how often its line alone may still be cut,
    and all lines. half_open: it does not know that its line leads to another server. fenced: how
    often it was taken for dead while it lived. bad: promises that are broken.
    """

    now: int = 0
    run: int = 0
    lines: tuple[tuple[int, int], ...] = ((0, 1),)
    line: tuple[int, int] | None = (0, 1)
    drawn: int = 1
    away: int | None = None
    alone: bool = True
    said: Said | None = Said(0, 0, 1)
    over: Said | None = None
    renewed: int = 0
    lives: bool = True
    died: int = 0
    token: int | None = 1
    fellows: tuple[Fellow, ...] = (Fellow(),)
    cuts: int = 0
    moves: int = 0
    half_open: bool = False
    withdrawn: bool = False
    fenced: int = 0
    bad: frozenset[int] = frozenset()


changed = OverState._replace


class TakeOver:
    """The steps from a state. cuts: of the owner's line alone. moves: cuts of all lines, perhaps
    since another server answers. mortal: whether the owner may die.
    """

    def __init__(
        self, rules: TakeOverRules, *,
        cuts: int = 0, moves: int = 0, fellows: int = 1, mortal: bool = False,
    ) -> None:  # fmt: skip
        self.rules, self.mortal = rules, mortal
        self.start = OverState(cuts=cuts, moves=moves, fellows=(Fellow(),) * fellows)

    def steps(self, now: OverState) -> Iterator[OverState]:
        if now.now > _END or now.bad:
            return
        if now.lives:
            yield from self._of_owner(now)
        elif now.said is None and now.token is None:
            said = Said(now.now, now.run, None)
            yield changed(now, said=said, over=None, token=2, renewed=now.now)
        if now.cuts and now.line in now.lines:
            yield self._cut(now, alone=True, run=now.run)
        if now.moves:
            yield self._cut(now, alone=False, run=now.run)  # a proxy that all go through
            yield self._cut(now, alone=False, run=now.run + 1)
            yield changed(self._cut(now, alone=False, run=now.run + 1), half_open=True)
        for i, fellow in enumerate(now.fellows):
            yield from self._of_fellow(now, i, fellow)
        if self._may_pass(now):
            yield changed(now, now=now.now + 1)

    def _of_owner(self, now: OverState) -> Iterator[OverState]:
        if self.mortal:
            left = tuple(each for each in now.lines if each != now.line)
            yield changed(now, lives=False, died=now.now, lines=left)
        said = now.said
        if now.line is None or (now.half_open and now.now - now.renewed < TTL):
            if not now.half_open:  # its line begins again, and is announced
                line = now.run, now.drawn + 1
                begun = changed(now, lines=(*now.lines, line), line=line, drawn=now.drawn + 1)
                yield self._announces(begun)
            yield self._announces(now)  # by another connection
        elif said is None or now.renewed < now.now:
            yield self._announces(now)

    def _announces(self, now: OverState) -> OverState:
        """It announces itself; whoever was taken for dead learns it, and takes its lease again."""
        was_ended = now.said is None
        withdrawn = now.withdrawn or (was_ended and self.rules.once)
        run, line = now.line or (now.run, None)
        said = Said(now.now, run, None if withdrawn else line)
        has_line = now.line in now.lines
        token = 1 if now.token is None else now.token
        return changed(
            now, said=said, over=None, renewed=now.now, withdrawn=withdrawn, token=token,
            away=None if has_line else now.away,
        )  # fmt: skip

    def _cut(self, now: OverState, *, alone: bool, run: int) -> OverState:
        """The owner's line is cut; or all of them, perhaps because another server answers."""
        left = tuple(each for each in now.lines if each != now.line)
        cut = changed(now, lines=left, line=None, away=now.now, alone=alone, run=run)
        if alone:
            return changed(cut, cuts=now.cuts - 1)
        fellows = tuple(Fellow(since=now.now, asked=now.now) for _ in now.fellows)
        kept = {"line": now.line} if run != now.run else {}  # until it learns of it
        drawn = 1 if run != now.run else now.drawn  # numbers begin again
        return changed(cut, moves=now.moves - 1, fellows=fellows, drawn=drawn, **kept)

    def _of_fellow(self, now: OverState, i: int, fellow: Fellow) -> Iterator[OverState]:
        if fellow.marked is not None:
            yield self._releases(now, i, fellow)
        elif fellow.missed is not None:
            if now.now >= fellow.missed[2] + (APART if self.rules.twice else 0):
                yield self._asks_again(now, i, fellow)
        elif now.now > fellow.asked:
            yield self._asks(now, i, fellow)

    def _misses(self, now: OverState, said: Said | None) -> bool:
        if said is None or said.line is None or (self.rules.same_run and said.run != now.run):
            return False
        return (now.run, said.line) not in now.lines

    def _asks(self, now: OverState, i: int, fellow: Fellow) -> OverState:
        is_old = now.now - fellow.since > TTL or not self.rules.answered
        missed = None
        if is_old and now.said is not None and now.token and self._misses(now, now.said):
            missed = now.said, now.token, now.now
        return _of(now, i, fellow._replace(asked=now.now, missed=missed))

    def _asks_again(self, now: OverState, i: int, fellow: Fellow) -> OverState:
        assert fellow.missed is not None
        (said, token, _), rules = fellow.missed, self.rules
        fellow = fellow._replace(missed=None, asked=now.now)
        is_same = said in (now.said, now.over) or (now.said is not None and not rules.unrenewed)
        if not (is_same and (self._misses(now, said) or not rules.twice)):
            return _of(now, i, fellow)
        if now.said is None:
            return _of(now, i, fellow._replace(marked=token))  # ended by the other fellow
        is_fine = now.away is not None and now.alone and now.now - now.away >= APART
        is_fine = is_fine and now.renewed <= now.now - APART
        bad = {1} if now.lives and not is_fine else set[int]()
        fenced = now.fenced + now.lives
        bad |= {2} if fenced > 1 else set()
        ended = changed(now, said=None, over=now.said, fenced=fenced, bad=now.bad | bad)
        return _of(ended, i, fellow._replace(marked=token))

    def _releases(self, now: OverState, i: int, fellow: Fellow) -> OverState:
        is_theirs = now.token == fellow.marked or not self.rules.by_token
        bad = {4} if is_theirs and now.token == 2 else set[int]()
        token = None if is_theirs else now.token
        return _of(changed(now, token=token, bad=now.bad | bad), i, fellow._replace(marked=None))

    def _may_pass(self, now: OverState) -> bool:
        """Fellows keep to their times, and an owner that lives renews in time."""
        for fellow in now.fellows:
            if fellow.marked is not None or now.now - fellow.asked >= EACH + APART:
                return False
            if fellow.missed is not None and now.now > fellow.missed[2]:
                return False
            if fellow.missed is None and now.now > fellow.asked:
                return False
        return not now.lives or now.now - now.renewed < TTL - 1


def _of(now: OverState, i: int, fellow: Fellow) -> OverState:
    return changed(now, fellows=(*now.fellows[:i], fellow, *now.fellows[i + 1 :]))


def explore_take_over(model: TakeOver) -> tuple[int, set[int]]:
    """How many states there are, and the promises that break."""
    seen, left, broken = {model.start}, deque([model.start]), set[int]()
    while left:
        state = left.popleft()
        broken |= state.bad | _late(state)
        for step in model.steps(state):
            if step not in seen:
                seen.add(step)
                left.append(step)
    return len(seen), broken


def _late(now: OverState) -> set[int]:
    """Promise 3: of who died with a line that it had announced."""
    said, old = now.said, all(now.died - each.since > TTL for each in now.fellows)
    is_known = said is not None and said.line is not None and said.run == now.run
    most = EACH + (APART if now.drawn == 1 else 2 * APART)
    is_late = now.token == 1 and now.now > now.died + most
    return {3} if not now.lives and old and is_known and is_late else set()
