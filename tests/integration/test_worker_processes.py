"""Workers are killed, paused, or the children of a parent."""

from __future__ import annotations

import os
import signal
from functools import partial
from pathlib import Path

import pytest
import redis as redis_py

from delaybridge.store.protocol import keys
from delaybridge.store.protocol.verbs import bucket_of
from tests.rigs import recorder
from tests.rigs.crew import BUCKETS
from tests.rigs.fleet import Fleet, FleetFactory, Process
from tests.rigs.stall import Stall
from tests.rigs.waiting import quiet, until
from tests.servers.redis import ON_EVERY_REDIS, RedisServer

LATE_MS = 1000
UNSETTLED_MS = 300


@ON_EVERY_REDIS
@pytest.mark.slow_with("cluster")
def test_a_killed_worker_s_buckets_are_taken_over_within_one_lease(
    fleet: Fleet, stall: Stall
) -> None:
    doomed = fleet.start("a", settled=False)
    # It would renew, and look at the fleet, long after every deadline.
    seldom = {"LEASE__TTL_MS": "600000", "LEASE__RENEW_MS": "300000"}
    other = fleet.start("b", settled=False, **seldom)
    fleet.wait_shared("a", "b")
    ids = fleet.schedule(450, seconds=1.5)
    until(lambda: sum(r.pid == doomed.pid for r in fleet.published()) > 50, "under load")
    orphans = {bucket for bucket, owner in fleet.owners().items() if owner == "a"}
    doomed.kill()
    fleet.wait_shared("b")
    fleet.wait_published(ids)
    fleet.wait_settled()
    assert fleet.early() == []
    published = fleet.published()
    died_ms = max(record.at_ms for record in published if record.pid == doomed.pid)
    doubled = set(fleet.twice())
    first_ms = [record.at_ms for record in published if record.id in doubled]
    assert died_ms - min(first_ms, default=died_ms) < UNSETTLED_MS + stall.worst_ms
    assert {record.pid for record in published if record.id in doubled} <= {doomed.pid, other.pid}
    orphaned_ms, others_ms = _latest_ms(published, orphans)
    assert orphaned_ms < others_ms + 1000 + LATE_MS + stall.worst_ms, "a lease, and little more"


def _latest_ms(published: list[recorder.Record], of: set[int]) -> tuple[float, float]:
    """The worst lateness in these buckets, and in the others."""
    late_ms: dict[bool, list[float]] = {True: [], False: []}
    for record in published:
        is_of = bucket_of(record.id.encode(), BUCKETS) in of
        late_ms[is_of].append(record.at_ms - record.due_ms)
    return max(late_ms[True]), max(late_ms[False])


def test_a_worker_paused_for_longer_than_its_lease_publishes_nothing_stale(fleet: Fleet) -> None:
    paused = fleet.start("a", settled=False)
    fleet.start("b", settled=False, LEASE__TTL_MS="600000")  # which never loses its own
    before: set[str] | None = None
    while before is None or len(before) >= 50:  # others must be on its wheel
        paused.signal(signal.SIGCONT)
        fleet.wait_shared("a", "b")
        ids = fleet.schedule(200, seconds=1, first_s=1.5)
        until(partial(_are_claimed, fleet, ids))
        paused.signal(signal.SIGSTOP)
        until(lambda: paused.is_stopped, "it is paused")
        by_it = {record.id for record in fleet.published() if record.pid == paused.pid}
        before = by_it & {*ids}
    fleet.wait_published(ids)
    fleet.wait_settled()
    paused.signal(signal.SIGCONT)
    fleet.wait_shared("a", "b")
    more = fleet.schedule(100, seconds=0.5)
    fleet.wait_published(more)
    by_it = {record.id for record in fleet.published() if record.pid == paused.pid}
    assert by_it & {*ids} == before
    tried_again = {record.id for record in fleet.published() if record.attempt > 1}
    twice = {*fleet.twice()}
    assert twice & {*ids} <= before, "what it had not settled when it was paused"
    assert twice & {*more} <= tried_again, "what it had not, should it lose a lease once more"
    assert fleet.early() == []
    until(lambda: "lease_lost" in paused.log, "logged, a moment later")


def _are_claimed(fleet: Fleet, ids: list[str]) -> bool:
    """Or, if this was asked late, are published."""
    is_out = {*ids} <= {record.id for record in fleet.published()}
    return is_out or fleet.client.stats().in_flight > 100


