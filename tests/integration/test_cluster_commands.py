"""The command line on a Redis Cluster: every node is shown, and one that is down hides no other."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count

import pytest

from delaybridge import Client, StoreUnavailable
from delaybridge.operate.doctor.servers import Inspected, clocks
from delaybridge.operate.metrics.reader import Reader
from delaybridge.store.protocol import keys
from tests.rigs.command_line import Result, Run, runner
from tests.rigs.stall import Stall
from tests.servers.cluster import ClusterNode, ClusterSite
from tests.servers.redis import default_binary
from tests.servers.sentinel import SentinelSite

TIMEOUT_S = 1.0  # while a node is down: all commands wait in vain for that long
MESSAGES = 60


@pytest.fixture(scope="module")
def site() -> Iterator[ClusterSite]:
    """Three masters, which no replica follows: one that is down stays down."""
    if default_binary() is None:
        pytest.skip("no Redis to run a Cluster from")
    with ClusterSite(replicas=0) as site:
        yield site


@pytest.fixture
def run(
    site: ClusterSite,
    namespace: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> Run:
    flags = ["--redis", site.url, "--namespace", namespace, "--broker", "memory=memory://"]
    return runner(flags, capsys, monkeypatch)


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch, stall: Stall) -> Callable[[], None]:
    """From now on no command waits for long. A stall may make it miss the others, too."""
    return lambda: monkeypatch.setenv("DELAYBRIDGE_REDIS__TIMEOUT_S", str(TIMEOUT_S))


@pytest.fixture
def down(
    site: ClusterSite, namespace: str, hasty: Callable[[], None]
) -> Iterator[Callable[[], ClusterNode]]:
    """Messages in every bucket; then ends a node without the namespace's own keys."""
    killed = list[ClusterNode]()

    def end() -> ClusterNode:
        with Client(site.url, namespace=namespace, brokers={"memory": "memory://"}) as client:
            for number in range(MESSAGES):
                client.schedule("memory:q", b"x", delay=3600, id=f"m{number}")
        home = site.master_of(keys.birth(namespace))
        node = next(each for each in site.masters if each is not home)
        killed.append(node)
        node.kill()
        hasty()
        return node

    yield end
    for node in killed:
        node.start()
    site.wait_until_healthy()


