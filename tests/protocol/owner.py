"""What a worker may do next: the owner's part of the protocol, step by step."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.protocol.bucket import NEVER
from tests.protocol.calls import Copy, OwnerCall
from tests.protocol.endings import Endings
from tests.protocol.ledger_side import LedgerSide
from tests.protocol.owner_verbs import Claimed, Counted, Fired
from tests.protocol.sender import Arrives, added
from tests.protocol.step import Step
from tests.protocol.world import Firing, World


class Owner(Endings, LedgerSide):
    """One worker in one state: its possible steps."""

    def steps(self) -> Iterator[Step]:
        me, left = self.me, self.state.left
        if me.token[1] == 0:
            if self.state.content.lease is None:
                yield from self._takes()
            return
        if left.crash:
            yield Step(f"{self.name} crashes", "fault", self._crashes)
        if not self.owns:
            yield from self._stale()
        if self.rules.retakes and me.node != self.state.node:
            yield Step(f"{self.name} is answered by another node", "learns", self.retakes, True)
        may_call = self.owns or self.bounds.stale
        if may_call and me.mending:
            yield from self._mends()
        if may_call and not me.ready:
            if not me.mending:
                yield from self._reclaims()
            return
        if may_call and not me.mending and self.bounds.ledger:
            yield from self.seals() if me.is_verified else self.verifies()
            yield from self.drops()
        if self.bounds.ledger and not me.is_verified:
            return
        if may_call and not me.mending and self.bounds.faults.vanish and self.rules.compares:
            yield from self._compares()
        if may_call and me.claimed is None and self._wants():
            yield from self._claims()
        if me.claimed is not None:
            yield Step(f"{self.name} reads the claim's reply", "reads", self._claim_arrives, True)
        if may_call and me.firing is None and not me.aside:
            yield from self._fires()
        if me.firing is not None:
            yield Step(f"{self.name} reads the fire's reply", "reads", self._fire_arrives, True)
        if not self.bounds.pulls:
            yield from self.once(may_call) if self.bounds.once else self.publishes()
        elif may_call:
            yield from self.offers()
        if may_call:
            yield from self.tells()
            yield from self.puts_aside()
            yield from self._releases()
            yield from self._unparks()
            yield from self._renews()

    # the session

    def _takes(self) -> Iterator[Step]:
        for window in self.bounds.windows:
            yield from self._takes_it(window)

    def _takes_it(self, window: int) -> Iterator[Step]:
        owner = self.state.owners + 1 if self.rules.new_token else self.me.token[0]
        have = self.rules.have

        def taken(world: World, token: tuple[int, int]) -> None:
            world.owners = max(world.owners, owner)
            world.change(self.i, token=token, have=token[1] if have else 0, node=world.node)

        call = OwnerCall("acquire", (owner, 0), window=window)
        what = f"takes the lease, window {window}" if window else "takes the lease"
        yield from self.sends(what, call, taken, self._drew(owner))

    def _drew(self, owner: int) -> Arrives:
        def drew(world: World, _: None) -> None:
            world.owners = max(world.owners, owner)

        return drew

    def _crashes(self, world: World) -> None:
        world.spend("crash")
        world.drop(self.i)
        if not self.rules.drops:
            world.change(self.i, wheel=())

    def _stale(self) -> Iterator[Step]:
        def takes_again(world: World) -> None:
            turn = self.me.token[1] if self.rules.new_token else world.bucket.next_turn()
            world.bucket.lease = self.me.token[0], turn
            world.change(self.i, token=world.bucket.lease)

        def learns(world: World) -> None:
            if world.journal is not None:
                world.execute(self.call("renew", have=self.me.have))
            world.drop(self.i)

        if not self.rules.never_created and self.state.content.lease is None:
            yield Step(f"{self.name} renews, which takes the lease", "renew", takes_again, True)
        else:
            yield Step(f"{self.name} learns that its lease is lost", "learns", learns, True)

    def _reclaims(self) -> Iterator[Step]:
        def answered(world: World, answer: tuple[int, int, int]) -> None:
            ready = answer[0] == 0 or not self.rules.reclaims_all
            mending = ready and self.bounds.faults.vanish > 0 and self.rules.compares
            world.change(self.i, ready=ready and not mending, mending=mending, look=self._at_once)

        yield from self.sends("reclaims", self.call("reclaim"), answered)

    # a key that vanished

    def _compares(self) -> Iterator[Step]:
        """The keys of the bucket with one another; the model only looks if they differ."""
        if self.world.journal is None and not any(each is not None for each in self.state.lost):
            return

        def answered(world: World, counted: Counted) -> None:
            if counted.is_sound:
                return
            if self.rules.ends_first:
                self.retakes(world)
            else:
                world.change(self.i, mending=True)

        yield from self.sends("compares", self.call("count"), answered)

    def _mends(self) -> Iterator[Step]:
        def answered(world: World, _: tuple[int, int]) -> None:
            world.change(self.i, mending=False, ready=True, look=self._at_once)

        yield from self.sends("mends", self.call("mend"), answered)

    def _renews(self) -> Iterator[Step]:
        if not self.bounds.sleeps and self.world.journal is None:
            return

        def answered(world: World, answer: tuple[int | None]) -> None:
            if answer[0] is not None and self.rules.renewal_tells:
                look = min(world.workers[self.i].look, max(answer[0] // 2, 0))
                world.change(self.i, look=look)

        have, missed = self.me.have, self.me.have < self.state.content.claimed
        is_told = self.me.look > self._next_due or self.world.journal is not None
        if is_told or (missed and self.me.look > self.state.clock):
            yield from self.sends("renews", self.call("renew", have=have), answered)

    @property
    def _next_due(self) -> int:
        score = self.world.bucket.next_score()
        return NEVER if score is None else score // 2

    # claims

    def _wants(self) -> bool:
        if self.bounds.sleeps:
            return self.me.look <= self.state.clock
        lost = self.rules.have and self.me.have < self.state.content.claimed
        return lost or self._next_due <= self.state.clock + self.bounds.reach.ahead

    def _claims(self) -> Iterator[Step]:
        def answered(world: World, claimed: Claimed) -> None:
            copies = tuple(
                copy._replace(generation=world.witness.generation(copy.stamp))
                for copy in claimed.copies
            )
            claimed = claimed._replace(copies=copies)
            world.change(self.i, claimed=claimed, look=self._next_look(claimed))

        yield from self.sends("claims", self.call("claim", have=self.me.have), answered)

    @property
    def _at_once(self) -> int:
        return self.state.clock if self.bounds.sleeps else 0

    def _next_look(self, claimed: Claimed) -> int:
        if not self.bounds.sleeps:
            return 0
        if claimed.more:
            return self.state.clock
        if claimed.next_score is None:
            return NEVER
        return max(claimed.next_score // 2 - self.bounds.reach.ahead, self.state.clock)

    def _claim_arrives(self, world: World) -> None:
        claimed, me = self.me.claimed, self.me
        assert claimed is not None
        wheel = added(me.wheel, *claimed.copies)
        world.change(self.i, wheel=wheel, have=claimed.number, claimed=None)

    # fires

    def _fires(self) -> Iterator[Step]:
        me, last = self.me, self.state.clock + self.bounds.lead
        scores = {copy.score for copy in me.wheel if copy.score // 2 <= last}
        tops = {max(score, me.watermark) if self.rules.rising else score for score in scores}
        for top in sorted(tops):
            score = top if self.rules.fraction else top // 2 * 2
            batch = tuple(copy for copy in me.wheel if copy.score <= top)
            if not self.rules.exits_first:  # one destination takes nothing: its copies stay
                batch = tuple(copy for copy in batch if copy.id == 0)
            call = self.call("fire", score=score, have=me.have, seen=me.seen, copies=batch)
            if batch:
                label = f"fires up to {top / 2:g}"
                yield from self.sends(label, call, self._fired(call, top), self._rose(top))

    def _rose(self, top: int) -> Arrives:
        return lambda world, _: world.change(self.i, watermark=top)

    def _fired(self, call: OwnerCall, top: int) -> Arrives:
        mirror, lost = self.state.content.mirror, self.state.lost

        def fired(world: World, answer: Fired) -> None:
            claims = ((copy, (mirror[copy.id], lost[copy.id])) for copy in call.copies)
            allowed = tuple(copy for copy, known in claims if copy.claim in known)
            world.change(self.i, firing=Firing(call, answer, allowed), watermark=top)

        return fired

    def _fire_arrives(self, world: World) -> None:
        me, rules = self.me, self.rules
        assert me.firing is not None
        (call, fired, allowed), me = me.firing, me._replace(firing=None)
        wheel = [copy for copy in me.wheel if not self._is_revoked(copy, fired)]
        batch = call.copies
        if not rules.batch:
            batch = tuple(copy for copy in wheel if copy.score <= call.score)
        go = [copy for copy in wheel if copy in batch]
        out = added(me.out, *[copy._replace(allowed=copy in allowed) for copy in go])
        rest = tuple(copy for copy in wheel if copy not in go)
        world.change(self.i, wheel=rest, out=out, seen=self._seen(fired), firing=None)

    def _is_revoked(self, copy: Copy, fired: Fired) -> bool:
        how = self.rules.revokes
        for id, turn, score in fired.revoked:
            if id != copy.id:
                continue
            if how == "id" or (copy.claim < turn if how == "turn" else copy.score == score):
                return True
        return False

    def _seen(self, fired: Fired) -> Any:
        if self.rules.acknowledges != "turn":
            return tuple(sorted((id, score) for id, _, score in fired.revoked))
        if self.rules.complete and self.me.have < fired.claimed:
            return self.me.seen
        return max([self.me.seen, *[turn for _, turn, _ in fired.revoked]])

    # the rest

    def _releases(self) -> Iterator[Step]:
        me = self.me
        holds = me.wheel or me.out or me.confirmed or me.failed or me.aside or me.claimed
        if self.bounds.graceful and self.owns and not holds and not any(self.state.content.mirror):
            yield Step(f"{self.name} releases the lease", "release", self.retakes, True)

    def _unparks(self) -> Iterator[Step]:
        if all(score is None for score in self.state.content.parked):
            return
        if self.bounds.pulls and not self.bounds.parks and self.me.watermark >= 0:
            return  # it has parked none; what is offered waits for consumers, or the next owner

        def unparked(world: World, _: Any) -> None:
            world.change(self.i, look=self._at_once)

        yield from self.sends("unparks", self.call("unpark"), unparked)
