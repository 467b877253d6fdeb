"""Hot and cold as a model of its own: one id, two that schedule it, two that cancel, a promoter.

Every order of single steps is tried. A call commits its row, then looks for others of its id; what
is cold it brings into Redis, which decides. A script, or a transaction, is one step.

Promises, once nobody has anything left to do:

1. A message that was accepted is there, unless it was cancelled.
2. There is one at most, and it was accepted once.
3. After a cancel that began when all was answered, there is none.
4. What Redis has is live in the ledger: it would not be restored otherwise.
5. A message that was accepted before and is still there was not cancelled, whoever was told so.
6. Of each message one is told at most that he cancelled it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any, NamedTuple

COLD, HOT, OVER = "cold", "hot", "over"
Stamp = int


class TierRules(NamedTuple):
    """What can be taken out, to see what it is for."""

    row_first: bool = True  # a call looks for others only when its own row is committed
    others_brought: bool = True  # what is cold of the id is brought into Redis first
    cold_until_there: bool = True  # a row is cold until Redis has its message
    gone_checked: bool = True  # what was cancelled is not brought
    refused_kept: bool = True  # nor is what Redis has refused: it keeps that, too
    refused_asked: bool = True  # a call that Redis refused before is not cold: Redis answers again
    first_only: bool = True  # of several calls, only the first that is live is brought
    only_arrived: bool = True  # a row that was not brought stays cold
    ended_by_stamp: bool = True  # a cancel ends the row of the message that it removed, no other
    ledger_looked: bool = True  # a cancel that Redis knows nothing of looks at the ledger
    refused_left: bool = True  # a cancel does not end the row of a call that Redis has refused
    first_ended: bool = True  # of several cold rows it ends the first: no other was accepted
    undone_ended: bool = True  # one that is sent again ends rows that Redis has undone, no other


class Task(NamedTuple):
    """What somebody is in the middle of. at: its next step; read: the calls that it knows of, or
    the rows."""

    at: str
    read: tuple[Any, ...] = ()


class TierState(NamedTuple):
    """Everything. rows: of the calls 1 and 2; order: in which they were committed.

    has: the call whose message is in Redis. fired: an older message of the id is being delivered.
    undone: calls that were cancelled or refused, as Redis has them; met: those of them that met the
    older message. They are made again; refused: those that met another. answers: of the calls 1 and
    2, and of the cancels. late: both calls were answered when a cancel began.
    """

    rows: tuple[str, str] = ("", "")
    order: tuple[Stamp, ...] = ()
    has: Stamp = 0
    fired: bool = False
    undone: frozenset[Stamp] = frozenset()
    met: frozenset[Stamp] = frozenset()
    refused: frozenset[Stamp] = frozenset()
    calls: tuple[Task | None, Task | None] = (Task("first"), Task("first"))
    cancels: tuple[Task | None, Task | None] = (Task("redis"), None)
    promoter: Task | None = Task("read")
    promotions: int = 0
    answers: tuple[str, str, str, str] = ("", "", "", "")
    late: bool = False


changed, task_with = TierState._replace, Task._replace


class TierModel:
    """The steps from a state. cold: whether the calls are due late. promotions: how many.

    fired: in the beginning an older message of the id is being delivered. accepted: the first call
    was answered before, and its message is cold; two cancel it. lost: the reply to a cancel may be,
    so that it is sent again.
    """

    def __init__(
        self,
        rules: TierRules,
        *,
        cold: tuple[bool, bool],
        promotions: int,
        fired: bool = False,
        accepted: bool = False,
        lost: bool = False,
    ) -> None:
        self.rules, self.cold, self.promotions = rules, cold, promotions
        self.fired, self.accepted, self.lost = fired, accepted, lost

    def first(self) -> TierState:
        """The state to begin with."""
        first = TierState(fired=self.fired)
        if not self.accepted:
            return first
        first = changed(self._with_row(first, 0), cancels=(Task("redis"), Task("redis")))
        return _doing(_answer(first, 0, "created"), 0, None)

    def steps(self, now: TierState) -> Iterator[TierState]:
        for n in (0, 1):
            if (task := now.calls[n]) is not None:
                yield self._call(now, n, task)
                if task.at == "first":  # or it is never made
                    yield _doing(now, n, None)
        if now.fired:
            yield changed(now, fired=False)
        for n in (0, 1):
            if (task := now.cancels[n]) is not None:
                after = self._cancel(now, n, task)
                yield after
                if self.lost and task.at == "redis" and now.has and not now.fired:
                    yield _cancelling(after, n, Task("again"))
                if n and task.at == "redis":  # or one alone cancels it
                    yield _cancelling(now, n, None)
        if now.promoter is not None and now.promotions < self.promotions:
            yield self._promote(now, now.promoter)

    # one that schedules

    def _call(self, now: TierState, n: int, task: Task) -> TierState:
        mine = n + 1
        match task.at:
            case "first":
                if self.rules.row_first:
                    return _doing(self._with_row(now, n), n, Task("look"))
                return _doing(now, n, Task("look", (*now.rows,)))
            case "look":
                found = now.rows[1 - n]
                if not self.rules.row_first:
                    found, now = task.read[1 - n], self._with_row(now, n)
                return self._look(now, n, found)
            case "bring":
                return _doing(self._brought(now, task), n, task_with(task, at="arrived"))
            case "arrived":
                return _doing(self._arrived(now, task), n, Task("redis"))
            case "redis":
                return self._ask_redis(now, n)
            case _:  # nothing was stored: withdraw
                row = "" if now.rows[n] in (COLD, HOT) else now.rows[n]
                after = Task("first") if task.at == "again" else None
                return _doing(_row(now, mine, row), n, after)

    def _with_row(self, now: TierState, n: int) -> TierState:
        is_asked = self.rules.refused_asked and n + 1 in now.undone
        now = _row(now, n + 1, COLD if self.cold[n] and not is_asked else HOT)
        return changed(now, order=(*(each for each in now.order if each != n + 1), n + 1))

    def _look(self, now: TierState, n: int, found: str) -> TierState:
        """found: the other call's row."""
        mine, other = n + 1, 2 - n
        if now.rows[n] == COLD and found not in (COLD, HOT) and not now.fired:
            return _doing(_answer(now, n, "created"), n, None)
        if now.rows[n] == COLD:
            now = _row(now, mine, HOT)
        if found == COLD and self.rules.others_brought:
            return _doing(now, n, Task("bring", (other,)))
        return _doing(now, n, Task("redis"))

    def _ask_redis(self, now: TierState, n: int) -> TierState:
        mine = n + 1
        if now.fired:
            now = changed(now, undone=now.undone | {mine}, met=now.met | {mine})
            return _doing(now, n, Task("again"))
        if mine in now.met:
            now = changed(now, undone=now.undone - {mine}, met=now.met - {mine})
        if mine in now.undone:
            return _doing(_answer(now, n, "cancelled"), n, None)
        if now.has in (0, mine):
            return _doing(_answer(changed(now, has=mine), n, "created"), n, None)
        if self.rules.refused_kept:
            now = changed(now, undone=now.undone | {mine}, refused=now.refused | {mine})
        return _doing(_answer(now, n, "duplicate"), n, Task("withdraw"))

    # promotion

    def _promote(self, now: TierState, task: Task) -> TierState:
        match task.at:
            case "read":
                latest_first = now.order[::-1]  # by their due times it may be so
                read = tuple(stamp for stamp in latest_first if self._is_to_come(now, stamp))
                now = now if self.rules.cold_until_there else _warm(now, Task("", read))
                return changed(now, promoter=Task("bring", read))
            case "bring":
                return changed(self._brought(now, task), promoter=task_with(task, at="arrived"))
            case _:
                after = self._arrived(now, task)
                return changed(after, promoter=Task("read"), promotions=now.promotions + 1)

    def _is_to_come(self, now: TierState, stamp: Stamp) -> bool:
        live = [each for each in now.order if now.rows[each - 1] in (COLD, HOT)]
        is_first = live[:1] == [stamp] or not self.rules.first_only
        return is_first and now.rows[stamp - 1] == COLD

    def _arrived(self, now: TierState, task: Task) -> TierState:
        read = tuple(each for each in task.read if each == now.has or not self.rules.only_arrived)
        return _warm(now, Task("", read))

    def _brought(self, now: TierState, task: Task) -> TierState:
        for stamp in task.read:
            is_gone = self.rules.gone_checked and stamp in now.undone
            if not (now.has or now.fired or is_gone):
                now = changed(now, has=stamp)
        return now

    # one that cancels

    def _cancel(self, now: TierState, n: int, task: Task) -> TierState:
        match task.at:
            case "redis" | "rows" if now.fired:
                return _cancelling(_answer(now, 2 + n, "in_flight"), n, None)
            case "redis":
                now = changed(now, late=now.late or all(call is None for call in now.calls))
                if now.has:
                    return self._removed(now, n, now.has)
                if not self.rules.ledger_looked:
                    return _cancelling(_answer(now, 2 + n, "unknown"), n, None)
                return _cancelling(now, n, Task("read"))
            case "read":
                live = [stamp for stamp in now.order if now.rows[stamp - 1] in (COLD, HOT)]
                if not self.rules.first_ended:
                    live.reverse()
                live.sort(key=lambda stamp: now.rows[stamp - 1] != COLD)
                return _cancelling(now, n, Task("rows", tuple(live)))
            case "rows":
                return self._cancel_row(now, n, task)
            case "again" | "undone" | "end":
                return self._cancel_again(now, n, task)
            case _:  # the row
                stamps = task.read[:1] if self.rules.ended_by_stamp else (1, 2)
                was_cold = now.rows[task.read[0] - 1] == COLD
                for stamp in stamps:
                    if now.rows[stamp - 1] in (COLD, HOT):
                        now = _row(now, stamp, OVER)
                left = () if was_cold else task.read[1:]
                now = _answer(now, 2 + n, "cancelled")
                return _cancelling(now, n, Task("rows", left) if left else None)

    def _cancel_row(self, now: TierState, n: int, task: Task) -> TierState:
        if not task.read:
            return _cancelling(_answer(now, 2 + n, now.answers[2 + n] or "unknown"), n, None)
        stamp = task.read[0]
        if now.has:
            return self._removed(now, n, now.has)
        if stamp in now.undone and (self.rules.refused_left or stamp not in now.refused):
            return _cancelling(now, n, Task("rows", task.read[1:]))
        undone = now.undone | {stamp}
        now = changed(now, undone=undone, refused=now.refused - {stamp})
        return _cancelling(now, n, Task("commit", task.read))

    def _cancel_again(self, now: TierState, n: int, task: Task) -> TierState:
        """Redis says what it said before, but not whose message it was."""
        match task.at:
            case "again":
                live = (stamp for stamp in now.order if now.rows[stamp - 1] in (COLD, HOT))
                return _cancelling(now, n, Task("undone", tuple(live)))
            case "undone":
                ended = now.undone - now.refused - now.met
                own = (each for each in task.read if each in ended or not self.rules.undone_ended)
                return _cancelling(now, n, Task("end", tuple(own)))
            case _:
                for stamp in task.read:
                    if now.rows[stamp - 1] in (COLD, HOT):
                        now = _row(now, stamp, OVER)
                return _cancelling(_answer(now, 2 + n, "cancelled"), n, None)

    def _removed(self, now: TierState, n: int, stamp: Stamp) -> TierState:
        after = changed(now, has=0, undone=now.undone | {stamp})
        return _cancelling(after, n, Task("commit", (stamp,)))

    # in the end

    def broken(self, now: TierState) -> str:
        """The promise that is broken in a state where nobody has anything left to do."""
        tasks = (*now.calls, *now.cancels)
        if any(tasks) or (now.promoter is not None and now.promoter.at != "read"):
            return ""
        cold = [s for s in (1, 2) if now.rows[s - 1] == COLD and s not in now.undone]
        there = {*cold, *([now.has] if now.has else ())}
        created = now.answers[:2].count("created")
        cancelled, undone = now.answers[2:].count("cancelled"), now.answers[:2].count("cancelled")
        if created - cancelled > 0 and not there:
            return "1 an accepted message is lost"
        if len(there) > 1 or created - cancelled > 1:
            return "2 there are two"
        if now.late and there:
            return "3 it was cancelled and is there"
        if now.has and now.rows[now.has - 1] not in (COLD, HOT):
            return "4 its row says that it has ended"
        if self.accepted and 1 in there and cancelled:
            return "5 one was told that it is cancelled, and it is there"
        if cancelled > created + undone:
            return "6 two were told that they cancelled it"
        return ""


