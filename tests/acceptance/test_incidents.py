"""An operator's drill: `health` finds each incident, `doctor` has its remedy, and that mends it."""

from __future__ import annotations

import signal
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

import pika
import pytest
import redis

from delaybridge.store.protocol import keys
from tests.rigs.broker_rabbitmq import ManagedNode, managed_node
from tests.rigs.operator_shell import OperatorShell
from tests.rigs.waiting import until
from tests.servers.process import LOOPBACK, free_port
from tests.servers.redis import RedisServer

Site = Callable[..., OperatorShell]


@pytest.fixture
def node(rabbitmq_url: str) -> ManagedNode:
    """The broker. `rabbitmq_url` skips the test if no RabbitMQ is available."""
    return managed_node().start()


@pytest.fixture
def name() -> str:
    return uuid.uuid4().hex[:12]


def settings(namespace: str, redis_url: str, **brokers: str) -> list[str]:
    """A lease of three seconds, and retries within a second, so that nothing takes long."""
    return [
        f'namespace = "{namespace}"',
        *("[redis]", f'url = "{redis_url}"', "timeout_s = 2.0"),
        *("[lease]", "ttl_ms = 3000", "renew_ms = 600"),
        *("[retry]", "base_ms = 200", "max_ms = 1000"),
        *("[brokers]", *(f'{name} = "{url}"' for name, url in brokers.items())),
    ]


@pytest.fixture
def site(tmp_path: Path, node: ManagedNode) -> Iterator[Site]:
    with ExitStack() as stack:

        def make(*lines: str) -> OperatorShell:
            port = str(urlsplit(node.management).port)
            shell = OperatorShell(tmp_path, *lines, RABBITMQADMIN_TARGET_PORT=port)
            shell.install(node)
            return stack.enter_context(shell)

        yield make


def test_no_worker_and_one_that_hangs(
    site: Site, node: ManagedNode, redis_url: str, namespace: str
) -> None:
    shell = site(*settings(namespace, redis_url, rabbitmq=node.url))
    shell.send("rabbitmq:/any", "1h")
    shell.becomes_red("bucket_without_worker")
    shell.follow("bucket_without_worker")
    shell.becomes_green()
    shell.signal(signal.SIGSTOP)
    found = shell.becomes_red("bucket_without_worker", "worker_silent")
    assert "stopped announcing itself" in found["worker_silent"]["text"]
    shell.follow("bucket_without_worker")
    notes = shell.becomes_green()  # another one has its buckets
    assert "killed, or hung" in notes["worker_silent"]["text"]
    assert "killed, or hung" in shell.doctor()["worker_silent"][0]["text"]
    assert shell.run("delaybridge worker ls").code == 0
    shell.signal(signal.SIGCONT, 0)
    until(lambda: "worker_silent" not in shell.health()[1], "it is back", interval_s=0.5)


@pytest.mark.slow  # it waits for the thresholds of `health` six times
def test_destinations_that_take_nothing(
    site: Site, node: ManagedNode, redis_url: str, namespace: str, name: str
) -> None:
    shell = site(*settings(namespace, redis_url, rabbitmq=node.url))
    shell.start("delaybridge scan")
    with pika.BlockingConnection(pika.URLParameters(node.url)) as connection:
        channel = connection.channel()
        channel.exchange_declare(name, "topic")
        channel.queue_declare(name, exclusive=True)
        channel.queue_bind(name, name, "#")
        shell.send(f"rabbitmq:{name}/paid")
        arrived = lambda: channel.basic_get(name, auto_ack=True)[2]  # noqa: E731
        assert until(arrived, "a message arrives") == b"x"
        channel.exchange_delete(name)
        shell.send(f"rabbitmq:{name}/paid")
        found = shell.becomes_red("exchange_missing")["exchange_missing"]["text"]
        assert f"no exchange '{name}' in vhost '/'" in found
        listed = shell.run("delaybridge destination ls").out.splitlines()
        assert all(" ok " not in line for line in listed if name in line), listed
        shell.follow("exchange_missing")
        found = shell.becomes_red("unroutable")["unroutable"]["text"]
        assert "no queue is bound with key 'paid'" in found
        shell.follow("unroutable")
        shell.becomes_green()
        arrived = lambda: channel.basic_get(f"{name}.paid", auto_ack=True)[2]  # noqa: E731
        assert until(arrived, "the message arrives") == b"x"
        channel.queue_delete(f"{name}.paid")
        channel.exchange_delete(name)
        shell.send(f"rabbitmq:/{name}-2")
        assert f"named '{name}-2'" in shell.becomes_red("queue_missing")["queue_missing"]["text"]
        shell.follow("queue_missing")
        shell.becomes_green()
        # What an operator has paused is no fault, however long; after a day it has a remedy.
        place = f"rabbitmq:/{name}-2"
        assert shell.run(f"delaybridge destination pause {place} --new").code == 0
        shell.send(place)
        code, notes = shell.health()
        assert code == 0 and not notes["destination_paused"]["remedy"]
        with redis.Redis.from_url(redis_url) as store:
            rules = keys.destinations(namespace)
            assert store.hset(rules, place, '{"paused": true, "paused_ms": 1}') == 0
        shell.follow("destination_paused")
        assert "destination_paused" not in shell.becomes_green()
        until(
            lambda: channel.queue_declare(f"{name}-2", passive=True).method.message_count == 2,
            "it went out",
        )
        channel.queue_delete(f"{name}-2")


