"""The ledger's rule as a model of its own: one id, its rows, its bucket, and whoever touches them.

Every order of single steps is tried: of a client that schedules and one that cancels, of the
bucket's owner, who verifies, publishes and tells, of somebody who restores; each may die before
any step, and a restore may be executed late. Redis may be wiped, or come back with an older past.
What a script does is one step; what is read from the ledger and written there are other steps.

Promises:

1. A message that was accepted is delivered in the end, unless it was cancelled.
3. After the answer `cancelled` it is not published, if it was accepted before.
5. A message that left its bucket is not brought back; unless Redis forgot that it left, or the call
   that scheduled it was still under way. If the worker that delivered it lives, it takes its place:
   then it does not come again, whatever Redis forgot.
6. Nobody is told that a message is cancelled which was delivered before; with the same exceptions.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from tests.protocol.ledger_owner import LedgerOwner
from tests.protocol.ledger_rules import LedgerRules
from tests.protocol.ledger_state import (
    CANCELLED,
    LIVE,
    PUBLISHED,
    STAMP,
    Doing,
    LedgerState,
    Step,
    Store,
    changed,
    doing_with,
    with_store,
)


class LedgerModel(LedgerOwner):
    """The steps from a state. faults: wipes, roll-backs and deaths, together."""

    def __init__(
        self,
        rules: LedgerRules,
        *,
        faults: int,
        restores: int,
        seals: int,
        goes_back: bool = False,
        silences: int = 0,
        moves: int = 0,
        cancels: bool = True,
    ) -> None:
        """goes_back: a roll-back instead of a wipe. silences: of the ledger. moves: of the bucket.

        cancels: whether somebody cancels the message.
        """
        self.first = LedgerState() if cancels else LedgerState(cancelling=None)
        self.rules, self.faults, self.restores, self.seals = rules, faults, restores, seals
        self.goes_back, self.silences, self.moves = goes_back, silences, moves

    def steps(self, now: LedgerState) -> Iterator[Step]:
        parts = (self._schedule, self._cancel, self._own, self._move, self._restore, self._fail)
        for part in parts:
            yield from part(now)

    # clients

    def _schedule(self, now: LedgerState) -> Iterator[Step]:
        doing = now.scheduling
        if doing is None:
            return
        if now.silent and doing.at != "redis":
            return
        if doing.at == "row":
            after = changed(now, scheduling=Doing("redis"))
            if self.rules.row_first:
                after = changed(after, row=LIVE)
            yield "schedule: the row", after
        elif doing.at == "redis":
            store = now.store
            if STAMP not in store.undone and store.has is None:
                store = with_store(store, has=STAMP)
            told = now.answered | {"created"}
            at = None if self.rules.row_first else Doing("late row")
            yield "schedule: Redis", changed(now, store=store, scheduling=at, answered=told)
        else:
            yield "schedule: the row, late", changed(now, row=now.row or LIVE, scheduling=None)

    def _cancel(self, now: LedgerState) -> Iterator[Step]:
        doing = now.cancelling
        if doing is None or now.scheduling is not None:
            return  # what is cancelled was accepted, or its caller is dead
        if now.silent and doing.at in ("look", "commit"):
            return
        if doing.at == "redis":
            if now.store.has is None:
                yield "cancel: unknown", changed(now, cancelling=Doing("look"))
                return
            store = self._leave(now.store)
            store = with_store(store, undone=store.undone | {STAMP})
            commit = Doing("commit", healed=store.healed)
            after = changed(now, store=store, cancelling=commit)
            if not self.rules.answer_last:
                after = self._told_cancelled(after)
            yield "cancel: Redis", after
        elif doing.at == "look":
            at = Doing("withdraw") if now.row == LIVE else None
            yield "cancel: the ledger", changed(now, cancelling=at)
        elif doing.at == "withdraw":
            yield "cancel: what Redis lacks", self._withdraw(now)
        else:
            yield from self._commit_cancel(now, doing)

    def _commit_cancel(self, now: LedgerState, doing: Doing) -> Iterator[Step]:
        if doing.at == "commit":
            if doing.rows and now.row == PUBLISHED and self.rules.row_checked:
                yield "cancel: it has left", changed(now, cancelling=None)
                return
            row = CANCELLED if now.row == LIVE else now.row
            after = changed(now, row=row, cancelling=doing_with(doing, at="confirm"))
            if not self.rules.confirmed:
                after = self._told_cancelled(changed(after, cancelling=None))
            yield "cancel: the row", after
            return
        if now.store.healed != doing.healed:
            yield "cancel: call again", changed(now, cancelling=None)
            return
        yield "cancel: no comparison began", self._told_cancelled(changed(now, cancelling=None))

    def _withdraw(self, now: LedgerState) -> LedgerState:
        store = now.store
        if store.has is None and any(stamp == STAMP for stamp, _ in store.gone):
            return changed(now, cancelling=None)  # it left: unknown
        store = self._leave(store)
        store = with_store(store, undone=store.undone | {STAMP})
        commit = Doing("commit", healed=store.healed, rows=(STAMP,))
        return changed(now, store=store, cancelling=commit)

    def _told_cancelled(self, now: LedgerState) -> LedgerState:
        violated = now.violated
        if now.delivered and now.was_answered and not now.forgot:
            violated = violated or "6 a delivered message was cancelled"
        return changed(now, answered=now.answered | {"cancelled"}, violated=violated)

    # somebody who restores

    def _restore(self, now: LedgerState) -> Iterator[Step]:
        doing = now.restoring
        if doing is None:
            if now.restores < self.restores:
                begun = Doing("read", now.store.generation, now.store.healed)
                yield "restore: begin", changed(now, restoring=begun, restores=now.restores + 1)
        elif doing.at == "read":
            if now.silent:
                return
            rows = (STAMP,) if now.row == LIVE else ()
            bring = doing_with(doing, at="bring", rows=rows)
            yield "restore: the ledger", changed(now, restoring=bring)
        else:
            store, _ = self._restored(now.store, doing)
            yield "restore: Redis", changed(now, store=store, restoring=None)

    # faults

    def _fail(self, now: LedgerState) -> Iterator[Step]:
        if now.silent:
            yield "the ledger answers", changed(now, silent=False)
        elif now.silences < self.silences:
            silent = changed(now, silent=True, was_silent=True, silences=now.silences + 1)
            yield "the ledger is silent", silent
        if now.snapshot is None and self.goes_back:
            yield "Redis: a snapshot", changed(now, snapshot=now.store)
        if now.faults >= self.faults:
            return
        fault = changed(now, faults=now.faults + 1)
        if now.scheduling is not None:
            yield "the scheduling client dies", changed(fault, scheduling=None)
        if now.cancelling is not None:
            yield "the cancelling client dies", changed(fault, cancelling=None)
        yield from self._die(fault)
        if not self.goes_back:
            yield (
                "Redis: wiped",
                changed(fault, store=Store(), forgot=True, owner=None, session=-1, known=-1),
            )
        if now.snapshot is not None:
            back = changed(fault, store=now.snapshot, run=now.run + 1, forgot=True)
            yield "Redis: an older past", back

    def _die(self, fault: LedgerState) -> Iterator[Step]:
        """A worker dies, and with it what it remembers."""
        left = fault.memories - {fault.holder}
        forgetting = changed(fault, is_lost=fault.is_lost or fault.holder in fault.memories)
        yield (
            "the owner dies",
            changed(forgetting, memories=left, owner=None, session=-1, known=-1),
        )
        if left:
            yield (
                "the other worker dies",
                changed(fault, memories=fault.memories - left, is_lost=True),
            )

    # in the end

    def ends_well(self, now: LedgerState) -> bool:
        """Whether a message that was accepted is delivered, or cancelled, if no fault comes."""
        if "created" not in now.answered:
            return True
        now = changed(
            now, scheduling=None, cancelling=None, restoring=None, owner=None, session=-1,
            known=-1, snapshot=now.store, seals=-1000, store=with_store(now.store, healed=-1),
            faults=self.faults, restores=self.restores, silent=False, memories=frozenset(),
        )  # fmt: skip
        for _ in range(40):
            steps = [step for step in self._own(now) if "seal" not in step[0]]
            if not steps:
                break
            now = steps[-1][1]
        return bool(now.delivered) or now.row == CANCELLED or STAMP in now.store.undone


def explore_ledger(model: LedgerModel, until: int = 0) -> tuple[int, dict[str, list[str]]]:
    """How many states there are, and the shortest way to each violation.

    until: the number of a promise; once it is broken, the other states are left out.
    """
    first = model.first
    ways: dict[LedgerState, tuple[LedgerState | None, str]] = {first: (None, "")}
    violated: dict[str, list[str]] = {}
    todo = deque([first])
    while todo:
        now = todo.popleft()
        what = now.violated or ("" if model.ends_well(now) else "1 an accepted message is lost")
        if what:
            violated.setdefault(what, _way(ways, now))
            if int(what[0]) == until:
                break
            continue
        for label, after in model.steps(now):
            if after not in ways:
                ways[after] = now, label
                todo.append(after)
    return len(ways), violated


def _way(ways: dict[LedgerState, tuple[LedgerState | None, str]], at: LedgerState) -> list[str]:
    labels: list[str] = []
    here: LedgerState | None = at
    while here is not None:
        here, label = ways[here]
        labels.append(label)
    return [label for label in reversed(labels) if label]
