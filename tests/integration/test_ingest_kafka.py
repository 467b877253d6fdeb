"""Delay topics of a real Kafka: records arrive, are kept, are refused, and survive."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import redis
from aiokafka.partitioner import murmur2
from confluent_kafka import Producer

from delaybridge import AsyncClient
from delaybridge.store import keys
from delaybridge.store.ids import quarantine_ids
from tests.rigs.fleet import Process
from tests.rigs.ingest import Entrance
from tests.rigs.ingest_kafka import Kafka, produce_raw, source
from tests.rigs.waiting import until_async

MakeEntrance = Callable[..., Entrance]
SECOND = [("delaybridge-delay", b"1s")]
HOUR = [("delaybridge-delay", b"1h")]


@pytest.fixture
def kafka(watched_kafka_url: str) -> Kafka:
    return Kafka(watched_kafka_url)


@pytest.fixture
async def make_entrance(
    redis_url: str, watched_kafka_url: str, namespace: str
) -> AsyncIterator[MakeEntrance]:
    """Makes entrances that read topics beginning with this test's namespace, in their own group."""
    async with AsyncExitStack() as stack:
        made = []

        def make(
            *, url: str = watched_kafka_url, redis: str = redis_url, **ingest: Any
        ) -> Entrance:
            given = {"topics": [f"{namespace}*.delay"], "group": namespace, **ingest}
            entrance = Entrance(redis, namespace, {"kafka": url}, **given)
            made.append(entrance)
            return entrance

        yield make
        for entrance in made:
            stack.push_async_exit(entrance)


@pytest.fixture
def entrance(make_entrance: MakeEntrance) -> Entrance:
    return make_entrance()


async def is_pending(entrance: Entrance, count: int) -> None:
    async def look() -> bool:
        return len(await entrance.delayed()) == count

    await entrance.until(look, f"{count} messages pending")


async def is_quarantined(entrance: Entrance, count: int) -> None:
    async def look() -> bool:
        return len(await entrance.dead()) == count

    await entrance.until(look, f"{count} messages quarantined")


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
        sent_ms = time.time_ns() // 1_000_000
        await kafka.send_many(delay, given, partition=0)
        await kafka.send_many(delay, [(k, v, [*h, *SECOND]) for k, v, h in given], partition=0)
        entrance.ingest("kafka")
        entrance.scan()
        records = await kafka.take(target, 10)
        at_once, later = records[:5], records[5:]
        for half in (at_once, later):
            assert sorted(map(repr, (r.given for r in half))) == sorted(map(repr, given))
        for record in later:
            due_ms = int(record.own["delaybridge-due-ms"])
            assert due_ms >= sent_ms + 1000
            assert record.stamp_ms >= due_ms
            assert record.own["delaybridge-attempt"] == "1"
        shown = await source(entrance, delay)
        assert shown is not None
        assert (shown.state, shown.target) == ("reading", f"kafka:{target}")

    async def test_given_ids_are_kept_and_generated_ids_sort_by_offset(
        self, entrance: Entrance, kafka: Kafka, namespace: str
    ) -> None:
        delay, _ = await kafka.pair(namespace, partitions=2)
        many = [(None, b"%d" % n, HOUR) for n in range(300)]
        await kafka.send_many(delay, many, partition=0)
        await kafka.send(delay, b"mine", [*HOUR, ("delaybridge-id", b"my id")], partition=1)
        entrance.ingest("kafka")
        await is_pending(entrance, 301)
        by_id = {message.id: message.body for message in await entrance.delayed()}
        assert by_id.pop("my id") == b"mine"
        assert [by_id[id] for id in sorted(by_id)] == [b"%d" % n for n in range(300)]

    async def test_a_topic_created_later_is_found(
        self, entrance: Entrance, kafka: Kafka, namespace: str
    ) -> None:
        entrance.ingest("kafka")
        entrance.scan()

        async def runs() -> bool:
            return bool((await entrance.client.stats()).ingests)

        await entrance.until(runs, "the ingest process runs")
        later, target = await kafka.pair(namespace)
        await kafka.send(later, b"found")
        (record,) = await kafka.take(target, 1)
        assert record.value == b"found"

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
            producer.init_transactions(20)
            for value, end in (
                (b"aborted", producer.abort_transaction),
                (b"committed", producer.commit_transaction),
            ):
                producer.begin_transaction()
                producer.produce(delay, value)
                producer.flush(20)
                end(20)

        await kafka.do(transact)
        entrance.ingest("kafka")
        entrance.scan()
        (record,) = await kafka.take(target, 1)
        assert record.value == b"committed"

    @pytest.mark.parametrize("stamp_ms", [1, 32_503_680_000_000], ids=["1970", "3000"])
    async def test_the_record_s_own_timestamp_is_ignored(
        self, entrance: Entrance, kafka: Kafka, namespace: str, stamp_ms: int
    ) -> None:  # K-19
        delay, target = await kafka.pair(namespace)
        far = str(2**62)
        await kafka.configure(
            delay, **{"message.timestamp.after.max.ms": far, "message.timestamp.before.max.ms": far}
        )
        now_ms = time.time_ns() // 1_000_000
        await kafka.send(delay, b"body", [("delaybridge-delay", b"100ms")], timestamp=stamp_ms)
        entrance.ingest("kafka")
        entrance.scan()
        (record,) = await kafka.take(target, 1)
        assert 0 <= int(record.own["delaybridge-due-ms"]) - now_ms - 100 < 60_000
        assert record.stamp_ms >= now_ms

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
        await is_pending(entrance, 3)
        await kafka.send(
            delay, b"", [("delaybridge-id", b"a"), ("delaybridge-cancel", b"true")], key=b"a"
        )
        await is_pending(entrance, 2)
        await kafka.send(delay, None, key=b"b")
        await is_pending(entrance, 1)
        # a null value that cancels nothing is a message, also right before another cancel
        cancel = [("delaybridge-id", b"c"), ("delaybridge-cancel", b"true")]
        await kafka.send_many(delay, [(b"no %d" % n, None, []) for n in range(8)])
        await kafka.send_many(delay, [(b"n", None, []), (b"c", b"", cancel), (b"m", None, [])])
        await is_pending(entrance, 0)
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
        await is_pending(entrance, 3)
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
        await is_pending(entrance, 0)


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


