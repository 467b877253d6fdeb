"""One damaged bucket: its messages wait where they were read, and all others go on, once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
import redis
from pika import BasicProperties

from delaybridge.events import IngestFailed
from delaybridge.ingest.entries import Entry
from delaybridge.ingest.storing import EntryStore, Found
from delaybridge.store.protocol import keys, verbs
from tests.rigs.ingest import Entrance, MakeEntrance, source
from tests.rigs.ingest_kafka import Kafka
from tests.rigs.ingest_rabbitmq import HOUR_MS, Exchanges, described, drained, reading

HOUR = [("delaybridge-delay", b"1h")]
SICK = 0
BUCKETS = 4


def ids_of(bucket: int, count: int) -> list[str]:
    found = (f"i{n}" for n in range(1000))
    return [id for id in found if verbs.bucket_of(id.encode(), BUCKETS) == bucket][:count]


class Damage:
    """Damage to a bucket of a namespace, and its repair."""

    def __init__(self, url: str, namespace: str) -> None:
        self.redis = redis.Redis.from_url(url)
        self.name = keys.bucket_key(namespace, SICK, "messages")

    def harm(self) -> None:
        self.redis.set(self.name, "x")

    def rename(self, birth: str) -> str:
        """Give the bucket another birth id; the one before."""
        marks = self.name.replace("messages", "marks")
        before: bytes = self.redis.hget(marks, "birth")
        self.redis.hset(marks, "birth", birth)
        return before.decode()

    def mend(self) -> None:
        self.redis.delete(self.name)


@pytest.fixture
def damage(redis_url: str, namespace: str) -> Iterator[Damage]:
    made = Damage(redis_url, namespace)
    yield made
    made.redis.close()


async def until_told(entrance: Entrance, name: str) -> None:
    """Wait until the source is shown as read, but with the damaged key."""

    async def look() -> bool:
        found = await source(entrance, name, "reading")
        return found is not None and any("messages" in each for each in found.faults)

    await entrance.until(look, "the damage is told")


async def until_well(entrance: Entrance, name: str) -> None:
    async def look() -> bool:
        found = await source(entrance, name, "reading")
        return found is not None and not found.faults

    await entrance.until(look, "nothing is told any more")


async def test_messages_of_a_damaged_bucket_wait_and_no_other_comes_twice(
    make_entrance: MakeEntrance, rabbit: Exchanges, namespace: str, damage: Damage
) -> None:
    delay = f"{namespace}.delay"
    await rabbit.target(namespace)
    entrance = make_entrance()
    task = entrance.ingest("rabbitmq")
    entrance.scan()
    await reading(entrance, delay)
    heard: list[object] = []
    entrance.ingest_of(task)._emit.join(heard.append)
    damage.harm()
    sick, well = ids_of(SICK, 2), ids_of(1, 2)
    # the first buckets that any message is for have no birth id yet
    for held, good in zip(sick, well, strict=True):
        both = [("k", b"held", described(HOUR_MS, message_id=held))]
        both.append(("k", good.encode(), described(200, message_id=good)))
        await rabbit.send(delay, both)
        ((_, _, body),) = await rabbit.take(namespace, 1)
        assert body == good.encode()
    await until_told(entrance, delay)
    damage.mend()
    await entrance.until_delayed(2)
    await until_well(entrance, delay)
    await drained(entrance, delay)
    assert await rabbit.waiting(namespace) == 0
    assert not [event for event in heard if isinstance(event, IngestFailed)]


async def test_once_they_fill_the_window_nothing_more_is_read_until_it_is_mended(
    make_entrance: MakeEntrance, rabbit: Exchanges, namespace: str, damage: Damage
) -> None:
    delay = f"{namespace}.delay"
    entrance = make_entrance(prefetch=2)
    task = entrance.ingest("rabbitmq")
    await reading(entrance, delay)
    damage.harm()
    ids = [*ids_of(SICK, 3), *ids_of(1, 2)]
    await rabbit.send(delay, [("k", b"x", described(HOUR_MS, message_id=id)) for id in ids])
    await until_told(entrance, delay)
    assert await rabbit.waiting(delay) == 3
    await entrance.stop(task)  # they go back to the queue
    assert await rabbit.waiting(delay) == 5
    entrance.ingest("rabbitmq")
    await until_told(entrance, delay)
    damage.mend()
    await entrance.until_delayed(5)
    await drained(entrance, delay)


async def test_a_cancel_that_waits_finds_no_message_that_came_after_it(
    make_entrance: MakeEntrance,
    rabbit: Exchanges,
    namespace: str,
    damage: Damage,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without a key it asks all buckets; the message after it is in one that is well."""
    delay = f"{namespace}.delay"
    entrance = make_entrance()
    entrance.ingest("rabbitmq")
    await reading(entrance, delay)
    await rabbit.target(namespace)
    again, other = ids_of(1, 2)
    await rabbit.send(delay, [("k", b"x", described(HOUR_MS, message_id=other))])
    await entrance.until_delayed(1)
    damage.harm()
    cancel = BasicProperties(headers={"delaybridge-cancel": "true"}, message_id=again)
    both = [("k", b"", cancel), ("k", b"again", described(HOUR_MS, message_id=again))]
    await rabbit.send(delay, both)
    await until_told(entrance, delay)

    async def is_read() -> bool:
        return await rabbit.waiting(delay) == 0

    await entrance.until(is_read, "both are read")
    tries: list[object] = []
    store = EntryStore.store

    async def counted(self: EntryStore, entries: Sequence[Entry]) -> list[Found]:
        answers = await store(self, entries)
        tries.append(None)
        return answers

    monkeypatch.setattr(EntryStore, "store", counted)

    async def is_tried() -> bool:
        return len(tries) > 2

    await entrance.until(is_tried, "both are tried again")
    damage.mend()
    await until_well(entrance, delay)
    await drained(entrance, delay)
    await entrance.until_delayed(2)


