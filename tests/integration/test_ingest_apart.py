"""A message that has to wait holds up no other source, and no other destination."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from delaybridge.ingest.kafka import held, window
from tests.rigs.bucket import Owner
from tests.rigs.ingest import Entrance, MakeEntrance, source
from tests.rigs.ingest_kafka import Kafka, until_state
from tests.rigs.ingest_rabbitmq import HOUR_MS, Exchanges, described, drained, reading

HOUR = [("delaybridge-delay", b"1h")]
SOON = [("delaybridge-delay", b"1ms")]
LIMIT = 5


def full(name: str) -> str:
    return f"{name}: limits.destination_messages is reached"


async def until_told(entrance: Entrance, name: str, text: str) -> None:
    """Wait until the source is shown as read, but with this fault; empty: with none."""

    async def look() -> bool:
        found = await source(entrance, name, "reading")
        if found is None or not text:
            return found is not None and not found.faults
        return any(text in fault for fault in found.faults)

    await entrance.until(look, f"{name}: {text or 'well'}")


async def bodies(entrance: Entrance) -> list[bytes]:
    return sorted(message.body or b"" for message in await entrance.delayed())


async def make_room(entrance: Entrance, *wanted: bytes) -> None:
    for message in await entrance.delayed():
        if message.body in wanted:
            await entrance.client.cancel(message.id)


class TestKafka:
    @pytest.fixture
    def entrance_url(self, watched_kafka_url: str) -> str:
        return watched_kafka_url

    async def test_a_full_destination_holds_up_no_other_topic_and_loses_nothing(
        self, make_entrance: MakeEntrance, kafka: Kafka, namespace: str
    ) -> None:
        a, b = [await kafka.topic(f"{namespace}-{letter}.delay") for letter in "ab"]
        entrance = make_entrance(limits={"destination_messages": LIMIT})
        task = entrance.ingest("kafka")
        await kafka.send_many(a, [(b"%d" % n, b"a%d" % n, HOUR) for n in range(LIMIT + 3)])
        first = [b"a%d" % n for n in range(LIMIT)]
        await until_told(entrance, a, full(f"kafka:{namespace}-a"))
        assert await bodies(entrance) == first
        await kafka.send_many(b, [(None, b"b%d" % n, HOUR) for n in range(3)])
        await entrance.until_delayed(LIMIT + 3)
        await until_told(entrance, b, "")
        await entrance.stop(task)
        assert await kafka.committed(namespace, a) == LIMIT
        assert await kafka.committed(namespace, b) == 3
        # read again after a restart, each is stored once there is room, and none twice
        task = entrance.ingest("kafka")
        await until_told(entrance, a, full(f"kafka:{namespace}-a"))
        await make_room(entrance, *first[:3])
        await until_told(entrance, a, "")
        await entrance.until_delayed(LIMIT + 3)
        await entrance.stop(task)
        assert await kafka.committed(namespace, a) == LIMIT + 3
        assert (await bodies(entrance))[:LIMIT] == [b"a%d" % n for n in range(3, LIMIT + 3)]

    @pytest.mark.parametrize("is_settled", [True, False], ids=["settled", "too late"])
    async def test_an_id_in_flight_holds_up_no_other_topic(
        self,
        make_entrance: MakeEntrance,
        kafka: Kafka,
        namespace: str,
        owner_of: Callable[[str], Owner],
        monkeypatch: pytest.MonkeyPatch,
        is_settled: bool,
    ) -> None:
        a, b = [await kafka.topic(f"{namespace}-{letter}.delay") for letter in "ab"]
        entrance = make_entrance()
        entrance.ingest("kafka")
        for topic in (a, b):
            await until_state(entrance, topic, "reading")
        await entrance.client.schedule(f"kafka:{namespace}-a", b"first", id="x", delay=0)
        owner = owner_of("x")
        copies = owner.fire(owner.claim()[0].score)
        again = [("delaybridge-id", b"x"), *HOUR]
        await kafka.send(a, b"again", again, key=b"x")
        await kafka.send(a, b"behind it", HOUR, key=b"x")
        for n in range(3):
            await kafka.send(b, b"%d" % n, HOUR)

            async def is_stored(body: bytes = b"%d" % n) -> bool:
                return body in await bodies(entrance)

            await entrance.until(is_stored, f"record {n} of the other topic")
        assert not {b"again", b"behind it"} & {*await bodies(entrance)}
        if is_settled:
            owner.world.run(owner.settling(*copies))
            await entrance.until_delayed(5)
            assert not await entrance.dead()
        else:
            monkeypatch.setattr(held, "PATIENCE_S", 0.0)
            await entrance.until_dead(1)
            assert (await entrance.dead())[0].body == b"again"

            async def is_behind_it() -> bool:
                return b"behind it" in await bodies(entrance)

            await entrance.until(is_behind_it, "the record behind it")

    async def test_a_backlog_for_a_full_destination_leaves_room_for_other_topics(
        self,
        make_entrance: MakeEntrance,
        kafka: Kafka,
        namespace: str,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setattr(window, "BATCH_MESSAGES", 10)
        monkeypatch.setattr(window, "FIRST_BATCH_MESSAGES", 10)
        for letter in "ab":
            await kafka.topic(f"{namespace}-{letter}", 2)
        a, b = [await kafka.topic(f"{namespace}-{letter}.delay", 2) for letter in "ab"]
        to = f"{namespace}-a"
        entrance = make_entrance(limits={"destination_messages": 100})
        entrance.ingest("kafka")
        entrance.scan()
        await entrance.client.destinations.pause(f"kafka:{to}")
        sent = [b"%03d" % n for n in range(300)]
        await kafka.send_many(a, [(body, body, SOON) for body in sent])
        await until_told(entrance, a, full(f"kafka:{to}"))
        for count in range(1, 4):
            await kafka.send(b, b"body", SOON)
            await kafka.take(f"{namespace}-b", count)

        async def is_counted() -> bool:
            found = await source(entrance, a)
            return found is not None and found.lag == 200

        await entrance.until(is_counted, "what waits, here and at the broker")
        await entrance.client.destinations.resume(f"kafka:{to}")
        found = await kafka.take(to, 300)
        assert sorted(record.value or b"" for record in found) == sent
        await until_told(entrance, a, "")

    @pytest.mark.slow
    async def test_what_waits_is_stored_once_though_its_partitions_change_hands(
        self, make_entrance: MakeEntrance, kafka: Kafka, namespace: str
    ) -> None:
        topic = await kafka.topic(f"{namespace}.delay", 4)
        entrance = make_entrance(limits={"destination_messages": LIMIT})
        first = entrance.ingest("kafka")
        sent = [b"%02d" % n for n in range(40)]
        await kafka.send_many(topic, [(body, body, HOUR) for body in sent])
        await until_told(entrance, topic, full(f"kafka:{namespace}"))
        taken: list[bytes] = []

        async def take(count: int) -> None:
            async def have() -> bool:
                for message in await entrance.delayed():
                    await entrance.client.cancel(message.id)
                    taken.append(message.body or b"")
                return len(taken) >= count

            await entrance.until(have, f"{count} taken")

        async def share(*partitions: int) -> bool:
            return await kafka.members(namespace) == [*partitions]

        second = entrance.ingest("kafka")
        await entrance.until(lambda: share(2, 2), "a share each")
        await take(15)
        await entrance.kill(first)
        await entrance.until(lambda: share(4), "one has all")
        await take(25)
        entrance.ingest("kafka")
        await entrance.until(lambda: share(2, 2), "a share each")
        await take(40)

        async def all_passed() -> bool:
            offsets = [await kafka.committed(namespace, topic, number) for number in range(4)]
            return sum(offsets) == 40

        await entrance.until(all_passed, "the offsets after the last records")
        await entrance.stop(second)
        assert (sorted(taken), await entrance.delayed()) == (sent, [])


async def test_a_full_destination_of_an_exchange_holds_up_no_other(
    make_entrance: MakeEntrance, rabbit: Exchanges, namespace: str
) -> None:
    delay, other = f"{namespace}.delay", f"rabbitmq:{namespace}-other"
    await rabbit.target(namespace)
    entrance = make_entrance(limits={"destination_messages": LIMIT}, destinations=[other])
    entrance.ingest("rabbitmq")
    await reading(entrance, delay)
    there = {"delaybridge-destination": f"{other}/k"}
    await rabbit.send(
        delay,
        [
            ("k", b"a%d" % n, described(HOUR_MS, headers=there, message_id=f"a{n}"))
            for n in range(LIMIT + 3)
        ],
    )
    await until_told(entrance, delay, "limits.destination_messages is reached")
    await rabbit.send(delay, [("k", b"b", described(HOUR_MS, message_id="b"))])
    await entrance.until_delayed(LIMIT + 1)
    await make_room(entrance, *(b"a%d" % n for n in range(3)))
    await until_told(entrance, delay, "")
    await drained(entrance, delay)
    assert await bodies(entrance) == [*(b"a%d" % n for n in range(3, LIMIT + 3)), b"b"]
