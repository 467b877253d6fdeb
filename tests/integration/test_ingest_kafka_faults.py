"""Faults of delay topics, their broker and the store: nothing is lost silently."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
)

from delaybridge.ingest.kafka import consumer as kafka_consumer
from delaybridge.ingest.kafka.subscription import ELSEWHERE
from tests.rigs.crew import PATIENT_PROCESS
from tests.rigs.fleet import Process
from tests.rigs.ingest import Entrance, MakeEntrance
from tests.rigs.ingest_kafka import Kafka, source, until_state
from tests.rigs.waiting import DEADLINE_S, until
from tests.servers.kafka import KafkaNode, plain_login
from tests.servers.process import LOOPBACK, free_port
from tests.servers.redis import RedisServer

PROPERTIES = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found": "true",
}
LOGIN_PORT = free_port()
HOUR = [("delaybridge-delay", b"1h")]


@pytest.fixture(scope="module")
def node() -> Iterator[KafkaNode]:
    """A private Kafka that checks the right to read."""
    made = KafkaNode({**PROPERTIES, **plain_login("bridge", "right")})
    made.add_listener(f"LOGIN://{LOOPBACK}:{LOGIN_PORT}")
    with made:
        yield made


@pytest.fixture
def kafka(node: KafkaNode) -> Kafka:
    return Kafka(node.start().url)


@pytest.fixture
def entrance_url(kafka: Kafka) -> str:
    return kafka.url


async def bodies(entrance: Entrance) -> set[bytes | None]:
    return {message.body for message in await entrance.delayed()}


async def until_pending(entrance: Entrance, wanted: set[bytes]) -> None:
    async def look() -> bool:
        return await bodies(entrance) == wanted

    await entrance.until(look, f"{len(wanted)} messages pending")


def numbered(start: int, stop: int) -> list[tuple[None, bytes, list[tuple[str, bytes]]]]:
    return [(None, b"%d" % number, HOUR) for number in range(start, stop)]


def named(start: int, stop: int) -> set[bytes]:
    return {b"%d" % number for number in range(start, stop)}


def rule_of(topic: str) -> tuple[ResourceType, str, ResourcePatternType, str, str]:
    return ResourceType.TOPIC, topic, ResourcePatternType.LITERAL, "User:ANONYMOUS", "*"


async def deny_reading(kafka: Kafka, *topics: str) -> None:
    rights = [
        AclBinding(*rule_of(topic), operation, permission)
        for topic in topics
        for operation, permission in (
            (AclOperation.ALL, AclPermissionType.ALLOW),
            (AclOperation.READ, AclPermissionType.DENY),
        )
    ]
    made = kafka.admin.create_acls(rights).values()
    await kafka.do(lambda: [each.result(DEADLINE_S) for each in made])


async def allow_reading(kafka: Kafka, *topics: str) -> None:
    denied = [
        AclBindingFilter(*rule_of(topic), AclOperation.READ, AclPermissionType.DENY)
        for topic in topics
    ]
    gone = kafka.admin.delete_acls(denied).values()
    await kafka.do(lambda: [each.result(DEADLINE_S) for each in gone])


class TestInputThatCannotBeRead:
    async def test_records_lost_to_retention_stop_their_partition(
        self, make_entrance: MakeEntrance, kafka: Kafka, namespace: str
    ) -> None:  # K-20
        entrance = make_entrance()
        delay, _ = await kafka.pair(namespace, partitions=2)
        await kafka.send_many(delay, numbered(0, 3), partition=0)
        ingest = entrance.ingest("kafka")
        await until_pending(entrance, named(0, 3))
        await entrance.stop(ingest)
        await kafka.send_many(delay, numbered(3, 10), partition=0)
        await kafka.take_away(delay, 0, before=7)
        # that partition stops, with a reason, and the other is still read
        ingest = entrance.ingest("kafka")
        shown = await until_state(entrance, delay, f"{delay}/0: lost_input: retention")
        assert "offsets 3 to 6;" in shown.state
        assert shown.state.endswith(f"--skip-offset {delay}/0=6")
        await kafka.send_many(delay, numbered(20, 25), partition=1)
        await until_pending(entrance, named(0, 3) | named(20, 25))

        async def is_counted() -> bool:
            shown = await source(entrance, delay)
            return shown is not None and shown.lag == 3

        await entrance.until(is_counted, "the lag of the unread records")
        await entrance.stop(ingest)
        assert await kafka.committed(namespace, delay, 0) == 3
        # until an operator skips the records
        entrance = make_entrance(skip_offsets=[f"{delay}/0=6"])
        entrance.ingest("kafka")
        await until_pending(entrance, named(0, 3) | named(7, 10) | named(20, 25))
        await until_state(entrance, delay, "reading")

    async def test_a_corrupt_batch_stops_its_partition(
        self, make_entrance: MakeEntrance, kafka: Kafka, node: KafkaNode, namespace: str
    ) -> None:  # K-16
        entrance = make_entrance()
        delay, _ = await kafka.pair(namespace)
        await kafka.send_many(delay, numbered(0, 3), partition=0)
        await kafka.send_many(delay, numbered(70, 75), partition=0, linger_ms=5000)
        await kafka.send_many(delay, numbered(10, 13), partition=0)
        (segment,) = (node.folder / "data" / f"{delay}-0").glob("*.log")
        with segment.open("r+b") as log:
            at = log.read().index(b"\x0472")  # a value after its length
            log.seek(at + 1)
            log.write(b"X")
        # what comes before it is read, and nothing after it
        ingest = entrance.ingest("kafka")
        shown = await until_state(entrance, delay, f"{delay}/0: corrupt: ")
        assert "offsets 3 to 7;" in shown.state
        assert shown.state.endswith(f"--skip-offset {delay}/0=7")
        await until_pending(entrance, named(0, 3))
        await entrance.stop(ingest)
        assert await kafka.committed(namespace, delay) == 3
        # until an operator skips the records
        entrance = make_entrance(skip_offsets=[f"{delay}/0=7"])
        entrance.ingest("kafka")
        await until_pending(entrance, named(0, 3) | named(10, 13))

    @pytest.mark.slow
    async def test_reading_resumes_when_the_right_to_read_is_given_back(
        self, make_entrance: MakeEntrance, kafka: Kafka, namespace: str
    ) -> None:  # K-25
        entrance = make_entrance()
        delay, _ = await kafka.pair(namespace)
        await kafka.send_many(delay, numbered(0, 3))
        entrance.ingest("kafka")
        await until_pending(entrance, named(0, 3))
        await deny_reading(kafka, delay)
        await kafka.send_many(delay, numbered(3, 6))
        await until_state(entrance, delay, f"{delay}: TOPIC_AUTHORIZATION_FAILED")
        await allow_reading(kafka, delay)
        await until_pending(entrance, named(0, 6))
        await until_state(entrance, delay, "reading")

    @pytest.mark.slow
    async def test_a_process_that_gave_a_topic_away_no_longer_tells_its_trouble(
        self, make_entrance: MakeEntrance, kafka: Kafka, namespace: str
    ) -> None:
        entrance = make_entrance()
        topics = [await kafka.topic(f"{namespace}-{letter}.delay") for letter in "ab"]
        entrance.ingest("kafka")
        for topic in topics:
            await until_state(entrance, topic, "reading")
        await deny_reading(kafka, *topics)
        for topic in topics:
            await kafka.send(topic, b"body", HOUR)
            await until_state(entrance, topic, f"{topic}: TOPIC_AUTHORIZATION_FAILED")
        entrance.ingest("kafka")
        await entrance.until(lambda: share(kafka, namespace, [1, 1]), "a topic each")
        await allow_reading(kafka, *topics)

        async def are_well() -> bool:
            found = (await entrance.client.stats()).ingests
            states = [sorted(each.state for each in process.sources) for process in found]
            return [ELSEWHERE, "reading"] in states and all(
                state in (ELSEWHERE, "reading") for of_one in states for state in of_one
            )

        await entrance.until(are_well, "neither process tells of trouble")
        await entrance.until_delayed(2)


class TestUnavailableServers:
    async def test_reading_resumes_when_the_broker_is_back(
        self, make_entrance: MakeEntrance, kafka: Kafka, node: KafkaNode, namespace: str
    ) -> None:
        entrance = make_entrance()
        delay, _ = await kafka.pair(namespace)
        await kafka.send_many(delay, numbered(0, 3))
        entrance.ingest("kafka")
        await until_pending(entrance, named(0, 3))
        await kafka.do(node.kill)
        await until_state(entrance, delay, "kafka: ")
        await kafka.do(node.start)
        await kafka.send_many(delay, numbered(3, 6))
        await until_pending(entrance, named(0, 6))
        await until_state(entrance, delay, "reading")

    @pytest.mark.slow
    async def test_every_client_of_ingest_reads_the_password_again_when_it_is_refused(
        self, make_entrance: MakeEntrance, kafka: Kafka, namespace: str, tmp_path: Path
    ) -> None:
        file = tmp_path / "password"
        file.write_text("wrong\n")
        url = f"kafka://bridge@{LOOPBACK}:{LOGIN_PORT}?password_file={file}"
        entrance = make_entrance(url=url)
        delay, _ = await kafka.pair(namespace)
        await kafka.send_many(delay, numbered(0, 3))
        entrance.ingest("kafka")
        await until_state(entrance, f"{namespace}*.delay", "kafka: ")
        file.write_text("right\n")
        await until_pending(entrance, named(0, 3))
        await until_state(entrance, delay, "reading")

    @pytest.mark.slow
    async def test_partitions_are_given_up_at_once_if_all_is_stored(
        self,
        make_entrance: MakeEntrance,
        kafka: Kafka,
        namespace: str,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        # A member that waited as long would never get a partition.
        monkeypatch.setattr(kafka_consumer, "GIVE_UP_S", 600.0)
        entrance = make_entrance()
        delay, _ = await kafka.pair(namespace, partitions=4)
        await kafka.send_many(delay, numbered(0, 40))
        entrance.ingest("kafka")
        await until_pending(entrance, named(0, 40))
        entrance.ingest("kafka")
        await entrance.until(lambda: share(kafka, namespace, [2, 2]), "a share each")

    async def test_nothing_is_lost_while_redis_does_not_answer(
        self,
        make_entrance: MakeEntrance,
        kafka: Kafka,
        own_redis: RedisServer,
        namespace: str,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setattr(kafka_consumer, "HAND_OVER_S", 0.5)
        entrance = make_entrance(redis=own_redis.url)
        delay, _ = await kafka.pair(namespace, partitions=4)
        await kafka.send_many(delay, numbered(0, 40))
        entrance.ingest("kafka")
        second = entrance.ingest("kafka")
        await until_pending(entrance, named(0, 40))
        await entrance.until(lambda: share(kafka, namespace, [2, 2]), "a share each")
        await kafka.do(own_redis.kill)
        for start in range(40, 1000, 96):
            await kafka.send_many(delay, numbered(start, start + 96))
        # it stops consuming and stays in the group; records that another member leaves
        # meanwhile are neither skipped nor lost
        await entrance.kill(second)
        await entrance.until(lambda: share(kafka, namespace, [4]), "one has all")
        committed = [await kafka.committed(namespace, delay, number) for number in range(4)]
        assert sum(max(offset, 0) for offset in committed) <= 40
        await kafka.do(own_redis.start)
        await until_pending(entrance, named(0, 1000))
        assert await kafka.members(namespace) == [4]

    @pytest.mark.slow
    async def test_nothing_is_lost_while_redis_is_full(
        self, make_entrance: MakeEntrance, kafka: Kafka, own_redis: RedisServer, namespace: str
    ) -> None:
        entrance = make_entrance(redis=own_redis.url)
        delay, _ = await kafka.pair(namespace)
        entrance.ingest("kafka")
        await kafka.send_many(delay, numbered(0, 10))
        await until_pending(entrance, named(0, 10))
        with redis.Redis.from_url(own_redis.url) as plain:
            plain.config_set("maxmemory", "1")
            await kafka.send_many(delay, numbered(10, 500))
            await entrance.until(
                lambda: plain.info("errorstats").get("errorstat_OOM"), "Redis refuses"
            )
            assert await bodies(entrance) == named(0, 10)
            plain.config_set("maxmemory", "0")
        await until_pending(entrance, named(0, 500))


async def test_a_process_ends_in_time_although_its_cluster_hangs(
    node: KafkaNode, kafka: Kafka, redis_url: str, namespace: str, tmp_path: Path
) -> None:
    delay, _ = await kafka.pair(namespace)
    given = {"SCAN__DRAIN_TIMEOUT_S": "1", "INGEST__TOPICS": delay, "INGEST__GROUP": namespace}
    command = [
        *(sys.executable, "-m", "delaybridge", "--redis", redis_url, "--namespace", namespace),
        *("--broker", kafka.url, "ingest", "kafka"),
    ]
    given = PATIENT_PROCESS | {f"DELAYBRIDGE_{name}": value for name, value in given.items()}
    process = Process("ingest", command, os.environ | given, tmp_path / "log")
    try:
        await kafka.send(delay, b"body", HOUR)
        await kafka.do(lambda: until(lambda: "ingested n=1" in process.log, "read"))
        node.pause()
        process.signal(signal.SIGTERM)
        assert await kafka.do(process.wait) == 0
    finally:
        node.resume()
        process.close()


async def share(kafka: Kafka, group: str, partitions: list[int]) -> bool:
    return await kafka.members(group) == partitions
