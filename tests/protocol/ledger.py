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
from collections.abc import Callable, Iterator
from typing import NamedTuple

from tests.protocol.ledger_rules import LedgerRules

Stamp = int
LIVE, PUBLISHED, CANCELLED = "live", "published", "cancelled"


class Store(NamedTuple):
    """The bucket. has: the stamp of the message, if it is there. gone: (stamp, generation)."""

    has: Stamp | None = None
    gone: frozenset[tuple[Stamp, int]] = frozenset()
    undone: frozenset[Stamp] = frozenset()  # cancelled calls, as `calls` has them
    generation: int = 0
    healed: int = -1  # the run under which it was compared, and which comparison; -1: never


class Doing(NamedTuple):
    """What somebody is in the middle of. at: its next step; the rest: what it knows."""

    at: str
    generation: int = 0
    healed: int = -1
    rows: tuple[Stamp, ...] = ()
    run: int = -1  # of the server, when its owner began


class LedgerState(NamedTuple):
    """Everything. run: of the server. session: that under which its owner may publish, or -1.

    known: the last generation that the owner knows the ledger to have. answered: to both clients.
    delivered: how often; forgot: Redis went back, so a message may come twice, unless the worker
    that delivered it remembers.
    """

    store: Store = Store()
    snapshot: Store | None = None
    run: int = 0
    row: str = ""
    scheduling: Doing | None = Doing("row")
    cancelling: Doing | None = Doing("redis")
    owner: Doing | None = None
    session: int = -1
    known: int = -1
    restoring: Doing | None = None
    answered: frozenset[str] = frozenset()
    delivered: int = 0
    forgot: bool = False
    faults: int = 0
    restores: int = 0
    seals: int = 0
    comparisons: int = 0
    violated: str = ""
    was_answered: bool = False  # the schedule, when the message was delivered first
    remembers: bool = False


changed, with_store, doing_with = LedgerState._replace, Store._replace, Doing._replace
STAMP = 1
_COMPARISONS = 100  # more than there are
Step = tuple[str, LedgerState]


