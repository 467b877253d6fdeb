"""Delay topics of a real Kafka: what arrives, what cancels, which topics are read."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from aiokafka.partitioner import murmur2
from confluent_kafka import Producer

from delaybridge import AsyncClient
from tests.rigs.command_line import Run
from tests.rigs.crew import PATIENT_PROCESS
from tests.rigs.fleet import Process
from tests.rigs.ingest import Entrance, MakeEntrance, announced
from tests.rigs.ingest_kafka import Kafka, until_state
from tests.rigs.waiting import DEADLINE_S, until_async

SECOND = [("delaybridge-delay", b"1s")]
HOUR = [("delaybridge-delay", b"1h")]


@pytest.fixture
def entrance_url(watched_kafka_url: str) -> str:
    return watched_kafka_url


class TestWhatArrives:
    async def test_records_arrive_on_time_as_they_were(
        self, entrance: Entrance, kafka: Kafka, namespace: str
    ) -> None:
        delay, target = await kafka.pair(namespace)
        pairs = [("b", b"1"), ("a", None), ("b", b""), ("b", b"\xff\x00"), ("é", "€".encode())]
        given: list[tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]]]] = [
            (b"\xffkey", b"\x00body\xff", pairs),
            (None, b"no key", [("traceparent", b"00-1")]),
            (b"", b"", []),
            (b"k", None, [("a", b"kept")]),
            (b"k2", b"\x00\x00\x00\x00\x07avro", []),  # K-32
        ]
        await kafka.send_many(delay, given, partition=0)
        entrance.ingest("kafka")
        entrance.scan()
        at_once = await kafka.take(target, 5)
        sent_ms = time.time_ns() // 1_000_000
        await kafka.send_many(delay, [(k, v, [*h, *SECOND]) for k, v, h in given], partition=0)
        later = (await kafka.take(target, 10))[5:]
        for half in (at_once, later):
            assert sorted(map(repr, (r.given for r in half))) == sorted(map(repr, given))
        for record in later:
            due_ms = int(record.own["delaybridge-due-ms"])
            assert due_ms >= sent_ms + 1000
            assert record.stamp_ms >= due_ms
            assert record.own["delaybridge-attempt"] == "1"
        shown = await announced(entrance, delay)
        assert (shown.state, shown.target) == ("reading", f"kafka:{target}")

    async def test_a_route_may_use_other_names(
        self, make_entrance: MakeEntrance, kafka: Kafka, namespace: str
    ) -> None:
        come, go = await kafka.topic(f"{namespace}-in"), await kafka.topic(f"{namespace}-out")
        entrance = make_entrance(topics=[f"kafka:{come}={go}"])
        await kafka.send(come, b"routed", [("delaybridge-delay", b"200")])
        entrance.ingest("kafka")
        entrance.scan()
        (record,) = await kafka.take(go, 1)
        assert record.given == (None, b"routed", [])

    async def test_records_of_an_aborted_transaction_are_not_read(
        self, entrance: Entrance, kafka: Kafka, namespace: str
    ) -> None:  # K-18
        delay, target = await kafka.pair(namespace)

        def transact() -> None:
            producer = Producer({**kafka.settings, "transactional.id": namespace})
            producer.init_transactions(DEADLINE_S)
            for value, end in (
                (b"aborted", producer.abort_transaction),
                (b"committed", producer.commit_transaction),
            ):
                producer.begin_transaction()
                producer.produce(delay, value)
                producer.flush(DEADLINE_S)
                end(DEADLINE_S)

        await kafka.do(transact)
        entrance.ingest("kafka")
        entrance.scan()
        (record,) = await kafka.take(target, 1)
        assert record.value == b"committed"

    @pytest.mark.parametrize("keep", [False, True], ids=["by key", "kept"])
    async def test_the_partition_is_chosen_by_key_or_kept(
        self, make_entrance: MakeEntrance, kafka: Kafka, namespace: str, keep: bool
    ) -> None:
        url = f"{kafka.url}&partitioner=murmur2_random"
        entrance = make_entrance(url=url, keep_partition=keep)
        delay, target = await kafka.pair(namespace, partitions=5)
        keys = [b"key-%d" % n for n in range(40)]
        for partition in range(5):
            await kafka.send_many(
                delay, [(key, b"", []) for key in keys[partition::5]], partition=partition
            )
        entrance.ingest("kafka")
        entrance.scan()
        found = {r.key: r.partition for r in await kafka.take(target, 40)}
        as_java = {key: (murmur2(key) & 0x7FFFFFFF) % 5 for key in keys}
        as_read = {key: number % 5 for number, key in enumerate(keys)}
        assert found == (as_read if keep else as_java)


class TestCancelling:
    async def test_a_header_and_a_tombstone_cancel(
        self, entrance: Entrance, kafka: Kafka, namespace: str
    ) -> None:
        delay, target = await kafka.pair(namespace)
        for id in (b"a", b"b", b"c"):
            await kafka.send(delay, b"body", [*HOUR, ("delaybridge-id", id)], key=id)
        entrance.ingest("kafka")
        entrance.scan()
        await entrance.until_delayed(3)
        await kafka.send(
            delay, b"", [("delaybridge-id", b"a"), ("delaybridge-cancel", b"true")], key=b"a"
        )
        await entrance.until_delayed(2)
        await kafka.send(delay, None, key=b"b")
        await entrance.until_delayed(1)
        # a null value that cancels nothing is a message, also right before another cancel
        cancel = [("delaybridge-id", b"c"), ("delaybridge-cancel", b"true")]
        await kafka.send_many(delay, [(b"no %d" % n, None, []) for n in range(8)])
        await kafka.send_many(delay, [(b"n", None, []), (b"c", b"", cancel), (b"m", None, [])])
        await entrance.until_delayed(0)
        found = {r.key: r.value for r in await kafka.take(target, 10)}
        assert found == dict.fromkeys((*(b"no %d" % n for n in range(8)), b"n", b"m"))

    async def test_records_in_etf1_s_dialect_schedule_replace_and_cancel(
        self, make_entrance: MakeEntrance, kafka: Kafka, namespace: str
    ) -> None:
        entrance = make_entrance(destinations=[f"kafka:{namespace}-*"])
        delay, _ = await kafka.pair(namespace)
        target = await kafka.topic(f"{namespace}-elsewhere", 3)

        def schedule(at_s: int, *more: tuple[str, bytes | None]) -> list[tuple[str, bytes | None]]:
            return [
                *more,
                ("scheduler-epoch", b"%d" % at_s),
                ("scheduler-target-topic", target.encode()),
                ("scheduler-target-key", b"its key"),
            ]

        now_s = int(time.time())
        far, near = schedule(now_s + 3600), schedule(now_s + 2, ("own", b"\xff"))
        # video-1 is replaced, video-2 and video-3 are cancelled
        for key in (b"video-1", b"video-2", b"video-3"):
            await kafka.send(delay, b"first", far, key=key, timestamp=1_700_000_000_999)
        entrance.ingest("kafka")
        entrance.scan()
        await entrance.until_delayed(3)
        await kafka.send(delay, b"second", near, key=b"video-1", timestamp=1_700_000_000_999)
        await kafka.send(delay, None, near, key=b"video-2")
        await kafka.send(delay, None, key=b"video-3")
        (record,) = await kafka.take(target, 1)
        assert record.given == (
            b"its key",
            b"second",
            [
                *near,
                ("scheduler-timestamp", b"1700000000"),
                ("scheduler-key", b"video-1"),
                ("scheduler-topic", delay.encode()),
            ],
        )
        assert record.id == "video-1"
        assert record.own["delaybridge-due-ms"] == str((now_s + 2) * 1000)
        assert record.stamp_ms >= (now_s + 2) * 1000
        await entrance.until_delayed(0)


class TestStates:
    async def test_a_pattern_without_topics_and_a_process_without_partitions_are_idle(
        self, make_entrance: MakeEntrance, kafka: Kafka, namespace: str
    ) -> None:
        entrance, pattern = make_entrance(), f"{namespace}-none*.delay"
        later = f"{namespace}-later.delay"
        delay, _ = await kafka.pair(namespace)
        first = entrance.ingest("kafka")
        await until_state(entrance, delay, "reading")
        other = make_entrance(topics=[delay, pattern, later])
        other.ingest("kafka")
        await until_state(other, delay, "idle: other processes read it")
        await until_state(other, pattern, "idle: no such topic exists yet")
        await until_state(other, later, f"{later}: UNKNOWN_TOPIC_OR_PART ")
        await entrance.stop(first)
        await until_state(other, delay, "reading")


# no topics named


async def test_without_topics_nothing_is_read_and_those_are_named_that_were_until_now(
    kafka: Kafka, run: Run, namespace: str
) -> None:
    first = await kafka.topic(f"-{namespace}.delay")  # sorts before those of other tests
    other = await kafka.topic(f"-{namespace}")
    refused = await kafka.do(lambda: run("--json", "--broker", kafka.url, "ingest", "kafka"))
    assert (refused.code, refused.out) == (2, "")
    assert (refused.error["code"], refused.error["field"]) == ("config", "ingest.topics")
    assert first in refused.error["message"]
    assert f"{other}," not in refused.error["message"]


async def test_a_worker_without_topics_to_ingest_says_so_once_and_works(
    kafka: Kafka, redis_url: str, namespace: str, tmp_path: Path
) -> None:
    command = [sys.executable, "-m", "delaybridge", "--redis", redis_url, "--namespace", namespace]
    command += ["--broker", kafka.url, "scan", "--with-ingest"]
    process = Process("w", command, PATIENT_PROCESS | os.environ, tmp_path / "w.log")
    try:
        async with AsyncClient(redis_url, namespace=namespace) as client:
            await client.schedule("pull:t", b"", delay=0)
            await until_async(lambda: client.topics.receive("t"), "the worker works")
            assert (await client.stats()).ingests == []
        process.signal(signal.SIGTERM)
        assert await kafka.do(process.wait) == 0
        assert process.log.count("ingest.topics") == 1
    finally:
        process.close()


# changed settings


@pytest.mark.slow
async def test_delay_topics_are_added_and_removed_by_sighup(
    kafka: Kafka, redis_url: str, namespace: str, tmp_path: Path
) -> None:
    (first, _), (second, _) = await kafka.pair(namespace), await kafka.pair(namespace)
    config = tmp_path / "settings.toml"

    def write(*topics: str) -> None:
        broker = f"[brokers]\nkafka = '{kafka.url}'\n"
        config.write_text(f"{broker}[ingest]\ngroup = '{namespace}'\ntopics = {[*topics]}\n")

    async def read() -> set[str]:
        """The topics that are read."""
        sources = [each for ingest in (await client.stats()).ingests for each in ingest.sources]
        return {each.source.partition(":")[2] for each in sources if each.state == "reading"}

    async def is_read(*topics: str) -> bool:
        return await read() == {*topics}

    async def are_stored(count: int) -> bool:
        return (await client.stats()).delayed == count

    async def until(condition: Callable[[], Any], what: str) -> None:
        await until_async(condition, what)

    write(first)
    command = [sys.executable, "-m", "delaybridge", "--redis", redis_url, "--namespace", namespace]
    command += ["--config", str(config), "scan", "--with-ingest"]
    process = Process("w", command, PATIENT_PROCESS | os.environ, tmp_path / "w.log")
    try:
        async with AsyncClient(redis_url, namespace=namespace) as client:
            await until(lambda: is_read(first), "the first is read")
            write(first, second)
            process.signal(signal.SIGHUP)
            await kafka.send_many(first, [(None, b"%d" % n, HOUR) for n in range(500)])
            await kafka.send(second, b"500", HOUR)
            await until(lambda: is_read(first, second), "the second, too")
            await until(lambda: are_stored(501), "all are stored")

            write(f"{first}={second}", f"{second}={first}")
            process.signal(signal.SIGHUP)
            await until(lambda: "reload_refused" in process.log, "a loop is refused")
            await kafka.send(first, b"501", HOUR)
            await until(lambda: are_stored(502), "the first is read on")

            write(second)
            process.signal(signal.SIGHUP)
            await until(lambda: is_read(second), "the first is read no more")
            await kafka.send(first, b"left in the topic", HOUR)
            await kafka.send(second, b"502", HOUR)
            await until(lambda: are_stored(503), "the second is")
            bodies = {int(each.body or b"") for each in (await client.pending(limit=1000)).items}
        assert bodies == {*range(503)}
        assert "lease_released" not in process.log
        process.signal(signal.SIGTERM)
        assert await asyncio.to_thread(process.wait) == 0
    finally:
        process.close()
