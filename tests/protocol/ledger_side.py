"""What the ledger's side of a worker, and somebody who restores, may do next."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from tests.protocol.bounds import Bounds
from tests.protocol.calls import ClientCall, Target
from tests.protocol.ledger_verbs import PLACES, Sealed
from tests.protocol.rows import Row
from tests.protocol.sender import Arrives, Sender
from tests.protocol.step import Step
from tests.protocol.world import State, World


class LedgerSide(Sender):
    """The part of a worker that keeps its bucket and the ledger in agreement."""

    def verifies(self) -> Iterator[Step]:
        """Before it claims anything. What left is told in the same step, or later."""
        name = self.state.rows.comparisons + 1
        call = self.call("seal", healed=name)
        yield from self.sends("begins to compare", call, self._sealed(name=name))

    def seals(self) -> Iterator[Step]:
        known = self.me.known
        call = self.call("seal", known=known)
        yield from self.sends("seals, and tells it", call, self._sealed())
        yield from self.sends("seals", call, self._sealed(is_told=False))

    def _sealed(self, *, name: int = 0, is_told: bool = True) -> Arrives:
        def sealed(world: World, answer: Sealed) -> None:
            rows = world.rows._replace(comparisons=max(world.rows.comparisons, name))
            known = world.workers[self.i].known
            if is_told:
                rows, known = rows.told(world.bucket, answer.generation), answer.generation
            world.rows = rows
            world.change(self.i, known=known, is_verified=True)

        return sealed

    def drops(self) -> Iterator[Step]:
        """What has ended by the ledger, before it claims anything."""
        me, content = self.me, self.state.content
        if content.claimed != me.token[1] or me.claimed or me.wheel:
            return
        ended = tuple(
            (row.id, row.stamp)
            for row in self.state.rows.rows
            if not row.is_live and content.mirror[row.id] is None
        )
        if ended:
            yield from self.sends("drops what has ended", self.call("drop", ended=ended), _nothing)


def _nothing(world: World, answer: object) -> None:
    return None


def others(state: State, bounds: Bounds) -> Iterator[Step]:
    """Somebody reads and restores, counts, or cancels what only the ledger has."""
    if not bounds.ledger:
        return
    rows = state.rows
    if rows.rows:
        yield Step("somebody reads the ledger", "reads the ledger", _read)
    for reading in dict.fromkeys(rows.readings):
        call = ClientCall("restore", (), reading=reading)
        yield Step("somebody restores", "restore", partial(_execute, call=call))
        looked = tuple(row._replace(brought=False) for row in reading.rows)
        call = call._replace(reading=reading._replace(rows=looked))
        yield Step("somebody looks what is missing", "look", partial(_execute, call=call))
    for row in rows.rows:
        if row.is_refused:
            yield Step("a refused row is withdrawn", "withdrawn", partial(_withdrawn, row=row))
        if row.is_live and state.calls < bounds.calls and state.content.messages[row.id] is None:
            yield Step("somebody cancels a row", "row", partial(_cancel, row=row))
    for place in PLACES:
        yield Step("somebody counts", "tally", partial(_execute, call=_tally(place)))


def _tally(place: str) -> ClientCall:
    return ClientCall("tally", (), place)


def _execute(world: World, call: ClientCall) -> None:
    world.execute(call)


def _read(world: World) -> None:
    world.rows = world.rows.read(world.bucket)


def _withdrawn(world: World, row: Row) -> None:
    world.rows = world.rows.without(row.stamp)


def _cancel(world: World, row: Row) -> None:
    world.calls += 1
    (stamp,) = world.stamps(1)
    world.execute(ClientCall("cancel", (Target(row.id, 0, stamp),), row=row.stamp))