async def until_state(entrance: Entrance, topic: str, state: str) -> None:
    """Wait until a process announces this state of a topic."""

    async def look() -> bool:
        ingests = (await entrance.client.stats()).ingests
        return any(
            each.source == f"kafka:{topic}" and each.state.startswith(state)
            for ingest in ingests
            for each in ingest.sources
        )

    await entrance.until(look, f"{topic}: {state}")


class TestQuarantine:
    async def test_an_unacceptable_record_is_kept_unchanged_and_stops_nothing(
        self, entrance: Entrance, kafka: Kafka, namespace: str
    ) -> None:
        delay, target = await kafka.pair(namespace)
        wrong: list[tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]]]] = [
            (b"k", b"K-1", [("delaybridge-delay", b""), ("own", None)]),
            (None, b"K-3", [("delaybridge-delay", (5000).to_bytes(8, "big"))]),
            (b"", b"K-30", [*HOUR, ("delaybridge-due", b"2030-01-01T00:00:00Z")]),
            (b"k", b"x" * 300_000, HOUR),
        ]
        await kafka.send_many(delay, wrong)
        await kafka.send(delay, b"fine")
        entrance.ingest("kafka")
        entrance.scan()
        (fine,) = await kafka.take(target, 1)
        assert fine.value == b"fine"
        dead = sorted(await entrance.dead(), key=lambda message: message.id)
        assert [(m.key, m.body, m.headers) for m in dead] == wrong
        reasons = [str(message.reason).split(" ")[0] for message in dead]
        assert reasons == [
            "ingress:bad_time",
            "ingress:binary_number",
            "ingress:time_ambiguous",
            "ingress:body_too_large",
        ]
        # kicked, it goes where it would have gone
        assert await entrance.client.kick(dead[0].id) == "kicked"
        records = await kafka.take(target, 2)
        assert records[1].given[:2] == wrong[0][:2]
        shown = await source(entrance, delay)
        assert shown is not None
        assert (shown.total, shown.quarantined) == (5, 4)

    async def test_an_id_given_to_two_contents_is_a_conflict(
        self, entrance: Entrance, kafka: Kafka, namespace: str
    ) -> None:
        delay, _ = await kafka.pair(namespace)
        second, _ = await kafka.pair(namespace)
        headers = [*HOUR, ("delaybridge-id", b"one")]
        await kafka.send(delay, b"first", headers, key=b"k")
        await kafka.send(delay, b"other", headers, key=b"k")
        await kafka.send(delay, b"behind", HOUR, key=b"k")
        entrance.ingest("kafka")
        await is_pending(entrance, 2)
        # also from the same offset of another topic, with another target
        await kafka.send(second, b"third", headers, key=b"k")
        await is_quarantined(entrance, 2)
        assert {m.body for m in await entrance.delayed()} == {b"first", b"behind"}
        found = await entrance.client.quarantined("one")
        assert [(m.body, str(m.reason).split()[0]) for m in found] == [
            (b"other", "ingress:conflict"),
            (b"third", "ingress:foreign"),
        ]

    async def test_no_record_is_lost_if_its_generated_ids_are_taken(
        self, entrance: Entrance, kafka: Kafka, namespace: str
    ) -> None:
        delay, _ = await kafka.pair(namespace)
        await kafka.send(delay, b"first", HOUR)
        entrance.ingest("kafka")
        await is_pending(entrance, 1)
        (first,) = await entrance.delayed()
        place = first.id[:-1] + "1"
        taken = [f"q-{place}", *quarantine_ids(place)]
        for id in taken:  # its key puts it into the same bucket
            to = f"kafka:{namespace}"
            await entrance.client.schedule(to, b"taken", delay="1h", id=id, key=place)
        await kafka.send(delay, b"lost", [("delaybridge-delay", b"soon")])
        await is_quarantined(entrance, 1)
        (dead,) = await entrance.dead()
        assert dead.body == b"lost"
        assert len(await entrance.delayed()) == 1 + len(taken)

    async def test_a_topic_changes_no_message_that_goes_elsewhere(
        self,
        make_entrance: MakeEntrance,
        kafka: Kafka,
        namespace: str,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        delay, _ = await kafka.pair(namespace)
        entrance = make_entrance(trust=[f"{delay}=kafka:audit"])
        for id in ("etf1", "tombstone", "cancel", "reschedule"):
            await entrance.client.schedule("kafka:pay", b"mine", delay="1h", id=id)
        before = await entrance.delayed()
        await entrance.client.schedule("kafka:audit", b"trusted", delay="1h", id="trusted")
        target = delay.removesuffix(".delay").encode()
        etf1 = [("scheduler-epoch", b"1900000000"), ("scheduler-target-topic", target)]
        asked = ("delaybridge-id", b"cancel"), ("delaybridge-cancel", b"true")
        again = ("delaybridge-id", b"reschedule"), ("delaybridge-reschedule", b"true")
        await kafka.send(delay, b"replaced", etf1, key=b"etf1")
        await kafka.send(delay, None, etf1, key=b"etf1")
        await kafka.send(delay, None, key=b"tombstone")
        await kafka.send(delay, b"", asked, key=b"cancel")
        await kafka.send(delay, b"", [*again, *HOUR], key=b"reschedule")
        trusted = ("delaybridge-id", b"trusted"), ("delaybridge-cancel", b"true")
        await kafka.send(delay, b"", trusted, key=b"trusted")

        async def is_counted() -> bool:
            found = await source(entrance, delay)
            counted = found and (found.total, found.refused, found.quarantined)
            return counted == (6, 3, 1)

        entrance.ingest("kafka")
        await entrance.until(is_counted, "three are refused, one is quarantined")
        await entrance.until(lambda: "change_refused n=3" in caplog.text, "it is logged")
        after = [message for message in await entrance.delayed() if message.body is not None]
        assert after == before, "the trusted one is cancelled; a tombstone here cancels nothing"
        (dead,) = await entrance.client.quarantined("etf1")
        assert dead.body == b"replaced"

    async def test_a_record_with_a_header_name_that_is_not_utf_8_is_quarantined(
        self, entrance: Entrance, kafka: Kafka, namespace: str
    ) -> None:  # K-11
        delay, target = await kafka.pair(namespace)
        await kafka.send(delay, b"before")
        await kafka.do(lambda: produce_raw(kafka.servers, delay, b"\xff\xfe", b"value", b"body"))
        await kafka.send(delay, b"behind")
        entrance.ingest("kafka")
        entrance.scan()
        assert [r.value for r in await kafka.take(target, 2)] == [b"before", b"behind"]
        (kept,) = await entrance.dead()
        assert kept.body == b"body"
        assert str(kept.reason).startswith("ingress:bad_header headers: ")

    async def test_records_of_more_than_a_mebibyte_arrive(
        self, make_entrance: MakeEntrance, kafka: Kafka, namespace: str
    ) -> None:  # K-13, K-15
        entrance = make_entrance(limits={"body_bytes": 3 * 2**20}, window_bytes=2**20)
        target = await kafka.topic(f"{namespace}-x", **{"max.message.bytes": "20000000"})
        delay = await kafka.topic(f"{target}.delay", **{"max.message.bytes": "20000000"})
        large = [
            (b"k", b"a" * (3 * 2**20), SECOND),
            (b"k" * 2**20, b"b", SECOND),
            (b"k", b"c" * (3 * 2**20 + 1), SECOND),
            (b"k", b"d" * 2**20, SECOND),
        ]
        await kafka.send_many(delay, large, message_max_bytes=20_000_000)
        entrance.ingest("kafka")
        await is_pending(entrance, 3)
        await is_quarantined(entrance, 1)
        pending = {(m.key, m.body) for m in await entrance.delayed()}
        assert pending == {(k, v) for k, v, _ in (large[0], large[1], large[3])}
        (kept,) = await entrance.dead()
        assert kept.body == large[2][1]


class TestReadTwice:
    async def test_a_record_that_is_read_twice_is_scheduled_once(
        self, entrance: Entrance, kafka: Kafka, redis_url: str, namespace: str
    ) -> None:  # K-22
        delay, target = await kafka.pair(namespace)
        records = [(b"k%d" % (n % 7), b"%d" % n, []) for n in range(50)]
        await kafka.send_many(delay, records)
        await kafka.send(delay, b"x", [*HOUR, ("delaybridge-id", b"x")], key=b"x")
        await kafka.send(delay, None, key=b"x")
        await kafka.send(delay, b"x again", [*HOUR, ("delaybridge-id", b"x")], key=b"x")
        await kafka.send(delay, None, key=b"passed on")
        await kafka.send(delay, b"y", [*HOUR, ("delaybridge-id", b"y")], key=b"y")
        await kafka.send(delay, None, key=b"y")
        ingest = entrance.ingest("kafka")
        entrance.scan()
        assert len(await kafka.take(target, 51)) == 51
        await entrance.stop(ingest)
        # a graceful stop has committed all of it
        assert await kafka.committed(namespace, delay) == 56
        await kafka.reset(namespace, delay)
        with redis.Redis.from_url(redis_url) as plain:  # ten minutes later
            calls = [keys.bucket_key(namespace, number, "calls") for number in range(4)]
            assert plain.delete(*calls) > 0
        to = f"kafka:{target}"
        await entrance.client.schedule(to, b"y again", delay="1h", id="y", key="y")
        await entrance.client.schedule(to, b"last", delay=0)
        await kafka.send(delay, b"new")
        entrance.ingest("kafka")
        records_now = await kafka.take(target, 53)
        assert {r.value for r in records_now[51:]} == {b"last", b"new"}
        assert {m.body for m in await entrance.delayed()} == {b"x again", b"y again"}

    async def test_no_record_is_lost_or_doubled_while_processes_come_and_go(
        self, make_entrance: MakeEntrance, kafka: Kafka, namespace: str
    ) -> None:  # K-21
        entrance = make_entrance()
        delay, target = await kafka.pair(namespace, partitions=6)
        first = entrance.ingest("kafka")
        entrance.scan()

        async def flow() -> None:
            for start in range(0, 2000, 100):
                batch = [(b"k%d" % n, b"%d" % n, []) for n in range(start, start + 100)]
                await kafka.send_many(delay, batch)

        async with asyncio.TaskGroup() as group:
            flowing = group.create_task(flow())
            entrance.ingest("kafka")
            third = entrance.ingest("kafka")
            await entrance.until(lambda: share(kafka, namespace, [2, 2, 2]), "a share each")
            await entrance.kill(third)
            await entrance.stop(first)
            await flowing
        found = await kafka.take(target, 2000)
        assert {int(r.value or b"") for r in found} == set(range(2000))
        assert not await entrance.dead()


async def share(kafka: Kafka, group: str, partitions: list[int]) -> bool:
    return await kafka.members(group) == partitions


class TestRecreatedTopics:
    async def test_a_topic_recreated_while_it_is_read_is_read_from_its_start(
        self, entrance: Entrance, kafka: Kafka, namespace: str
    ) -> None:  # K-23
        delay, target = await kafka.pair(namespace)
        await kafka.send_many(delay, [(b"k", b"old %d" % n, []) for n in range(5)])
        entrance.ingest("kafka")
        entrance.scan()
        await kafka.take(target, 5)
        # longer than the old topic, before the consumer looks at its metadata again
        await kafka.delete(delay)
        await kafka.topic(delay)
        await kafka.send_many(delay, [(b"k", b"new %d" % n, []) for n in range(9)])
        found = await kafka.take(target, 14)
        assert [r.value for r in found[5:]] == [b"new %d" % n for n in range(9)]
        await kafka.send(delay, b"and on")
        assert (await kafka.take(target, 15))[14].value == b"and on"

    async def test_a_topic_recreated_while_no_process_runs_is_read_from_its_start(
        self, entrance: Entrance, kafka: Kafka, namespace: str
    ) -> None:
        delay, target = await kafka.pair(namespace)
        await kafka.send_many(delay, [(b"k", b"old %d" % n, []) for n in range(5)])
        ingest = entrance.ingest("kafka")
        entrance.scan()
        await kafka.take(target, 5)
        await entrance.stop(ingest)
        await kafka.delete(delay)
        await kafka.topic(delay)
        await kafka.send_many(delay, [(b"k", b"new %d" % n, []) for n in range(9)])
        entrance.ingest("kafka")
        found = await kafka.take(target, 14)
        assert [r.value for r in found[5:]] == [b"new %d" % n for n in range(9)]


# changed settings


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
    process = Process("w", command, {**os.environ}, tmp_path / "w.log")
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