class LedgerModel:
    """The steps from a state. faults: wipes, roll-backs and deaths, together."""

    def __init__(
        self, rules: LedgerRules, *, faults: int, restores: int, seals: int, goes_back: bool = False
    ) -> None:
        """goes_back: a roll-back instead of a wipe."""
        self.rules, self.faults, self.restores, self.seals = rules, faults, restores, seals
        self.goes_back = goes_back

    def steps(self, now: LedgerState) -> Iterator[Step]:
        for part in (self._schedule, self._cancel, self._own, self._restore, self._fail):
            yield from part(now)

    # clients

    def _schedule(self, now: LedgerState) -> Iterator[Step]:
        doing = now.scheduling
        if doing is None:
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

    def _leave(self, store: Store) -> Store:
        gone = store.gone
        if self.rules.gone and store.generation:
            gone = gone | {(STAMP, store.generation)}
        return with_store(store, has=None, gone=gone)

    # the owner

    def _own(self, now: LedgerState) -> Iterator[Step]:
        doing = now.owner
        if doing is None:
            if now.session < 0:
                begun = Doing("verify", run=now.run)
                yield "owner: a session", changed(now, owner=begun, known=-1)
                return
            if now.seals < self.seals:
                yield "owner: seal", self._seal(now, "tell")
            yield from self._publish(now)
            return
        act: Callable[[LedgerState, Doing], LedgerState] = getattr(self, f"_{doing.at}")
        yield f"owner: {doing.at}", act(now, doing)

    def _publish(self, now: LedgerState) -> Iterator[Step]:
        if now.store.has is None:
            return
        if self.rules.server_checked and now.session != now.run:
            yield "owner: another server", changed(now, session=-1)
            return
        violated = now.violated
        if "cancelled" in now.answered:
            violated = violated or "3 published after the answer cancelled"
        is_known = not now.forgot or now.remembers
        if now.delivered and is_known and now.scheduling is None and now.was_answered:
            violated = violated or "5 a message that left was brought back"
        store = self._leave(now.store)
        yield (
            "owner: publish",
            changed(
                now,
                store=store,
                delivered=min(now.delivered + 1, 2),
                remembers=True,
                violated=violated,
                was_answered=now.was_answered if now.delivered else "created" in now.answered,
            ),
        )

    def _seal(self, now: LedgerState, then: str) -> LedgerState:
        store = now.store
        if now.known >= store.generation:
            return changed(now, session=-1, owner=None)  # the store lost writes
        last = now.known if self.rules.kept_longer else now.known + 1
        gone = frozenset(each for each in store.gone if each[1] >= last)
        sealed = with_store(store, gone=gone, generation=store.generation + 1)
        run = now.run if now.owner is None else now.owner.run
        doing = Doing(then, store.generation, run=run)
        return changed(now, store=sealed, owner=doing, seals=now.seals + 1)

    def _verify(self, now: LedgerState, doing: Doing) -> LedgerState:
        if not self.rules.verified or now.store.healed // _COMPARISONS == doing.run:
            return changed(now, owner=None, session=doing.run)
        return changed(now, owner=doing_with(doing, at="hand_over"))

    def _hand_over(self, now: LedgerState, doing: Doing) -> LedgerState:
        after = changed(now, owner=doing_with(doing, at="begin"))
        return self._handed_over(after) if self.rules.remembered_first else after

    def _handed_over(self, now: LedgerState) -> LedgerState:
        is_new = self.rules.remembered and now.remembers and now.row == LIVE
        return changed(now, row=PUBLISHED) if is_new else now

    def _begin(self, now: LedgerState, doing: Doing) -> LedgerState:
        if self.rules.begun_named:
            begun = now.comparisons + 1
            now = changed(now, store=with_store(now.store, healed=-1 - begun), comparisons=begun)
        return self._seal(now, "tell_first")

    def _tell(self, now: LedgerState, doing: Doing) -> LedgerState:
        return changed(self._told(now, doing), owner=None)

    def _tell_first(self, now: LedgerState, doing: Doing) -> LedgerState:
        now = now if self.rules.remembered_first else self._handed_over(now)
        return changed(self._told(now, doing), owner=doing_with(doing, at="compare"))

    def _told(self, now: LedgerState, doing: Doing) -> LedgerState:
        row = now.row
        left = [g for stamp, g in now.store.gone if stamp == STAMP and g <= doing.generation]
        if left and row == LIVE:
            row = CANCELLED if STAMP in now.store.undone else PUBLISHED
        return changed(now, row=row, known=doing.generation)

    def _compare(self, now: LedgerState, doing: Doing) -> LedgerState:
        """Drop what has ended; then what is missing is looked for."""
        store = now.store
        if store.has is not None and now.row in (PUBLISHED, CANCELLED):
            store = with_store(store, has=None)
        return changed(now, store=store, owner=doing_with(doing, at="stand"))

    def _stand(self, now: LedgerState, doing: Doing) -> LedgerState:
        begun = Doing("read", now.store.generation, now.store.healed, run=doing.run)
        return changed(now, owner=begun)

    def _read(self, now: LedgerState, doing: Doing) -> LedgerState:
        rows = (STAMP,) if now.row == LIVE else ()
        return changed(now, owner=doing_with(doing, at="bring", rows=rows))

    def _bring(self, now: LedgerState, doing: Doing) -> LedgerState:
        store, is_void = self._restored(now.store, doing)
        return changed(
            now, store=store, owner=doing_with(doing, at="stand" if is_void else "heal", rows=())
        )

    def _heal(self, now: LedgerState, doing: Doing) -> LedgerState:
        if now.known >= now.store.generation:
            return changed(now, session=-1, owner=None)
        # The run that it read when it began: if that is over, the first answer to a fire says so.
        healed = doing.run * _COMPARISONS + (now.comparisons if self.rules.each_named else 0)
        store = with_store(now.store, healed=healed, generation=now.store.generation + 1)
        return changed(now, store=store, owner=None, session=doing.run)

    # somebody who restores

    def _restore(self, now: LedgerState) -> Iterator[Step]:
        doing = now.restoring
        if doing is None:
            if now.restores < self.restores:
                begun = Doing("read", now.store.generation, now.store.healed)
                yield "restore: begin", changed(now, restoring=begun, restores=now.restores + 1)
        elif doing.at == "read":
            rows = (STAMP,) if now.row == LIVE else ()
            bring = doing_with(doing, at="bring", rows=rows)
            yield "restore: the ledger", changed(now, restoring=bring)
        else:
            store, _ = self._restored(now.store, doing)
            yield "restore: Redis", changed(now, store=store, restoring=None)

    def _restored(self, store: Store, doing: Doing) -> tuple[Store, bool]:
        """The bucket after a restore, and whether it was void."""
        passed = store.generation - doing.generation
        if self.rules.generations and not 0 <= passed <= 1:
            return store, True
        if self.rules.healed_named and store.healed != doing.healed:
            return store, True
        has_left = any(stamp == STAMP for stamp, _ in store.gone) or STAMP in store.undone
        if doing.rows and store.has is None and not has_left:
            store = with_store(store, has=STAMP)
        return store, False

    # faults

    def _fail(self, now: LedgerState) -> Iterator[Step]:
        if now.snapshot is None and self.goes_back:
            yield "Redis: a snapshot", changed(now, snapshot=now.store)
        if now.faults >= self.faults:
            return
        fault = changed(now, faults=now.faults + 1)
        if now.scheduling is not None:
            yield "the scheduling client dies", changed(fault, scheduling=None)
        if now.cancelling is not None:
            yield "the cancelling client dies", changed(fault, cancelling=None)
        yield "the owner dies", changed(fault, owner=None, session=-1, known=-1, remembers=False)
        if not self.goes_back:
            yield (
                "Redis: wiped",
                changed(fault, store=Store(), forgot=True, owner=None, session=-1, known=-1),
            )
        if now.snapshot is not None:
            back = changed(fault, store=now.snapshot, run=now.run + 1, forgot=True)
            yield "Redis: an older past", back

    # in the end

    def ends_well(self, now: LedgerState) -> bool:
        """Whether a message that was accepted is delivered, or cancelled, if no fault comes."""
        if "created" not in now.answered:
            return True
        now = changed(
            now, scheduling=None, cancelling=None, restoring=None, owner=None, session=-1,
            known=-1, snapshot=now.store, seals=-1000, store=with_store(now.store, healed=-1),
            faults=self.faults, restores=self.restores,
        )  # fmt: skip
        for _ in range(40):
            steps = [step for step in self._own(now) if "seal" not in step[0]]
            if not steps:
                break
            now = steps[-1][1]
        return bool(now.delivered) or now.row == CANCELLED or STAMP in now.store.undone


def explore_ledger(model: LedgerModel) -> tuple[int, dict[str, list[str]]]:
    """How many states there are, and the shortest way to each violation."""
    first = LedgerState()
    ways: dict[LedgerState, tuple[LedgerState | None, str]] = {first: (None, "")}
    violated: dict[str, list[str]] = {}
    todo = deque([first])
    while todo:
        now = todo.popleft()
        what = now.violated or ("" if model.ends_well(now) else "1 an accepted message is lost")
        if what:
            violated.setdefault(what, _way(ways, now))
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
