"""When a worker gives its leases back, as another Redis answers; and how long it trusts one."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from delaybridge.scan.leases.clock import StoreClock
from delaybridge.scan.leases.lease import LeaseOwner, Leases
from delaybridge.scan.leases.session import Session
from delaybridge.store.protocol.bucket import Bucket
from delaybridge.store.protocol.replies import Acquired, Renewed


class Servers:
    """Those who answer, one after the other; how often a lease was given back so far."""

    def __init__(self) -> None:
        self.now_s, self.answers = 0.0, ""
        self.moved: set[int] = set()
        self.asked: list[str] = []
        self.given_back: list[Any] = []
        owner = LeaseOwner("w", 1000, 300, lambda bucket, token: None)
        self.takes_s, self.found = 0.0, list[Any]()  # of the next call for leases
        store: Any = SimpleNamespace(
            run_each=self._run_each, run_isolated=self._run_isolated, run_one=self._run_one
        )
        self.leases = Leases(
            store, StoreClock(lambda: self.now_s), lambda event: None, owner,
            is_here=lambda bucket: bucket.number not in self.moved, on_change=lambda: None,
        )  # fmt: skip
        buckets = {number: Bucket("ns", number, "birth") for number in (0, 1)}
        self.leases.assign(buckets, may_take=False)
        self.leases.sessions[1] = SimpleNamespace(bucket=buckets[1])  # type: ignore[assignment]
        self.leases._drain = self.given_back.append  # type: ignore[method-assign]

    async def _run_each(self, commands: Any) -> list[Any]:
        self.asked += [command.near for command in commands]
        return [{"run_id": self.answers}]

    async def _run_isolated(self, commands: Any) -> list[Any]:
        self.now_s += self.takes_s
        return self.found[: len(commands)]

    async def _run_one(self, command: Any) -> int:
        return int(self.now_s * 1_000_000)

    async def round(self, run_id: str, after_s: float = 0.3) -> int:
        self.now_s += after_s
        self.answers = run_id
        await self.leases.follow_server()
        return len(self.given_back)


@pytest.fixture
def servers() -> Servers:
    return Servers()


async def test_one_server_and_one_that_does_not_say_who_it_is_change_nothing(
    servers: Servers,
) -> None:
    assert [await servers.round(each) for each in ("a", "a", "", "a")] == [0, 0, 0, 0]
    assert await servers.round("a", after_s=500.0) == 0


async def test_a_master_of_long_ago_that_takes_over_again_is_another_server(
    servers: Servers,
) -> None:
    assert [await servers.round(each) for each in ("a", "b", "b")] == [0, 1, 1]
    assert await servers.round("b", after_s=100.0) == 1
    assert await servers.round("a") == 2


async def test_servers_that_answer_in_turn_are_new_once(servers: Servers) -> None:
    assert [await servers.round(each) for each in "ababab"] == [0, 1, 1, 1, 1, 1]


async def test_the_new_node_of_a_bucket_that_moved_is_not_asked(servers: Servers) -> None:
    servers.moved = {0}
    await servers.round("a")
    assert servers.asked == [Bucket("ns", 1, "birth").key("lease")]
    servers.moved = {0, 1}
    assert await servers.round("b") == 0
    assert len(servers.asked) == 1


async def test_a_lease_is_counted_from_the_moment_at_which_its_renewal_was_sent(
    servers: Servers,
) -> None:
    servers.now_s = 10.0
    bucket = Bucket("ns", 1, "birth")
    held = servers.leases.sessions[1] = Session(bucket, "w:1", 1, 1000, 9.0)
    servers.takes_s, servers.found = 0.4, [Renewed(True)]
    await servers.leases.round()
    assert (held.touched_s, servers.now_s) == (10.0, 10.4)


async def test_a_lease_of_another_is_asked_for_again_when_it_runs_out(servers: Servers) -> None:
    servers.leases.sessions.clear()
    servers.leases.assign({0: Bucket("ns", 0, "birth")}, may_take=True)
    servers.found = [Acquired(None, left_ms=100, holder="other")]
    assert await servers.leases.round() == pytest.approx(0.12)  # sooner than the next renewal


async def test_a_lease_whose_renewal_is_refused_is_given_back(servers: Servers) -> None:
    """Redis has it still, if it has forgotten claims: nobody could take it until it runs out."""
    servers.now_s, given = 10.0, list[Session]()
    held = servers.leases.sessions[1] = Session(Bucket("ns", 1, "birth"), "w:1", 1, 1000, 9.0)

    async def release(session: Session) -> None:
        given.append(session)

    servers.leases._release = release  # type: ignore[method-assign]
    servers.leases._holder = SimpleNamespace(session_over=lambda session: None)  # type: ignore[assignment]
    servers.found = [Renewed(False)]
    await servers.leases.round()
    await asyncio.gather(*servers.leases.draining)
    assert given == [held]