def test_brokers_that_refuse_or_are_none(
    site: Site, node: ManagedNode, redis_url: str, namespace: str, name: str
) -> None:
    secret = "…Zr7qK2mVx9TbWc4P"[1:]
    wrong = {
        "refuses": node.url.replace(":guest@", f":{secret}@"),
        "stranger": f"amqp://guest:guest@{LOOPBACK}:{urlsplit(redis_url).port}/%2F",
        "away": f"amqp://guest:guest@{LOOPBACK}:{free_port()}/%2F",
    }
    shell = site(*settings(namespace, redis_url, **wrong))
    shell.start("delaybridge scan")
    for broker in wrong:
        shell.send(f"{broker}:/{name}")
    shell.becomes_red("broker_refuses_login", "broker_unavailable")
    said = shell.run("delaybridge health").out
    reasons = ("the broker refused user guest", "Redis answers at", "Connection refused")
    until(lambda: all(each in shell.run("delaybridge health").out for each in reasons), said)
    text = shell.run("delaybridge doctor").out
    for broker, reason in zip(wrong, reasons, strict=True):
        (line,) = [line for line in text.splitlines() if f"broker {broker}: " in line][-1:]
        assert line.startswith("FAIL") and reason in line, text
    assert secret not in text + said and secret not in (shell.folder / "0.log").read_text()
    shell.signal(signal.SIGTERM)
    shell.write(*settings(namespace, redis_url, **dict.fromkeys(wrong, node.url)))
    shell.start("delaybridge scan")
    with pika.BlockingConnection(pika.URLParameters(node.url)) as connection:
        channel = connection.channel()
        channel.queue_declare(name)
        shell.becomes_green()
        channel.queue_delete(name)
    text = shell.run("delaybridge doctor").out  # as the remedy says
    assert "FAIL" not in text, [line for line in text.splitlines() if line.startswith("FAIL")]


def test_a_redis_that_is_none_that_evicts_and_that_is_full(
    site: Site, node: ManagedNode, namespace: str, name: str
) -> None:
    with RedisServer(["--maxmemory-policy", "allkeys-lru"]) as server:
        of_rabbitmq = f"redis://{LOOPBACK}:{node.port}/0"
        shell = site(*settings(namespace, of_rabbitmq, rabbitmq=node.url))
        said = shell.run("delaybridge health")
        assert said.code == 5 and "RabbitMQ answers there, not Redis: check redis.url" in said.err
        assert "RabbitMQ answers there" in shell.doctor()["store_unreachable"][0]["text"]
        source = ["[ingest]", f'exchanges = ["rabbitmq:{name}.delay=amq.fanout"]']
        shell.write(*settings(namespace, server.url, rabbitmq=node.url), *source)
        assert shell.run("delaybridge health").code != 0
        shell.follow("store_evicts")
        shell.follow("store_not_persistent")
        shell.start("delaybridge scan --name alone")
        shell.becomes_red("source_unread")
        shell.follow("source_unread")
        shell.becomes_green()
        with redis.Redis.from_url(server.url) as other:
            other.setrange("another program", 10_000_000, "x")
            used = other.info("memory")["used_memory"]
            other.config_set("maxmemory", int(used / 0.98))
        shell.becomes_red("store_full")
        shell.follow("store_full")
        shell.becomes_green()
    with pika.BlockingConnection(pika.URLParameters(node.url)) as connection:
        connection.channel().exchange_delete(f"{name}.delay")
