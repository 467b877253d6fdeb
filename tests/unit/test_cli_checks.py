"""`delaybridge health` and `doctor`, what they find and how they judge it."""

from __future__ import annotations

import time
from typing import Any

import pytest

from delaybridge.errors import StoreError
from delaybridge.operate.cli.watching import health
from delaybridge.operate.doctor import checks, findings, servers
from delaybridge.operate.notices.announcements import IngestInfo, SourceInfo
from delaybridge.operate.terminal.invocation import Invocation
from delaybridge.operate.troubles import sources
from delaybridge.operate.troubles.found import Thresholds, troubles
from delaybridge.operate.views.bucket_counts import BucketStats, confirmed
from delaybridge.operate.views.stats import Stats
from delaybridge.recurring.summary import DefinitionCounts, count_definitions
from delaybridge.settings.settings import Settings
from delaybridge.store.protocol.bucket import Bucket
from tests.rigs.command_line import Run


def stats(*, owners: list[str | None], overdue_ms: int = 0, delayed: int = 0) -> Stats:
    buckets = [
        BucketStats(i, delayed, 0, 0, 0, None, overdue_ms, owner, 1000)
        for i, owner in enumerate(owners)
    ]
    return Stats(0, delayed, 0, 0, 0, None, overdue_ms, buckets, [])


class FakeStats:
    """A client whose stats come from a list, the last one repeated."""

    def __init__(self, *answers: Stats) -> None:
        self.answers = list(answers)

    def stats(self) -> Stats:
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]

    def run(self, call: object) -> Any:
        if call is count_definitions:
            return DefinitionCounts()
        return [], None  # nothing is lacking, no memory is limited

    def __enter__(self) -> FakeStats:
        return self

    def __exit__(self, *_: object) -> None:
        pass


@pytest.mark.parametrize(
    ("answers", "args", "unowned", "overdue_ms", "faults"),
    [
        ([stats(owners=["w", "w"])], (), [], 0, 0),
        ([stats(owners=["w", None])], (), [1], 0, 1),
        ([stats(owners=["w"], overdue_ms=6000)], (), [], 6000, 1),
        ([stats(owners=["w"], overdue_ms=6000)], ("--max-overdue", "10s"), [], 6000, 0),
        ([stats(owners=[None]), stats(owners=["w"])], ("--max-unowned", "1m"), [], 0, 0),
        ([stats(owners=[None])], ("--max-unowned", "20ms"), [0], 0, 1),
        (
            [stats(owners=[None, "w"]), stats(owners=["w", None])],
            *(("--max-unowned", "1m"), [], 0, 0),
        ),
    ],
)
def test_health(
    run: Run,
    monkeypatch: pytest.MonkeyPatch,
    answers: list[Stats],
    args: tuple[str, ...],
    unowned: list[int],
    overdue_ms: int,
    faults: int,
) -> None:
    monkeypatch.setattr(health, "LOOK_AGAIN_S", 0.001)
    monkeypatch.setattr(Invocation, "client", lambda self, reads: FakeStats(*answers))
    result = run("--json", "health", *args)
    (found,) = result.objects
    assert (result.code, found["healthy"]) == (bool(faults), not faults)
    assert (found["unowned"], found["overdue_ms"], len(found["faults"])) == (
        unowned, overdue_ms, faults,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("again", "unlisted"),
    [([1, 0, 0, 0, 1, 0], 0), ([1, 0, 0, 0, 2, 0], 1), ([1, 0, 0, 0, StoreError("it"), 0], 0)],
)
def test_a_message_that_was_moved_while_its_bucket_was_counted_is_in_a_set(
    again: list[Any], unlisted: int
) -> None:
    counts = stats(owners=["w", "w", "w"]).buckets
    counts[1] = counts[1]._replace(unlisted=2)
    looks = confirmed([Bucket("n", number, "b") for number in range(3)], counts)
    assert {each.args[0].partition("}")[0] for each in next(looks)} == {"{n:1"}
    with pytest.raises(StopIteration) as ended:
        looks.send(again)
    assert [each.unlisted for each in ended.value.value] == [0, unlisted, 0]


def ingesting(
    state: str, *, age_ms: int = 100_000, name: str = "orders.delay", **counts: Any
) -> Stats:
    source = SourceInfo(f"rabbitmq:{name}", "rabbitmq:orders", state, 9, 0, 0, None, 0.0, **counts)
    process = IngestInfo("i", "host", 1, "0", -age_ms, [source], 1000)
    return stats(owners=["w"])._replace(ingests=[process])


