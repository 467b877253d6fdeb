"""How copies end: published, and their end told; or parked, or put back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from tests.protocol.bucket import NEVER
from tests.protocol.calls import Copy
from tests.protocol.sender import Arrives, Sender, added, removed
from tests.protocol.step import Step
from tests.protocol.world import World


class Endings(Sender):
    """The part of a worker that begins when the store has allowed a publish."""

    # the broker

    def publishes(self) -> Iterator[Step]:
        left = self.state.left
        for copy in dict.fromkeys(self.me.out):
            if copy.score // 2 > self.state.clock:
                continue
            what = f"{self.name} publishes {'xy'[copy.id]}, due {copy.score / 2:g}"
            yield Step(f"{what}: confirmed", "publish", self._ended(copy, "confirmed"), True)
            if left.unknown:
                yield Step(f"{what}: unknown, arrived", "fault", self._ended(copy, "arrived"))
                yield Step(f"{what}: unknown, gone", "fault", self._ended(copy, "gone"))
            if left.refused:
                yield Step(f"{what}: refused", "refused", self._ended(copy, "refused"))

    def _ended(self, copy: Copy, how: str) -> Callable[[World], None]:
        def ended(world: World) -> None:
            me = world.workers[self.i]
            if how != "refused":
                world.witness.publishes(copy, world.clock, spans=self.me.node != world.node)
            if how in ("confirmed", "arrived"):
                world.witness.arrived(copy, self._excuses(world), confirmed=how == "confirmed")
            world.change(self.i, out=removed(me.out, copy))
            if how == "confirmed":
                world.change(self.i, confirmed=added(me.confirmed, copy))
            else:
                world.spend("refused" if how == "refused" else "unknown")
                failed = added(me.failed, (copy, how != "refused"))
                world.change(self.i, failed=failed)

        return ended

    def offers(self) -> Iterator[Step]:
        """To the consumers of a pull topic."""
        for copy in dict.fromkeys(self.me.out):
            call = self.call("offer", copies=(copy,))
            yield from self.sends(f"offers {'xy'[copy.id]}", call, self._told("out", copy))

    def _excuses(self, world: World) -> int:
        """How many duplicates the faults so far explain."""
        had, left = self.bounds.faults, world.left
        if world.node:  # it may have been settled at a master whose writes are lost
            return NEVER
        if self.bounds.once:
            return 0
        used = (getattr(had, f) - getattr(left, f) for f in ("crash", "pause", "unknown", "vanish"))
        return sum(used)

    def once(self, may_call: bool) -> Iterator[Step]:
        """At most once: settle, and publish what that allows."""
        for copy in dict.fromkeys(self.me.out) if may_call else ():
            call = self.call("settle_once", copies=(copy,))
            yield from self.sends(f"settles {'xy'[copy.id]} once", call, self._settled(copy))
        for copy in dict.fromkeys(self.me.confirmed):
            if copy.score // 2 <= self.state.clock:
                what = f"{self.name} publishes {'xy'[copy.id]}, due {copy.score / 2:g}"
                yield Step(what, "publish", self._goes_once(copy), True)

    def _settled(self, copy: Copy) -> Arrives:
        def settled(world: World, ids: frozenset[int]) -> None:
            me = world.workers[self.i]
            world.change(self.i, out=removed(me.out, copy))
            if copy.id in ids:
                world.change(self.i, confirmed=added(me.confirmed, copy))

        return settled

    def _goes_once(self, copy: Copy) -> Callable[[World], None]:
        def goes(world: World) -> None:
            world.witness.publishes(copy, world.clock, spans=self.me.node != world.node)
            world.witness.arrived(copy, self._excuses(world), confirmed=True)
            world.change(self.i, confirmed=removed(world.workers[self.i].confirmed, copy))

        return goes

    # ends

    def tells(self) -> Iterator[Step]:
        me = self.me
        for copy in dict.fromkeys(() if self.bounds.once else me.confirmed):
            call = self.call("settle", copies=(copy,))
            yield from self.sends(f"settles {'xy'[copy.id]}", call, self._told("confirmed", copy))
        for copy, maybe in dict.fromkeys(me.failed):
            delay = min(1, self.bounds.ends - self.state.clock)
            told = self._told("failed", (copy, maybe), due=self.state.clock + delay)
            call = self.call("retry", copies=(copy,), delay=delay, maybe=maybe)
            yield from self.sends(f"retries {'xy'[copy.id]}", call, told)
            if self.bounds.buries:
                call = self.call("bury", copies=(copy,), maybe=maybe)
                told = self._told("failed", (copy, maybe))
                yield from self.sends(f"buries {'xy'[copy.id]}", call, told)

    def _told(self, where: str, what: Any, due: int = NEVER) -> Arrives:
        """The store has the end of a copy. due: when it is due again."""

        def told(world: World, _: Any) -> None:
            me = world.workers[self.i]
            left = removed(getattr(me, where), what)
            world.change(self.i, look=min(me.look, due), **{where: left})

        return told

    def puts_aside(self) -> Iterator[Step]:
        """Copies leave the wheel unpublished; not while a fire is under way that may cover them."""
        me, bounds = self.me, self.bounds
        for copy, verb in me.aside:
            told = self._told("aside", (copy, verb), due=copy.score // 2)
            call = self.call(verb, copies=(copy,))
            yield from self.sends(f"tells again: {verb} {'xy'[copy.id]}", call, told)
        if me.firing is not None and self.rules.exits_first:
            return
        verbs = ["park"] * bounds.parks + ["retry"] * (bounds.graceful and me.claimed is None)
        for copy in dict.fromkeys(me.wheel):
            for verb in verbs:
                told = self._told("wheel", copy, due=copy.score // 2)
                what = f"{'parks' if verb == 'park' else 'puts back'} {'xy'[copy.id]}"
                call = self.call(verb, copies=(copy,))
                yield from self.sends(what, call, told, self._not_told(copy, verb))

    def _not_told(self, copy: Copy, verb: str) -> Arrives:
        def not_told(world: World, _: None) -> None:
            me = world.workers[self.i]
            wheel, aside = removed(me.wheel, copy), added(me.aside, (copy, verb))
            world.change(self.i, wheel=wheel, aside=aside)

        return not_told