def test_what_durability_lacks_is_said_once_with_every_server_before_there_is_a_namespace(
    run: Run, site: ClusterSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DELAYBRIDGE_DURABILITY", "replicated:1")
    (line,) = [line for line in run("doctor").out.splitlines() if "0 of 1 replicas" in line]
    servers = line.removeprefix("FAIL  durability: ").partition(": 0 of 1 ")[0]
    assert {*servers.split(", ")} == {node.address for node in site.masters}


@pytest.mark.slow
def test_commands_answer_for_the_other_nodes_and_name_the_one_that_is_down(
    run: Run, down: Callable[[], ClusterNode]
) -> None:
    node = down()
    listed = run("--json", "bucket", "ls")
    lost = [row for row in listed.objects if row["unseen"]]
    assert listed.code == 6
    assert {row["node"] for row in lost} == {node.address}
    numbers = [row["bucket"] for row in lost]
    assert len(lost) in (5, 6)
    named = f"{node.address} does not answer, its buckets {', '.join(map(str, numbers))}"
    text = run("bucket", "ls")
    assert "NODE" in text.out and text.out.count("?") >= len(lost) and named in text.err
    stats = run("--json", "stats")
    assert (stats.code, stats.objects[0]["buckets_unseen"]) == (6, len(lost))
    assert 0 < stats.objects[0]["delayed"] < MESSAGES
    assert stats.objects[0]["buckets_unowned"] == 16 - len(lost)
    page = run("--json", "message", "ls")
    assert page.code == 6 and named in run("message", "ls").err
    assert {row["bucket"] for row in page.objects} == {*range(16)} - {*numbers}
    assert named in run("worker", "ls").err
    health = run("--json", "health")
    assert health.out, health.err
    assert (health.code, health.objects[0]["unseen"]) == (1, numbers)
    assert any(named in fault for fault in health.objects[0]["faults"])


def test_without_the_namespaces_own_node_the_error_names_it(
    run: Run, site: ClusterSite, namespace: str, hasty: Callable[[], None]
) -> None:
    run("stats")
    home = site.master_of(keys.birth(namespace))
    home.kill()
    hasty()
    try:
        got = run("stats")
        assert got.code == 5
        assert home.address in got.err
        failed = texts(run("--json", "doctor"), "fail")
        assert [t for t in failed if t.startswith(f"namespace: {home.address} has the record")]
        assert not [t for t in failed if t.startswith(("damage", "rights"))]
    finally:
        home.start()
        site.wait_until_healthy()


def test_a_scrape_counts_the_other_nodes_and_sums_their_memory(
    site: ClusterSite, namespace: str, down: Callable[[], ClusterNode]
) -> None:
    node = down()
    reader = Reader(site.url, namespace)
    found = reader.read([*range(16)]).gauges
    reader.close()
    assert found is not None and len(found.unseen) in (5, 6)
    assert len(found.held) == 16 - len(found.unseen)
    living = [each.info("memory")["used_memory"] for each in site.nodes if each is not node]
    assert int(found.memory["used_memory"]) == pytest.approx(sum(living), rel=0.5)


def texts(got: Result, level: str) -> list[str]:
    return [f"{x['about']}: {x['text']}" for x in got.objects if x["level"] == level]


@pytest.mark.usefixtures("stall")  # it compares clocks that are read one after the other
def test_doctor_shows_every_node_and_what_is_wrong_with_the_slots(
    run: Run, site: ClusterSite, namespace: str
) -> None:
    first, second, third = site.masters
    key = next(key for key in map(str, count()) if site.master_of(key) is second)
    second.client.set(key, bytes(1_000_000))  # rows that are equal are shown as one
    well = run("--json", "doctor")
    assert [t for t in texts(well, "ok") if "Cluster of 3 masters" in t]
    assert [t for t in texts(well, "ok") if f"redis {second.address}: redis 7" in t]
    assert [t for t in texts(well, "ok") if "clocks are within" in t]
    assert [t for t in texts(well, "warn") if t.startswith("redis: has no replica")]
    assert [t for t in texts(well, "warn") if t.startswith("cluster:")] == []
    slot = site.slots_of(first)[7]
    site.begin_move([slot], first, second)
    third.client.config_set("cluster-require-full-coverage", "yes")
    odd = texts(run("--json", "doctor"), "warn")
    assert [t for t in odd if f"half-moved ({slot})" in t and "--cluster fix" in t]
    assert [t for t in odd if "without a replica" in t and "stops all" in t]
    third.client.config_set("cluster-require-full-coverage", "no")
    site.end_move([slot], first, second)
    site.reshard([slot], first)
    site.wait_until_healthy()


def test_doctor_names_a_node_that_is_down_and_checks_the_others(
    run: Run, down: Callable[[], ClusterNode]
) -> None:
    node = down()
    got = run("--json", "doctor")
    assert got.code == 1
    (fault,) = [t for t in texts(got, "fail") if t.startswith(f"redis {node.address}: does not")]
    assert "its buckets wait" in fault and "Start it again" in fault
    assert [t for t in texts(got, "ok") if "maxmemory-policy noeviction" in t]
    assert [t for t in texts(got, "fail") if t.startswith("redis: ") and node.address in t]


def test_doctor_on_sentinels_and_when_too_few_are_left(
    run: Run, namespace: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with SentinelSite(replicas=1) as site:
        asked = runner(["--redis", site.url, "--namespace", namespace], capsys, monkeypatch)
        well = texts(asked("--json", "doctor"), "ok")
        assert [t for t in well if "3 of 3 answer" in t and "quorum 2" in t]
        assert [t for t in well if f"master 127.0.0.1:{site.master.port}" in t]
        for sentinel in site.sentinels[1:]:
            sentinel.kill()
        few = asked("--json", "doctor")
        assert [t for t in texts(few, "fail") if "1 of 3 answer" in t and "2 are needed" in t]
        assert sum("does not answer" in t for t in texts(few, "warn")) == 2


def test_a_clock_that_is_off_is_named() -> None:
    found = [Inspected(f"h:{n}", {}, 10**15 + us, "") for n, us in enumerate((0, 1_500_000, 800))]
    (warning,) = clocks(found)
    assert (warning.level, "h:1 is 1.5 s" in warning.what) == ("WARN", True)


def test_a_client_is_not_given_half_a_page(
    site: ClusterSite, namespace: str, down: Callable[[], ClusterNode]
) -> None:
    down()
    with Client(site.url, namespace=namespace, timeout_s=TIMEOUT_S) as client:
        with pytest.raises(StoreUnavailable):
            client.pending()