async def test_a_bucket_with_another_birth_id_is_damaged_and_the_namespace_not_wiped(
    make_entrance: MakeEntrance, rabbit: Exchanges, namespace: str, damage: Damage
) -> None:
    delay = f"{namespace}.delay"
    entrance = make_entrance()
    entrance.ingest("rabbitmq")
    await reading(entrance, delay)
    ids = [ids_of(SICK, 2)[0], ids_of(1, 1)[0]]
    await rabbit.send(delay, [("k", b"x", described(HOUR_MS, message_id=id)) for id in ids])
    await entrance.until_delayed(2)
    birth = damage.rename("another")
    await rabbit.send(delay, [("k", b"x", described(HOUR_MS, message_id=ids_of(SICK, 2)[1]))])

    async def is_told() -> bool:
        found = await source(entrance, delay, "reading")
        return found is not None and any("birth id" in each for each in found.faults)

    await entrance.until(is_told, "the damage is told")
    damage.rename(birth)
    await entrance.until_delayed(3)


class TestKafka:
    @pytest.fixture
    def entrance_url(self, kafka_url: str) -> str:
        return kafka_url

    async def test_other_records_go_on_and_no_offset_passes_one_that_waits(
        self, make_entrance: MakeEntrance, entrance_url: str, namespace: str, damage: Damage
    ) -> None:
        kafka = Kafka(entrance_url)
        delay, target = await kafka.pair(namespace)
        entrance = make_entrance()
        task = entrance.ingest("kafka")
        entrance.scan()
        damage.harm()
        (sick, later), well = ids_of(SICK, 2), ids_of(1, 2)
        hour, soon = HOUR, [("delaybridge-delay", b"1ms")]
        await kafka.send(delay, b"first", key=well[0].encode(), headers=soon)
        await kafka.take(target, 1)
        for key, headers in ((sick, hour), (well[1], soon), (later, hour)):
            await kafka.send(delay, key.encode(), key=key.encode(), headers=headers)
        taken = await kafka.take(target, 2)
        assert [record.value for record in taken] == [b"first", well[1].encode()]
        await until_told(entrance, delay)
        await entrance.stop(task)
        assert await kafka.committed(namespace, delay) == 1
        entrance.ingest("kafka")  # reads them again
        await until_told(entrance, delay)
        damage.mend()
        await entrance.until_delayed(2)
        await until_well(entrance, delay)

        async def is_passed() -> bool:
            return await kafka.committed(namespace, delay) == 4

        await entrance.until(is_passed, "the offset after the last record")
        assert len(await kafka.read(target)) == 2

    async def test_no_record_passes_a_refused_one_that_cannot_be_quarantined(
        self, make_entrance: MakeEntrance, entrance_url: str, namespace: str, damage: Damage
    ) -> None:
        """Its own bucket would take it for read, and it would be lost with the process."""
        kafka = Kafka(entrance_url)
        delay, _ = await kafka.pair(namespace)
        entrance = make_entrance()
        task = entrance.ingest("kafka")
        damage.harm()
        key, same = ids_of(1, 1)[0].encode(), ids_of(SICK, 1)[0].encode()
        given = ((b"1", same), (b"2", same), (b"3", b"other"))
        records = [(key, body, [*HOUR, ("delaybridge-id", id)]) for body, id in given]
        await kafka.send_many(delay, records)
        await until_told(entrance, delay)
        await entrance.stop(task)
        entrance.ingest("kafka")
        await until_told(entrance, delay)
        damage.mend()
        await entrance.until_dead(1)
        await entrance.until_delayed(2)