def _row(now: TierState, stamp: Stamp, state: str) -> TierState:
    rows = [*now.rows]
    rows[stamp - 1] = state
    return changed(now, rows=(rows[0], rows[1]))


def _warm(now: TierState, task: Task) -> TierState:
    for stamp in task.read:
        if now.rows[stamp - 1] == COLD:
            now = _row(now, stamp, HOT)
    return now


def _doing(now: TierState, n: int, task: Task | None) -> TierState:
    calls = [*now.calls]
    calls[n] = task
    return changed(now, calls=(calls[0], calls[1]))


def _cancelling(now: TierState, n: int, task: Task | None) -> TierState:
    cancels = [*now.cancels]
    cancels[n] = task
    return changed(now, cancels=(cancels[0], cancels[1]))


def _answer(now: TierState, n: int, answer: str) -> TierState:
    first = now.answers[:n]
    return changed(now, answers=(*first, answer, *now.answers[n + 1 :]))


def explore_tiers(model: TierModel, until: int = 0) -> tuple[int, dict[str, TierState]]:
    """How many states there are, and one that breaks each promise.

    until: the number of a promise; once it is broken, the other states are left out.
    """
    first = model.first()
    todo, seen = deque([first]), {first}
    broken: dict[str, TierState] = {}
    while todo:
        now = todo.popleft()
        if what := model.broken(now):
            broken.setdefault(what, now)
            if int(what[0]) == until:
                break
        for after in model.steps(now):
            if after not in seen:
                seen.add(after)
                todo.append(after)
    return len(seen), broken
