"""The servers are what they say, are private, and leave nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import confluent_kafka
import pika
import psutil
import pytest
import redis

from tests.integration.docker_engine import FakeEngine
from tests.servers.kafka import KafkaNode, cached_libs
from tests.servers.process import ServerProcess, accepts, members
from tests.servers.rabbitmq import RabbitMQNode, built_root
from tests.servers.redis import RedisServer
from tests.servers.redis import container as redis_container
from tests.waiting import wait_until

LOOPBACK = {"127.0.0.1", "::1", "::ffff:127.0.0.1"}
DEADLINE_S = 20.0

PRIVATE = [
    RedisServer,
    pytest.param(
        RabbitMQNode, marks=pytest.mark.skipif(built_root() is None, reason="no private RabbitMQ")
    ),
    pytest.param(
        KafkaNode, marks=pytest.mark.skipif(cached_libs() is None, reason="no private Kafka")
    ),
]


def test_every_redis_answers(any_redis_url: str) -> None:
    with redis.Redis.from_url(any_redis_url) as client:
        assert client.ping()


def test_redis_has_the_version_it_says_and_keeps_what_it_is_told_to_keep() -> None:
    with RedisServer(["--appendonly", "yes"]) as server:
        with redis.Redis.from_url(server.url) as client:
            known = client.info("server")
            assert server.version in (known.get("valkey_version"), known["redis_version"])
            client.set("kept", "yes")
        server.kill()
        server.start()
        with redis.Redis.from_url(server.url) as client:
            assert client.get("kept") == b"yes"


def test_rabbitmq_gives_back_what_it_was_given(rabbitmq_url: str, namespace: str) -> None:
    connection = pika.BlockingConnection(pika.URLParameters(rabbitmq_url))
    channel = connection.channel()
    channel.queue_declare(namespace, exclusive=True)
    channel.basic_publish("", namespace, b"body")
    assert wait_until(lambda: channel.basic_get(namespace, auto_ack=True)[2], DEADLINE_S) == b"body"
    connection.close()


def test_kafka_gives_back_what_it_was_given(kafka_url: str, namespace: str) -> None:
    servers = {"bootstrap.servers": kafka_url.removeprefix("kafka://")}
    producer = confluent_kafka.Producer(servers)
    producer.produce(namespace, b"value", key=b"key")
    assert producer.flush(DEADLINE_S) == 0
    consumer = confluent_kafka.Consumer({**servers, "group.id": namespace})
    consumer.assign([confluent_kafka.TopicPartition(namespace, 0, 0)])
    record = consumer.poll(DEADLINE_S)
    consumer.close()
    assert (record.key(), record.value(), record.error()) == (b"key", b"value", None)


@pytest.mark.parametrize("kind", PRIVATE)
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
def test_a_private_server_ends_with_a_run_that_is_killed(
    kind: Callable[[], ServerProcess],
) -> None:
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
    wait_until(lambda: not members(int(group)), DEADLINE_S)
    assert not accepts(int(port))
    with RedisServer():  # whoever comes next removes what the dead run left
        assert not Path(folder).exists()


@pytest.mark.skipif(built_root() is None, reason="no private RabbitMQ")
@pytest.mark.timeout(120)  # starts a node twice, and rabbitmqctl three times
def test_a_rabbitmq_node_is_controlled_and_comes_back() -> None:
    with RabbitMQNode() as node:
        assert f"RabbitMQ version: {node.version}" in node.ctl("status")
        node.ctl("stop_app")
        assert not node.is_ready()
        node.ctl("start_app")
        wait_until(node.is_ready, DEADLINE_S)
        node.restart()
        assert node.is_ready()


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


def test_a_test_that_wants_its_own_node_skips_where_there_is_only_docker(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytester.makepyfile(
        """
        import pytest
        from tests.servers import kafka, rabbitmq

        pytest_plugins = ["tests.servers.plugin"]

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
    pytester.runpytest_subprocess("-q").assert_outcomes(skipped=2)
