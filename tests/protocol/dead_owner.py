"""A dead owner as a model of its own: when a rival takes its bucket, if the clock is set back.

The lease and the announcement of a worker end by the store's clock, so a clock that is set back
prolongs both. One owner renews both until it dies; one rival, whose own clock is steady, announces
itself, sees when the owner's announcement is over, and then asks for the lease. Every order of
single steps is tried; times are in ticks.

Promises:

1. What a living owner renews in time is not taken.
2. A lease is not taken before it is over, as if the clock had not been set.
3. A dead owner's bucket is taken as soon as its lease is over, one ttl after it was renewed last;
   or later by as much as the clock was set back, if that is less than a ttl. A rival that comes
   only then, and does not know the clock of before, waits for a ttl at most.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

TTL, RENEW = 4, 2
_BACK = (50, TTL - 1, 1)
_END = 3 * TTL  # nothing is looked at after this tick


class ClockRules(NamedTuple):
    """What can be taken out, to see what it is for."""

    cut: bool = True  # what would last longer than its own ttl is cut
    steady: bool = True  # an announcement to what is left of it by the rival's clock; else to a ttl
    remembered: bool = True  # a lease by as much as the clock was set back lately; else to a ttl
    looked: bool = True  # who comes looks at all leases first, whether it is to take them or not


class OwnerState(NamedTuple):
    """Everything. ahead: by how much the store's clock is ahead of the true one.

    lease, entry: when they end, on the store's clock; None: they are gone. renewed: when, truly.
    of_fleet, of_node: `ahead` as the rival read it last, with an announcement and otherwise. back:
    how far the clock was set back, as the rival remembers it, and since when. looks: when it looks
    next. took: when it took the lease. slack: by how much the clock was set back, if by less than a
    ttl: nobody can tell a lease that was renewed since from one that seems to last longer. came:
    when the rival came, if it was not there from the beginning.
    """

    now: int = 0
    ahead: int = 0
    lease: int | None = TTL
    entry: int | None = TTL
    renewed: int = 0
    lives: bool = True
    of_fleet: int = 0
    of_node: int = 0
    back: int = 0
    back_at: int = 0
    looks: int = 0
    took: int | None = None
    slack: int = 0
    sets: int = 0
    came: int | None = 0

    @property
    def clock(self) -> int:
        return self.now + self.ahead


changed = OwnerState._replace


class DeadOwner:
    """The steps from a state. sets: how often the clock is set back. comes: the rival comes later.

    The rival has always read the clock in between: two sets look like one otherwise.
    """

    def __init__(self, rules: ClockRules, *, sets: int, comes: bool = False) -> None:
        self.rules = rules
        self.start = OwnerState(sets=sets, came=None if comes else 0)

    def steps(self, now: OwnerState) -> Iterator[OwnerState]:
        if now.took is not None or now.now > _END:
            return
        if now.lives:
            yield changed(now, lives=False)
            if now.now > now.renewed:
                ends = now.clock + TTL
                yield changed(now, lease=ends, entry=ends, renewed=now.now)
        if now.came is None:
            yield self._come(now)
        if now.sets and (now.came is None or now.of_fleet == now.of_node == now.ahead):
            for step in _BACK:
                small = 0 if step > TTL else step
                left = {"sets": now.sets - 1, "slack": now.slack + small}
                yield changed(now, ahead=now.ahead - step, **left)
        if now.came is not None and now.of_node != now.ahead:
            yield _read(now)  # with the answer to a claim
        if now.came is not None and now.looks <= now.now:
            yield self._look(now)
        elif not (now.lives and now.now - now.renewed >= RENEW):
            yield changed(now, now=now.now + 1)

    def _come(self, now: OwnerState) -> OwnerState:
        """The rival comes, and reads the clock for the first time."""
        lease = self._cut(now, now.lease, 0) if self.rules.looked else now.lease
        read = {"of_fleet": now.ahead, "of_node": now.ahead, "looks": now.now}
        return changed(now, came=now.now, lease=lease, **read)

    def _look(self, now: OwnerState) -> OwnerState:
        """The rival's round: it announces itself, and asks for the lease if the owner is gone."""
        believed = now.now + now.of_fleet if self.rules.steady else now.clock
        entry = self._cut(now, now.entry, believed - now.clock)
        now = _read(changed(now, entry=entry, of_fleet=now.ahead))
        if entry is not None:
            return changed(now, looks=now.now + min(RENEW, entry - now.clock))
        lease = self._cut(now, now.lease, now.back if self.rules.remembered else 0)
        if lease is None:
            return changed(now, lease=None, took=now.now)
        return changed(now, lease=lease, looks=now.now + min(RENEW, lease - now.clock))

    def _cut(self, now: OwnerState, ends: int | None, back: int) -> int | None:
        """When it ends, now that a script has looked; None: it is over."""
        if ends is None or ends <= now.clock:
            return None
        left = ends - now.clock
        if left > TTL and self.rules.cut:
            left = left - back if -TTL <= left - back <= TTL else TTL
        return now.clock + max(0, left)


def _read(now: OwnerState) -> OwnerState:
    """The rival reads the store's clock."""
    if now.of_node == now.ahead:
        return now if now.now - now.back_at <= 2 * TTL else changed(now, back=0)
    return changed(now, of_node=now.ahead, back=now.of_node - now.ahead, back_at=now.now)


def explore_dead_owner(model: DeadOwner) -> tuple[int, set[int]]:
    """How many states there are, and the promises that break."""
    seen, left, broken = {model.start}, deque([model.start]), set[int]()
    while left:
        state = left.popleft()
        broken |= _broken(state)
        for step in model.steps(state):
            if step not in seen:
                seen.add(step)
                left.append(step)
    return len(seen), broken


def _broken(state: OwnerState) -> set[int]:
    ends, took = state.renewed + TTL, state.took
    late = state.now if took is None else took
    if state.came:
        ends = max(ends, state.came + TTL)
    checks = {
        1: took is not None and state.lives,
        2: took is not None and took < state.renewed + TTL,
        3: not state.lives and state.came is not None and late > ends + state.slack,
    }
    return {promise for promise, is_broken in checks.items() if is_broken}
