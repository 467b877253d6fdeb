"""A worker whose process has ended is known by its line, long before its leases run out."""

from __future__ import annotations

import json
from collections.abc import Iterator
from math import inf
from typing import Any

import pytest
import redis

from delaybridge.events import LeaseLost, TakenForDead, WorkerGone
from delaybridge.operate import cli
from delaybridge.operate.troubles.found import troubles
from delaybridge.scan.leases import take_over
from delaybridge.store.namespace import registry
from delaybridge.store.protocol.layout import Epoch, Layout
from delaybridge.store.redis.lifeline import Lifeline
from delaybridge.store.redis.store import Store
from tests.rigs.crew import BUCKETS, SELDOM, Crew
from tests.rigs.fleet import FleetFactory
from tests.rigs.waiting import quiet, until_async
from tests.servers.redis import ON_EVERY_REDIS, RedisServer

NEVER_MS = 600_000


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever has a line may judge by it, and looks often."""
    monkeypatch.setattr(take_over, "_EACH_S", 0.05)
    monkeypatch.setattr(take_over, "_APART_S", 0.05)
    monkeypatch.setattr(Lifeline, "answers_s", inf)


class Fellow:
    """A worker as the fleet sees it: its announcement, its line, and the lease of one bucket."""

    def __init__(self, redis_url: str, namespace: str, name: str, bucket: int) -> None:
        self.store, self.name, self._of = Store(redis_url), name, namespace
        self.line = redis.Redis.from_url(redis_url, single_connection_client=True)
        self.id, self._run = self.line.client_id(), self.line.info("server")["run_id"]
        self.store.run(registry.born(namespace, Layout((Epoch(0, BUCKETS),)), "0" * 16))
        self.lease = self.store.complete(registry.buckets_of(namespace))[bucket]
        self.announce()
        (taken,) = self.store.run([self.lease.acquire(f"{name}:x", NEVER_MS)])
        self.token = taken.token

    def announce(self) -> None:
        about = {"instance": self.name, "host": "h", "lines": {self._run: self.id}}
        info = json.dumps(about).encode()
        self.store.run([registry.announce(self._of, self.name, self.name, NEVER_MS, info)])

    @property
    def holds(self) -> bool:
        (token,) = self.store.run([self.lease.token()])
        return token == str(self.token).encode()

    def die(self) -> None:
        self.line.close()

    def close(self) -> None:
        self.line.close()
        self.store.close()


@pytest.fixture
def fellows(redis_url: str, namespace: str) -> Iterator[Any]:
    made: list[Fellow] = []

    def make(name: str, bucket: int) -> Fellow:
        made.append(Fellow(redis_url, namespace, name, bucket))
        return made[-1]

    yield make
    for each in made:
        each.close()


async def test_the_leases_of_one_that_has_ended_are_taken_at_once(
    crew: Crew, fellows: Any, namespace: str
) -> None:
    dead = [fellows(f"a{number}", number) for number in range(5)]  # more than one worker watches
    crew.start("b", lease=SELDOM)
    await seen_by("b", crew, dead[:3])
    for each in dead:
        each.die()
    await crew.shared("b")
    gone = crew.heard(WorkerGone)
    assert sorted((one.name, one.released) for one in gone) == [(one.name, 1) for one in dead]
    stats = await crew.client.stats()
    assert {(one.name, one.ousted_by) for one in stats.gone} == {(one.name, "b") for one in dead}
    told = [each for each in troubles(stats) if each.code == "worker_silent"]
    assert {each.what.rpartition("ago: ")[2] for each in told} == {"it ended, b freed its buckets"}


async def seen_by(name: str, crew: Crew, fellows: list[Fellow]) -> None:
    """Wait until a worker has seen their lines."""

    def has() -> bool:
        run = crew.workers[name].current_run
        shifts = [] if run is None else run._shifts.running
        return any({one.id for one in fellows} <= each.take_over.seen for each in shifts)

    await until_async(has, "it has seen their lines")


async def test_who_announces_itself_without_its_line_keeps_its_leases(
    crew: Crew, fellows: Any
) -> None:
    living, dead = fellows("a1", 1), fellows("a2", 2)
    crew.start("b", lease=SELDOM)
    await seen_by("b", crew, [living, dead])
    living.die()  # its line, not its process

    def is_over() -> bool:
        living.announce()
        return bool(crew.heard(WorkerGone))

    dead.die()
    await until_async(is_over, interval_s=0.005)
    assert [one.name for one in crew.heard(WorkerGone)] == ["a2"]
    assert living.holds and not dead.holds


async def test_whose_line_is_killed_has_another_one_at_once_and_keeps_its_leases(
    crew: Crew, fellows: Any, redis_url: str
) -> None:
    dead = fellows("c", 3)
    crew.start("a", lease=SELDOM)
    crew.start("b", lease=SELDOM)
    await seen_by("b", crew, [dead])

    def line() -> int:
        run = crew.workers["a"].current_run
        found = run and run._shifts.running[0].take_over.line
        return found.id if found else 0

    killed = await until_async(line)
    with redis.Redis.from_url(redis_url) as own:
        own.client_kill_filter(_id=str(killed))
    dead.die()
    await until_async(lambda: crew.heard(WorkerGone))
    assert {each.name for each in crew.heard(WorkerGone)} == {"c"}
    await until_async(lambda: line() > killed)
    assert crew.heard(TakenForDead) == crew.heard(LeaseLost) == []


async def test_who_was_ousted_and_lives_is_told_and_has_no_line_any_more(
    crew: Crew, namespace: str, capsys: pytest.CaptureFixture[str]
) -> None:
    crew.start("b", lease=SELDOM | {"renew_ms": 100})
    await crew.shared("b")
    fleet = registry.fleet(namespace)

    async def lines() -> Any:
        info, _ = await crew.store.run(fleet)
        return json.loads(info[b"b"].partition(b"{")[1] + info[b"b"].partition(b"{")[2])["lines"]

    await until_async(lines, "its line is announced")

    async def is_ousted() -> bool:
        _, scores = await crew.store.run(fleet)
        instance = crew.workers["b"].identity.instance
        said = registry.oust(namespace, "b", instance, int(scores[1]), 'x"')
        return await crew.store.run_one(said) == 1

    await until_async(is_ousted, interval_s=0.001)
    await until_async(lambda: crew.heard(TakenForDead))

    async def has_none() -> bool:
        return await lines() == {}

    await until_async(has_none)
    stats = await crew.client.stats()
    assert [each.code for each in troubles(stats) if each.about == "workers"] == [
        "worker_taken_for_dead"
    ]
    assert len(crew.heard(TakenForDead)) == 1
    assert (await crew.shares()).total() == BUCKETS, "it goes on"


async def test_where_lines_cannot_be_seen_none_is_announced_and_doctor_says_so(
    namespace: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with RedisServer() as server:
        with redis.Redis.from_url(server.url) as own:
            own.execute_command("ACL", "SETUSER", "w", "on", ">pZr7qK2mVx9TbWc4P", "~*", "&*",
                                "+@all", "-client|list")  # fmt: skip
        crew = Crew(server.url, namespace)
        crew.start("b", url=server.url.replace("//", "//w:pZr7qK2mVx9TbWc4P@"))

        async def is_said() -> bool:
            workers = (await crew.client.stats()).workers
            return any("client|list" in each.unwatched for each in workers)

        await until_async(is_said)
        await crew.shared("b")
        cli.main(["--redis", server.url, "--namespace", namespace, "doctor"])
        assert (
            "if b is killed, its buckets wait until its lease runs out" in capsys.readouterr().out
        )
        await crew.close()


def test_a_process_of_the_same_name_is_not_ousted_instead(fellows: Any, namespace: str) -> None:
    one = fellows("a", 1)
    (info, scores) = one.store.run(registry.fleet(namespace))
    said = registry.oust(namespace, "a", "another", int(scores[1]), "b")
    later = registry.oust(namespace, "a", "a", int(scores[1]) + 1, "b")
    assert one.store.run([said, later]) == [0, 0]


@pytest.mark.slow
@ON_EVERY_REDIS
def test_a_killed_process_is_known_by_its_line(fleet_of: FleetFactory) -> None:
    fleet = fleet_of(ttl_ms=4000)
    doomed, other = fleet.start("a"), fleet.start("b", settled=False)
    fleet.wait_shared("a", "b")
    quiet(5)  # longer than a lease
    doomed.kill()
    fleet.wait_shared("b")
    assert "worker_gone name=a" in other.log