def test_a_name_in_use_ends_the_second_worker_with_its_exit_code(fleet_of: FleetFactory) -> None:
    # The second waits for as long as a lease lasts; the first must not miss that many renewals.
    fleet = fleet_of(ttl_ms=2000, LEASE__RENEW_MS="100")
    first = fleet.start("a")
    second = fleet.start("a", settled=False)

    def ended() -> Process | None:
        second.revive()  # where Redis was silent at its start
        return next((each for each in (second, first) if not each.running), None)

    # If the first stands still for longer than a lease, it has lost its name, and is the second.
    refused = until(ended, "one of them ends")
    assert refused is not None and refused.wait() == 4


def test_a_parent_replaces_a_killed_child_and_frees_its_buckets_at_once(patient: Fleet) -> None:
    parent = patient.start("p", "--processes", "3", settled=False)
    patient.wait_shared("p-0", "p-1", "p-2")
    ids = patient.schedule(600, seconds=2)
    until(lambda: len(patient.published()) > 100, "under load")
    first, *others = parent.children()
    os.kill(first, signal.SIGKILL)
    until(lambda: len({*parent.children()} - {first}) == 3, "it is replaced")
    assert set(others) < set(parent.children())
    patient.wait_published(ids)
    patient.wait_settled()
    assert patient.early() == []
    parent.signal(signal.SIGTERM)
    assert parent.wait() == 0
    assert patient.owners() == {}


@pytest.mark.slow
def test_a_parent_s_sigterm_drains_all_its_children(patient: Fleet) -> None:
    parent = patient.start("p", "--processes", "3", settled=False)
    patient.wait_shared("p-0", "p-1", "p-2")
    patient.schedule(1000, seconds=20)
    until(lambda: len(patient.published()) > 20, "under load")
    children = parent.children()
    parent.signal(signal.SIGTERM)
    assert parent.wait() == 0
    assert not any(_runs(pid) for pid in children)
    assert patient.owners() == {}
    stats = patient.client.stats()
    assert (stats.in_flight, stats.workers) == (0, [])
    assert stats.delayed == 1000 - len(patient.published())
    assert patient.twice() == []


@pytest.mark.parametrize(
    "after_ms", [0, 200, *(pytest.param(n, marks=pytest.mark.slow) for n in (60, 120, 300))]
)
def test_a_sigterm_while_children_are_being_started_ends_them_all(
    patient: Fleet, after_ms: int
) -> None:
    parent = patient.start("p", "--processes", "4", settled=False)
    until(lambda: parent.children(), "the first child", interval_s=0.002)
    quiet(after_ms / 1000)  # the moment is the parameter
    parent.signal(signal.SIGTERM)
    assert parent.wait() == 0
    assert patient.owners() == {}


def test_children_whose_parent_is_killed_drain_and_release(patient: Fleet) -> None:
    parent = patient.start("p", "--processes", "2", settled=False)
    patient.wait_shared("p-0", "p-1")
    patient.schedule(1000, seconds=20)
    until(lambda: len(patient.published()) > 20, "under load")
    children = parent.children()
    parent.kill()
    until(lambda: not any(_runs(pid) for pid in children), "the children end")
    assert patient.owners() == {}, "given back, and not left to run out"
    assert patient.client.stats().in_flight == 0
    assert patient.twice() == []


@pytest.mark.slow
def test_a_child_that_dies_while_redis_is_down_does_not_end_the_others(
    fleet_of: FleetFactory,
) -> None:
    with RedisServer() as server:
        fleet = fleet_of(server.url)
        parent = fleet.start("p", "--processes", "2", settled=False)
        fleet.wait_shared("p-0", "p-1")
        ids = fleet.schedule(100, seconds=1, first_s=3)
        server.pause()
        os.kill(parent.children()[0], signal.SIGKILL)
        until(lambda: parent.log.count("worker_died") > 1, "its replacement dies, too")
        server.resume()
        fleet.wait_shared("p-0", "p-1")
        fleet.wait_published(ids)
        assert parent.running
        fleet.client.close()


def test_a_wiped_store_ends_a_parent_and_the_namespace_is_not_created_again(
    fleet_of: FleetFactory, namespace: str
) -> None:
    with RedisServer() as server:
        fleet = fleet_of(server.url, BUCKETS="4")
        parent = fleet.start("p", "--processes", "2", settled=False)
        client = redis_py.Redis.from_url(server.url)

        def both_hold() -> bool:
            parent.revive()
            return _holders(client) == {"p-0", "p-1"}

        until(both_hold, "both hold buckets")
        client.flushall()
        assert parent.wait() != 0
        assert client.get(keys.birth(namespace)) is None
        client.close()


def _holders(client: redis_py.Redis) -> set[str]:
    """The workers that hold leases; asked without a `Client`, which would create the namespace."""
    tokens = [client.get(key) or b"" for key in client.keys("*:lease")]
    return {token.decode().partition(":")[0] for token in tokens}


def _runs(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