@pytest.mark.parametrize(
    ("found", "level"),
    [
        (ingesting("reading"), "ok"),
        (ingesting("idle: other processes read it"), "ok"),
        (ingesting("starting", age_ms=1000), "ok"),
        (ingesting("starting"), "FAIL"),
        (ingesting("403 ACCESS_REFUSED"), "FAIL"),
        (ingesting("reading", faults=("queue 'q' is bound",)), "FAIL"),
        (stats(owners=["w"]), "FAIL"),
        (ingesting("reading", name="pay.delay"), "FAIL"),
    ],
)
def test_health_and_doctor_check_that_sources_are_read(
    run: Run, monkeypatch: pytest.MonkeyPatch, found: Stats, level: str
) -> None:
    monkeypatch.setenv("DELAYBRIDGE_INGEST__EXCHANGES", "orders.delay")
    monkeypatch.setenv("DELAYBRIDGE_BROKERS__RABBITMQ", "amqp://127.0.0.1:1")
    monkeypatch.setattr(Invocation, "client", lambda self, reads: FakeStats(found))
    result = run("--json", "health")
    faults = result.objects[0]["faults"]
    assert (result.code, len(faults)) == ((0, 0) if level == "ok" else (1, 1))
    assert all("rabbitmq:orders.delay" in fault for fault in faults)
    listed = troubles(found, settings=Settings.load(), thresholds=Thresholds(0))
    levels = {finding.level for finding in [*listed, *sources.reading(found)]}
    assert levels & {"FAIL", "WARN"} == {level} - {"ok"}


def test_a_fault_that_several_processes_find_is_told_once_and_beside_the_state() -> None:
    found = ingesting("reading", faults=("one", "two"))
    twice = found._replace(ingests=found.ingests * 2)
    told = [each.what for each in sources.ingest_faults(twice, Settings.load())]
    assert told == ["rabbitmq:orders.delay: one", "rabbitmq:orders.delay: two"]
    assert found.ingests[0].sources[0].condition == "reading; one; two"


def test_doctor_names_the_changes_that_producers_should_make() -> None:
    found = ingesting("reading", without_id=3, refused=2)
    told = [finding.text for finding in sources.reading(found) if finding.level == "WARN"]
    assert "without an id" in told[0]
    assert "2 cancels or reschedules" in told[1]


class FakeStore:
    """Replies by name of the command."""

    def __init__(self, *, version: str = "7.0.15", policy: str = "noeviction", aof: str = "1"):
        self.ahead_us = 0
        self.info = {
            "server": {"redis_version": version},
            "memory": {"maxmemory_policy": policy},
            "persistence": {"aof_enabled": aof},
            "replication": {},
        }

    def run(self, asked: Any) -> list[Any]:
        return [
            time.time_ns() // 1000 + self.ahead_us if c.name == "TIME" else self.info[c.args[0]]
            for c in asked
        ]

    run_each = run

    def nodes(self) -> list[str]:
        return [""]


@pytest.mark.parametrize(
    ("server", "level", "says"),
    [
        ({}, "ok", "redis 7.0.15"),
        ({"version": "6.2.0"}, "ok", "redis 6.2.0"),
        ({"version": "6.0.16"}, "FAIL", "too old; 6.2 or newer"),
        ({"version": "2.8"}, "FAIL", "too old"),
        ({"version": "7.2.4"}, "WARN", "Upgrade: redis 7.2.11 or newer"),
        ({"policy": "allkeys-lru"}, "FAIL", "maxmemory-policy allkeys-lru"),
        ({"aof": "0"}, "WARN", "appendonly no"),
    ],
)
def test_doctor_looks_at_the_server(server: dict[str, str], level: str, says: str) -> None:
    store: Any = FakeStore(**server)
    found = [f.level for f in servers.servers(store, Settings.load()) if says in f.text]
    assert found == [level]


@pytest.mark.parametrize(
    ("ahead_ms", "level"), [(0, "ok"), (1500, "ok"), (2500, "WARN"), (-2500, "WARN")]
)
def test_doctor_looks_at_the_clock(ahead_ms: int, level: str) -> None:
    store: Any = FakeStore()
    store.ahead_us = ahead_ms * 1000
    (found,) = [f for f in findings.clock(store) if f.about == "clock"]
    assert found.level == level
    assert ("behind" if ahead_ms > 0 else "ahead of") in found.text or ahead_ms == 0


@pytest.mark.parametrize(
    ("name", "fixed"),
    [
        ("redis 6.2.19", "redis 6.2.20 or newer"),
        ("redis 6.2.20", None),
        ("redis 7.0.15", "redis 7.2.11 or newer"),
        ("redis 8.2.1", "redis 8.2.2 or newer"),
        ("redis 8.4.0", None),
        ("valkey 8.1.3", "valkey 8.1.4 or newer"),
        ("valkey 9.1.2", None),
        ("KeyDB 6.3.4", None),
        ("redis ?", None),
    ],
)
def test_doctor_knows_which_servers_have_holes_in_lua(name: str, fixed: str | None) -> None:
    assert servers.lua_fixed_in(name) == fixed


def test_a_server_has_its_own_name_and_that_of_redis_whose_commands_it_has() -> None:
    redis = {"redis_version": "7.2.4", "gcc_version": "12.2.0"}
    assert checks.server_name(redis) == "redis 7.2.4"
    assert checks.server_name(redis | {"valkey_version": "9.1.2"}) == "valkey 9.1.2"
    other = checks.server_name(redis | {"kvrocks_version": "2.10.0"})
    assert other == "kvrocks 2.10.0, as redis 7.2.4" and servers.lua_fixed_in(other) is None
