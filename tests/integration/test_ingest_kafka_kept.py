"""Delay topics of a real Kafka: records that are refused, read twice, or read anew."""

from __future__ import annotations

import asyncio
import re

import pytest
import redis

from delaybridge.store.protocol import keys
from delaybridge.store.protocol.ids import quarantine_ids
from tests.rigs.ingest import Entrance, MakeEntrance, announced
from tests.rigs.ingest_kafka import Kafka, produce_raw, source

SECOND = [("delaybridge-delay", b"1s")]
HOUR = [("delaybridge-delay", b"1h")]


@pytest.fixture
def entrance_url(watched_kafka_url: str) -> str:
    return watched_kafka_url


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
        assert await entrance.client.dead.kick(dead[0].id) == "kicked"
        records = await kafka.take(target, 2)
        assert records[1].given[:2] == wrong[0][:2]
        await announced(entrance, delay, 5, 4)

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
        await entrance.until_delayed(2)
        # also from the same offset of another topic, with another target
        await kafka.send(second, b"third", headers, key=b"k")
        await entrance.until_dead(2)
        assert {m.body for m in await entrance.delayed()} == {b"first", b"behind"}
        found = await entrance.client.dead.quarantined("one")
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
        await entrance.until_delayed(1)
        (first,) = await entrance.delayed()
        place = first.id[:-1] + "1"
        taken = [f"q-{place}", *quarantine_ids(place)]
        for id in taken:  # its key puts it into the same bucket
            to = f"kafka:{namespace}"
            await entrance.client.schedule(to, b"taken", delay="1h", id=id, key=place)
        await kafka.send(delay, b"lost", [("delaybridge-delay", b"soon")])
        await entrance.until_dead(1)
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

        def logged() -> bool:  # in one line, or in the lines of two seconds
            return sum(map(int, re.findall(r"change_refused n=(\d+)", caplog.text))) == 3

        await entrance.until(logged, "it is logged")
        after = [message for message in await entrance.delayed() if message.body is not None]
        assert after == before, "the trusted one is cancelled; a tombstone here cancels nothing"
        (dead,) = await entrance.client.dead.quarantined("etf1")
        assert dead.body == b"replaced"

    async def test_a_record_with_a_header_name_that_is_not_utf_8_is_quarantined(
        self, entrance: Entrance, kafka: Kafka, namespace: str
    ) -> None:  # K-11
        delay, target = await kafka.pair(namespace)
        await kafka.send(delay, b"before", key=b"k")  # only those of one key are in order
        await kafka.do(lambda: produce_raw(kafka.servers, delay, b"\xff\xfe", b"value", b"body"))
        await kafka.send(delay, b"behind", key=b"k")
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
        await entrance.until_delayed(3)
        await entrance.until_dead(1)
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
        await announced(entrance, delay, 56, 0)  # the last two may be read later
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

    @pytest.mark.slow
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
    @pytest.mark.parametrize("meanwhile", ["read", "not read"])
    async def test_a_topic_recreated_is_read_from_its_start(
        self, entrance: Entrance, kafka: Kafka, namespace: str, meanwhile: str
    ) -> None:  # K-23
        delay, target = await kafka.pair(namespace)
        await kafka.send_many(delay, [(b"k", b"old %d" % n, []) for n in range(5)])
        ingest = entrance.ingest("kafka")
        entrance.scan()
        await kafka.take(target, 5)
        if meanwhile == "not read":
            await entrance.stop(ingest)
        # longer than the old topic, before the consumer looks at its metadata again
        await kafka.delete(delay)
        await kafka.topic(delay)
        await kafka.send_many(delay, [(b"k", b"new %d" % n, []) for n in range(9)])
        if meanwhile == "not read":
            entrance.ingest("kafka")
        found = await kafka.take(target, 14)
        assert [r.value for r in found[5:]] == [b"new %d" % n for n in range(9)]
        await kafka.send(delay, b"and on")
        assert (await kafka.take(target, 15))[14].value == b"and on"
