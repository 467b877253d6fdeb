"""A producer in Java, which knows nothing of delaybridge, publishes to a delay topic."""

from __future__ import annotations

import shutil
import subprocess
import time
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.rigs.bridge import Bridge, MakeBridge, make_topic
from tests.rigs.waiting import DEADLINE_S, until
from tests.servers.kafka import cached_libs, path_libs

SOURCE = Path(__file__).parent.parent / "clients" / "java" / "Producer.java"
PARTITIONS = 5
COUNT = 100
DELAY_MS = 1500


@pytest.fixture
def java(tmp_path: Path) -> list[str]:
    """The command that runs the producer: compiled if there is a compiler, else from source."""
    libs = cached_libs() or path_libs()
    if libs is None or shutil.which("java") is None:
        pytest.skip("no Java client of Kafka: run `python -m tests.servers`")
    command = ["java", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-cp"]
    if shutil.which("javac") is None:
        return [*command, f"{libs}/*", str(SOURCE)]
    classes = tmp_path / "classes"
    compile_ = ["javac", "-cp", f"{libs}/*", "-d", str(classes), str(SOURCE)]
    subprocess.run(compile_, check=True, timeout=DEADLINE_S)
    return [*command, f"{libs}/*:{classes}", SOURCE.stem]


def bridge_of(make_bridge: MakeBridge, url: str, namespace: str) -> Bridge:
    group = {"DELAYBRIDGE_INGEST__GROUP": namespace}
    return make_bridge({"kafka": f"{url}?partitioner=murmur2_random"}, settings=group)


@pytest.mark.slow
def test_records_of_the_java_producer_arrive_later_unchanged_and_in_its_partitions(
    make_bridge: MakeBridge, java: list[str], real_kafka_url: str, namespace: str
) -> None:
    servers = real_kafka_url.removeprefix("kafka://")
    bridge = bridge_of(make_bridge, real_kafka_url, namespace)
    topics = [namespace, f"{namespace}.delay", f"{namespace}-plain"]
    admin = AdminClient({"bootstrap.servers": servers})
    for topic in topics:
        make_topic(admin, NewTopic(topic, PARTITIONS, 1))
    bridge.start_workers(1)
    bridge.start("ingest", "kafka", "--topic", f"{namespace}.delay")
    consumer = Consumer({"bootstrap.servers": servers, "group.id": f"{namespace}-check"})
    consumer.assign([TopicPartition(namespace, number, 0) for number in range(PARTITIONS)])
    before_ms = time.time_ns() // 1_000_000
    ran = subprocess.run(
        [*java, servers, f"{namespace}.delay", f"{namespace}-plain", str(COUNT), str(DELAY_MS)],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )
    assert ran.returncode == 0, ran.stderr
    chosen = dict(line.split(" ") for line in ran.stdout.splitlines())
    assert len(chosen) == COUNT
    found = []

    def receive() -> bool:
        message = consumer.poll(0.2)
        if message is not None and message.error() is None:
            found.append((message, time.time_ns() // 1_000_000))
        return len(found) == COUNT

    try:
        until(receive, "all received", interval_s=0)
    finally:
        consumer.close()
    for message, at_ms in found:
        key = message.key().decode()
        *given, id, due_ms, attempt = message.headers()
        assert message.value() == key.replace("key", "value").encode()
        assert given == [("own", b"\x00\xff"), ("nothing", None)]
        assert id[1].startswith(f"{namespace}.delay-".encode())
        assert attempt == ("delaybridge-attempt", b"1")
        assert before_ms + DELAY_MS <= int(due_ms[1]) <= at_ms
        # and it is in the partition that Java's producer would have chosen
        assert message.partition() == int(chosen[key])
    assert {message.key() for message, _ in found} == {key.encode() for key in chosen}
