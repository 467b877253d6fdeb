"""A URL that does not fit the servers behind it: one line, at once, that says what to give."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.rigs.broker_redis import redis_with_tls
from tests.rigs.command_line import Result, Run, runner
from tests.rigs.crew import PATIENT_PROCESS
from tests.rigs.waiting import until
from tests.servers.cluster import ClusterSite
from tests.servers.process import LOOPBACK, free_port
from tests.servers.redis_node import Login
from tests.servers.sentinel import SERVICE, SentinelNode, SentinelSite


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    for name, value in PATIENT_PROCESS.items():
        monkeypatch.setenv(name, value)
    return runner([], capsys, monkeypatch)


def check(run: Run, url: str, *words: str) -> None:
    for command in ("stats", "doctor"):

        def asked(command: str = command) -> Result | None:  # a starved process may have no time to
            got = run("--redis", url, command)
            return None if " was asked yet" in got.out + got.err else got

        got = until(asked, "a server is asked")
        assert got is not None
        said = [line for line in (got.out + got.err).splitlines() if "redis:" in line]
        assert got.code == (5 if command == "stats" else 1)
        assert [word for word in words if word not in said[0]] == [], said


def test_a_plain_url_of_a_cluster_or_a_sentinel(
    run: Run, cluster_site: ClusterSite, sentinel_site: SentinelSite
) -> None:
    for node in cluster_site.masters:
        check(run, f"redis://{node.address}", "one of a Redis Cluster", "redis+cluster://")
    home = cluster_site.master_of("{delaybridge}:birth")
    assert home.client.exists("{delaybridge}:birth") == 0
    plain = f"redis://{LOOPBACK}:{sentinel_site.sentinels[0].port}"
    check(run, plain, "is a Sentinel", "redis+sentinel://")


def test_a_url_of_a_cluster_or_of_sentinels_for_a_single_server(run: Run, redis_url: str) -> None:
    address = redis_url.removeprefix("redis://").partition("/")[0]
    check(run, f"redis+cluster://{address}", f"{address} is no server of a", "redis://")
    check(run, f"redis+sentinel://{address}/store", f"{address} is no Sentinel", "26379")


def test_a_wrong_service_and_no_sentinel_at_all(
    run: Run, sentinel_site: SentinelSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = sentinel_site.url.replace(f"/{SERVICE}", "/other")
    check(run, wrong, "knows no service 'other'", "sentinel monitor")
    monkeypatch.setenv("DELAYBRIDGE_REDIS__TIMEOUT_S", "0.4")  # it is asked for that long
    gone = f"{LOOPBACK}:{free_port()}"
    check(run, f"redis+sentinel://{gone}/store", f"Sentinel {gone}", "Connection refused")
    check(run, f"redis+cluster://{gone}", gone, "Connection refused")


def test_a_wrong_password_of_the_sentinels(run: Run) -> None:
    with SentinelNode(login=Login("sesame", "watch")) as sentinel:
        url = f"redis+sentinel://{LOOPBACK}:{sentinel.port}/store"
        check(run, url, f"Sentinel {LOOPBACK}:{sentinel.port}", "?sentinel_username=")
        wrong = f"{url}?sentinel_username=watch&sentinel_password=open"
        check(run, wrong, "invalid username-password", "?sentinel_username=")


def test_a_certificate_that_is_not_trusted(run: Run, tmp_path: Path) -> None:
    """Nothing was sent, and starting Redis would not help."""
    with redis_with_tls(tmp_path) as (port, authority):
        ca = f"?ssl_ca_certs={authority}"
        for host, options, what in (
            (LOOPBACK, "", "name its CA: ?ssl_ca_certs="),
            ("localhost", ca, "a name that it is for"),  # the certificate has the address alone
        ):
            url = f"rediss://{host}:{port}{options}"
            got = run("--redis", url, "schedule", "kafka:t", "x", "--in", "1h")
            assert (got.code, got.err.count("error: redis: ")) == (5, 1)
            assert "its certificate is refused: " in got.err
            assert what in got.err
            assert "start it" not in got.err
            assert "stored" not in got.err
