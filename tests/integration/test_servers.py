"""The servers have the stated version, are private, and leave nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
import redis

from tests.rigs.docker_engine import FakeEngine
from tests.rigs.fleet import ROOT
from tests.rigs.waiting import DEADLINE_S, until
from tests.servers import __main__ as installing
from tests.servers import kafka
from tests.servers.kafka import KafkaNode, cached_libs, path_libs
from tests.servers.process import ServerProcess, accepts, free_port, members
from tests.servers.rabbitmq import RabbitMQNode, built_root, machine_root
from tests.servers.redis import RedisServer
from tests.servers.redis import container as redis_container

LOOPBACK = {"127.0.0.1", "::1", "::ffff:127.0.0.1"}

with_rabbitmq = pytest.mark.skipif(
    not (built_root() or machine_root()), reason="no RabbitMQ here to run a node from"
)
with_kafka = pytest.mark.skipif(
    not (cached_libs() or path_libs()), reason="no Kafka here to run a node from"
)

PRIVATE = [
    RedisServer,
    pytest.param(RabbitMQNode, marks=with_rabbitmq),
    pytest.param(KafkaNode, marks=with_kafka),
]


def test_redis_has_the_version_it_says_and_keeps_its_data_with_aof() -> None:
    with RedisServer(["--appendonly", "yes"]) as server:
        with redis.Redis.from_url(server.url) as client:
            known = client.info("server")
            assert server.version in (known.get("valkey_version"), known["redis_version"])
            client.set("kept", "yes")
        server.kill()
        server.start()
        with redis.Redis.from_url(server.url) as client:
            assert client.get("kept") == b"yes"


def test_a_port_is_given_to_one_process_only() -> None:
    """Although nobody listens there yet."""
    code = "import sys; from tests.servers.process import take_port"
    code += "; print(take_port(int(sys.argv[1])))"
    command = [sys.executable, "-c", code, str(free_port())]
    printed = subprocess.check_output(command, text=True, timeout=DEADLINE_S, cwd=ROOT)
    assert printed == "False\n"


@pytest.mark.parametrize("kind", PRIVATE)
@pytest.mark.slow_with("RabbitMQNode", "KafkaNode")
def test_a_private_server_listens_on_loopback_only_and_is_gone_when_closed(
    kind: Callable[[], ServerProcess],
) -> None:
    with kind() as server:
        group = server.pid
        ids = set(members(group))
        listening = [
            connection
            for connection in psutil.net_connections("inet")
            if connection.pid in ids and connection.status == psutil.CONN_LISTEN
        ]
        assert server.port in {connection.laddr.port for connection in listening}
        assert {connection.laddr.ip for connection in listening} <= LOOPBACK
    assert not members(group)
    assert not any(accepts(connection.laddr.port) for connection in listening)
    assert not server.folder.exists()


@pytest.mark.parametrize("kind", PRIVATE)
@pytest.mark.slow_with("RabbitMQNode", "KafkaNode")
def test_a_private_server_ends_with_a_run_that_is_killed(kind: Callable[[], ServerProcess]) -> None:
    module, name = kind.__module__, kind.__name__
    program = (
        f"import sys; from {module} import {name}; server = {name}().start();"
        "print(server.pid, server.port, server.folder, flush=True); sys.stdin.read()"
    )
    run = subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with run:
        assert run.stdout is not None
        group, port, folder = run.stdout.readline().split()
        assert accepts(int(port))
        os.kill(run.pid, signal.SIGKILL)
        run.wait(DEADLINE_S)
    until(lambda: not members(int(group)))
    assert not accepts(int(port))
    with RedisServer():  # the next run removes the folders that the dead one left
        assert not Path(folder).exists()


def test_a_container_listens_where_it_is_asked_to_and_is_removed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with FakeEngine() as engine:
        monkeypatch.setenv("DOCKER_HOST", engine.host)
        monkeypatch.setenv("TESTCONTAINERS_RYUK_DISABLED", "true")
        with redis_container() as container, redis.Redis.from_url(container.url) as client:
            assert client.ping()
        ((image, bindings),) = engine.asked
        assert image == container.image
        assert [*bindings.values()] == [[{"HostIp": "127.0.0.1", "HostPort": str(container.port)}]]
        assert engine.removed == 1
    assert not accepts(container.port)


@pytest.mark.parametrize(
    ("require", "outcome"),
    [("", {"skipped": 2}), ("redis", {"skipped": 2}), ("rabbitmq", {"skipped": 1, "errors": 1})],
)
@pytest.mark.slow_with("rabbitmq*", "-*")
def test_a_test_that_wants_its_own_node_skips_where_there_is_only_docker(
    pytester: pytest.Pytester,
    monkeypatch: pytest.MonkeyPatch,
    require: str,
    outcome: dict[str, int],
) -> None:
    pytester.makepyfile(
        """
        import pytest
        from tests.servers import kafka, rabbitmq

        @pytest.fixture
        def node(monkeypatch):
            monkeypatch.setattr(rabbitmq, "built_root", lambda: None)
            monkeypatch.setattr(rabbitmq, "machine_root", lambda: None)
            return rabbitmq.RabbitMQNode()

        def test_in_a_fixture(node):
            pass

        def test_in_itself(monkeypatch):
            monkeypatch.setattr(kafka, "cached_libs", lambda: None)
            monkeypatch.setattr(kafka, "path_libs", lambda: None)
            kafka.KafkaNode()
        """
    )
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    monkeypatch.setenv("DELAYBRIDGE_TEST_RABBITMQ_URL", "amqp://127.0.0.1:1")
    run = pytester.runpytest_subprocess("-p", "tests.servers.plugin", f"--require={require}")
    run.assert_outcomes(**outcome)


def test_a_kafka_on_path_is_not_used_without_java(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    for folder in ("bin", "libs"):
        (tmp_path / folder).mkdir()
    (tmp_path / "bin" / "kafka-server-start.sh").touch(0o700)
    assert kafka.path_libs() is None
    (tmp_path / "bin" / "java").touch(0o700)
    assert kafka.path_libs() == tmp_path / "libs"


def test_a_missing_server_is_reported_with_the_remedy(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(installing.SERVERS["rabbitmq"], "install", lambda: None)
    monkeypatch.setitem(installing.SOURCES, "rabbitmq", lambda: iter(()))
    installing.main(["rabbitmq"])
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("rabbitmq: none;")
    assert "as root on Debian" in second and "DELAYBRIDGE_TEST_RABBITMQ_URL" in second
