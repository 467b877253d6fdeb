"""The owner's part of the ledger's model: verify, publish, seal, tell, rebuild."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tests.protocol.ledger_rules import LedgerRules
from tests.protocol.ledger_state import (
    CANCELLED,
    COMPARISONS,
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

# What an owner asks the ledger.
_ASKING = ("hand_over", "tell", "tell_first", "compare", "read")


class LedgerOwner:
    """Its steps, those of the worker that had the bucket before, and what a script does."""

    rules: LedgerRules
    seals: int
    moves: int

    # the owner

    def _own(self, now: LedgerState) -> Iterator[Step]:
        doing = now.owner
        if doing is None:
            if now.session < 0:
                begun = Doing("verify", run=now.run)
                yield "owner: a session", changed(now, owner=begun, known=-1)
                return
            if now.seals < self.seals:
                yield "owner: seal", self._seal_again(now)
            yield from self._publish(now)
            return
        if now.silent and doing.at in _ASKING:
            return
        if doing.at == "begin" and self._awaits(now):
            return
        act: Callable[[LedgerState, Doing], LedgerState] = getattr(self, f"_{doing.at}")
        yield f"owner: {doing.at}", act(now, doing)

    def _awaits(self, now: LedgerState) -> bool:
        """Others have something to tell after a silence: it waits as long as they need."""
        is_owed = self.rules.others_tell and bool(now.memories - {now.holder})
        return is_owed and now.was_silent and self.rules.others_awaited

    def _move(self, now: LedgerState) -> Iterator[Step]:
        """Another worker takes the bucket. Who does not hold it tells what it remembers."""
        if now.moves < self.moves:
            taken = changed(now, holder=1 - now.holder, moves=now.moves + 1)
            yield "another worker takes it", changed(taken, owner=None, session=-1, known=-1)
        other = 1 - now.holder
        if other in now.memories and self.rules.others_tell and not now.silent:
            yield "the other worker tells", self._handed_over(now, other)

    def _publish(self, now: LedgerState) -> Iterator[Step]:
        if now.store.has is None:
            return
        if self.rules.server_checked and now.session != now.run:
            yield "owner: another server", changed(now, session=-1)
            return
        violated = now.violated
        if "cancelled" in now.answered:
            violated = violated or "3 published after the answer cancelled"
        is_known = not now.forgot or not (now.is_lost or now.is_early)
        if now.delivered and is_known and now.scheduling is None and now.was_answered:
            violated = violated or "5 a message that left was brought back"
        store = self._leave(now.store)
        yield (
            "owner: publish",
            changed(
                now,
                store=store,
                delivered=min(now.delivered + 1, 2),
                memories=now.memories | {now.holder},
                violated=violated,
                was_answered=now.was_answered if now.delivered else "created" in now.answered,
            ),
        )

    def _seal_again(self, now: LedgerState) -> LedgerState:
        sealed = self._seal(now, "tell")
        if self.rules.told_by_server and now.session != now.run:
            return changed(sealed, session=-1, owner=None)
        return sealed

    def _seal(self, now: LedgerState, then: str) -> LedgerState:
        store = now.store
        if now.known >= store.generation:
            return changed(now, session=-1, owner=None)  # the store lost writes
        last = now.known if self.rules.kept_longer else now.known + 1
        gone = frozenset(each for each in store.gone if each[1] >= last)
        sealed = with_store(store, gone=gone, generation=store.generation + 1)
        if not self.rules.kept_until_told:
            now = changed(now, memories=now.memories - {now.holder})
        run = now.run if now.owner is None else now.owner.run
        doing = Doing(then, store.generation, run=run)
        return changed(now, store=sealed, owner=doing, seals=now.seals + 1)

    def _verify(self, now: LedgerState, doing: Doing) -> LedgerState:
        if not self.rules.verified or now.store.healed // COMPARISONS == doing.run:
            return changed(now, owner=None, session=doing.run)
        return changed(now, owner=doing_with(doing, at="hand_over"))

    def _hand_over(self, now: LedgerState, doing: Doing) -> LedgerState:
        after = changed(now, owner=doing_with(doing, at="begin"))
        return self._handed_over(after, now.holder) if self.rules.remembered_first else after

    def _handed_over(self, now: LedgerState, worker: int) -> LedgerState:
        is_new = self.rules.remembered and worker in now.memories and now.row == LIVE
        row = PUBLISHED if is_new else now.row
        return changed(now, row=row, memories=now.memories - {worker})

    def _begin(self, now: LedgerState, doing: Doing) -> LedgerState:
        if now.memories - {now.holder} and not now.was_silent:
            now = changed(now, is_early=True)
        if self.rules.begun_named:
            begun = now.comparisons + 1
            now = changed(now, store=with_store(now.store, healed=-1 - begun), comparisons=begun)
        return self._seal(now, "tell_first")

    def _tell(self, now: LedgerState, doing: Doing) -> LedgerState:
        return changed(self._told(now, doing), owner=None)

    def _tell_first(self, now: LedgerState, doing: Doing) -> LedgerState:
        now = now if self.rules.remembered_first else self._handed_over(now, now.holder)
        return changed(self._told(now, doing), owner=doing_with(doing, at="compare"))

    def _told(self, now: LedgerState, doing: Doing) -> LedgerState:
        if self.rules.standing_checked and now.store.generation != doing.generation + 1:
            return changed(now, known=doing.generation)  # Redis has forgotten it
        row = now.row
        left = [g for stamp, g in now.store.gone if stamp == STAMP and g <= doing.generation]
        if left and row == LIVE:
            row = CANCELLED if STAMP in now.store.undone else PUBLISHED
        memories = now.memories - {now.holder}
        return changed(now, row=row, known=doing.generation, memories=memories)

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
        healed = doing.run * COMPARISONS + (now.comparisons if self.rules.each_named else 0)
        store = with_store(now.store, healed=healed, generation=now.store.generation + 1)
        return changed(now, store=store, owner=None, session=doing.run)

    # the store

    def _leave(self, store: Store) -> Store:
        gone = store.gone
        if self.rules.gone and store.generation:
            gone = gone | {(STAMP, store.generation)}
        return with_store(store, has=None, gone=gone)

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
