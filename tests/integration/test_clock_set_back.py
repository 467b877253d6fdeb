"""A worker dies, and Redis' clock is set back: its buckets wait for the one lease that it had.

The rival's own clock and that of Redis are moved by the test, together, as far as it wants.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator

import pytest

from delaybridge.message import Limits
from delaybridge.scan.leases.clock import StoreClock
from delaybridge.scan.leases.fleet import Membership
from delaybridge.scan.leases.lease import LeaseOwner, Leases
from delaybridge.scan.leases.session import Session
from delaybridge.store.calls import Calls
from delaybridge.store.namespace import registry
from delaybridge.store.protocol.verbs import plain
from delaybridge.store.redis.store import AsyncStore
from tests.rigs.crew import BUCKETS, Crew
from tests.rigs.waiting import until_async
from tests.servers.clock import ClockedRedis

TTL_S, RENEW_S = 600.0, 240.0
TTL_MS = round(TTL_S * 1000)
HOUR_S = 3600.0
ROUNDS_S = (230.0, 460.0, 590.0)


class Rival:
    """The leases and the membership of one worker, round by round. It holds what it can."""

    def __init__(self, redis: ClockedRedis, store: AsyncStore, calls: Calls) -> None:
        self.redis, self.store, self.calls = redis, store, calls
        self.later_s, self.step_s = 0.0, 0.0
        owner = LeaseOwner("rival", TTL_MS, round(RENEW_S * 1000), lambda bucket, token: None)
        self.clock = StoreClock(self.now_s)
        self.leases = Leases(
            store, self.clock, lambda event: None, owner,
            is_here=lambda bucket: True, on_change=lambda: None,
        )  # fmt: skip
        self.leases._holder = self  # type: ignore[assignment]
        self.member = Membership(
            store, calls, lambda event: None, name="rival", instance="rival",
            info=lambda: b"{}", ttl_ms=TTL_MS, renew_ms=round(RENEW_S * 1000),
        )  # fmt: skip
        self.member._clock = StoreClock(self.now_s)

    def now_s(self) -> float:
        return time.monotonic() + self.later_s

    def at(self, later_s: float, step_s: float) -> None:
        """So much later than at the start, and the clock of Redis set by so much."""
        self.later_s, self.step_s = later_s, step_s
        self.redis.set_clock(round((later_s + step_s) * 1000))

    async def round(self) -> int:
        """One round of each; how many leases it has."""
        await self.member._round(self)
        await self.leases.round()
        return len(self.leases.sessions)

    # as the holder of leases, and of sessions

    def lacks(self, share: set[int]) -> bool:
        return bool(share - self.leases.sessions.keys())

    def assign(self, share: set[int], *, may_take: bool) -> None:
        buckets = {bucket.number: bucket for bucket in self.calls.buckets}
        self.leases.assign({n: buckets[n] for n in share}, may_take=may_take)

    def begin(self, session: Session) -> None: ...

    def wake(self, bucket: int, due_ms: int) -> None: ...

    def clock_stepped(self, step_ms: int) -> None: ...


@pytest.fixture
async def rival(clocked_redis: ClockedRedis, namespace: str) -> AsyncIterator[Rival]:
    """It has met a worker that holds all leases, and dies now."""
    store = AsyncStore(clocked_redis.url)
    calls = Calls(namespace, None, 4, Limits())
    buckets = await store.complete(calls.open())
    await store.run_one(registry.announce(namespace, "dead", "dead", TTL_MS, b"{}"))
    await store.run([bucket.acquire("dead:1", TTL_MS) for bucket in buckets])
    rival = Rival(clocked_redis, store, calls)
    await rival.leases.read_clock(buckets[0])
    assert await rival.round() == 0
    yield rival
    await store.close()


async def taken_at(rival: Rival, moments_s: list[float], step_s: float) -> dict[float, int]:
    """How many leases it has after a round at each of these moments."""
    taken = {}
    for moment_s in moments_s:
        rival.at(moment_s, step_s)
        taken[moment_s] = await rival.round()
    return taken


@pytest.mark.parametrize("read_first", [False, True])
@pytest.mark.parametrize("set_at_s", [1.0, 200.0, 599.0])
async def test_the_buckets_of_a_dead_worker_wait_for_one_lease(
    rival: Rival, set_at_s: float, read_first: bool
) -> None:
    before_s = [s for s in ROUNDS_S if s < set_at_s]
    assert {*(await taken_at(rival, before_s, 0.0)).values()} <= {0}
    rival.at(set_at_s, -HOUR_S)
    if read_first:  # by an answer of the store to something else
        await rival.leases.read_clock(rival.calls.buckets[0])
    after_s = [set_at_s, *(s for s in ROUNDS_S if s > set_at_s)]
    taken = await taken_at(rival, after_s, -HOUR_S)
    assert {*taken.values()} == {0}, "not before its lease is over"
    await taken_at(rival, [TTL_S + 1, TTL_S + 1.1], -HOUR_S)
    assert await rival.round() == 4, "and no later"


async def test_a_worker_that_lives_keeps_its_leases(rival: Rival) -> None:
    rival.at(200.0, -HOUR_S)
    assert await rival.round() == 0
    held = [bucket.renew("dead:1:1", TTL_MS) for bucket in rival.calls.buckets]
    assert all(each.held for each in await rival.store.run(held))
    name = rival.calls.namespace
    await rival.store.run_one(registry.announce(name, "dead", "dead", TTL_MS, b"{}"))
    assert {*(await taken_at(rival, [420.0, 640.0, 790.0], -HOUR_S)).values()} == {0}
    await taken_at(rival, [801.0, 801.1], -HOUR_S)
    assert await rival.round() == 4


async def test_who_comes_after_the_set_waits_for_one_lease_at_most(
    clocked_redis: ClockedRedis, rival: Rival
) -> None:
    late = Rival(clocked_redis, rival.store, rival.calls)
    late.at(10.0, -HOUR_S)
    await late.leases.read_clock(late.calls.buckets[0])
    await late.leases.cut_long(late.calls.buckets)
    assert {*(await taken_at(late, [10.0, 240.0, 480.0, 600.0], -HOUR_S)).values()} == {0}
    await taken_at(late, [TTL_S + 11, TTL_S + 11.1], -HOUR_S)
    assert await late.round() == 4, "all are its share: nobody else has announced itself since"


async def test_to_look_at_a_lease_takes_none(rival: Rival) -> None:
    bucket = rival.calls.buckets[0]
    await rival.store.run([bucket.release("dead:1:1")])
    (found,) = await rival.store.run([bucket.acquire("", TTL_MS)])
    assert (found.token, found.left_ms) == (None, 0)
    assert await rival.store.run([bucket.holder()]) == [None]


async def test_a_worker_that_starts_looks_at_all_leases(redis_url: str, namespace: str) -> None:
    async with Crew(redis_url, namespace) as crew:
        buckets = await crew.store.complete(Calls(namespace, None, BUCKETS, Limits()).open())
        await crew.store.run([bucket.acquire("dead:1", TTL_MS) for bucket in buckets])
        await crew.store.run_one(registry.announce(namespace, "dead", "dead", TTL_MS, b"{}"))
        leases = [bucket.key("lease") for bucket in buckets]
        for lease in leases:
            await crew.store.run_one(plain("PEXPIRE", lease, 2 * TTL_MS))
        crew.start()

        async def are_cut() -> bool:
            left_ms = await crew.store.run([plain("PTTL", lease) for lease in leases])
            return max(left_ms) <= TTL_MS

        await until_async(are_cut, "also those of buckets that are not in its share")
