"""Whatever is sent to a delay exchange or delay topic, all valid messages among it are stored."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack
from typing import Any

import pika
import pytest
from hypothesis import strategies as st

from delaybridge.amqp.encoding import encode_table
from delaybridge.errors import MessageError
from delaybridge.ingest.instructions import INSTRUCTIONS
from tests.rigs.drawn import among, drawn
from tests.rigs.ingest import Entrance
from tests.rigs.ingest_kafka import Kafka
from tests.rigs.ingest_kafka import source as topic_source
from tests.rigs.ingest_rabbitmq import AsBytes, Exchanges, drained, reading
from tests.rigs.waiting import DEADLINE_S

GOOD = [b"good %d" % n for n in range(20)]
MakeEntrance = Callable[..., Entrance]
Sent = tuple[str, bytes, pika.BasicProperties]
Record = tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]]]

TEXT = st.text(alphabet=st.characters(codec="utf-8"), max_size=30)
NAMES = st.sampled_from([*sorted(INSTRUCTIONS), "X-Delay", "delaybridge-dely", "x-death", "n"])
WORDS = st.sampled_from(
    ["5s", "true", "abc", "", " 5", "1e3", "-1", "2030-01-01T00:00:00Z", "9" * 99]
)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT
    | WORDS
    | st.binary(max_size=30)
    | st.just("x" * 40_000),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=4,
)


@pytest.fixture
async def make_entrance(redis_url: str, namespace: str) -> AsyncIterator[MakeEntrance]:
    """Makes entrances to one broker."""
    async with AsyncExitStack() as stack:

        def make(name: str, url: str, **ingest: Any) -> Entrance:
            entrance = Entrance(redis_url, namespace, {name: url}, **ingest)
            stack.push_async_exit(entrance)
            return entrance

        yield make


@st.composite
def messages(draw: st.DrawFn) -> Sent:
    """Any message that RabbitMQ accepts."""
    headers = draw(st.dictionaries(NAMES | TEXT, VALUES, max_size=4))
    try:
        table = encode_table(headers.items())
    except MessageError:
        table = encode_table([("x-delay", "bad")])
    ids = TEXT | st.binary(max_size=255) | st.just("same")
    given = draw(st.fixed_dictionaries({}, optional={"message_id": ids, "content_type": TEXT}))
    return draw(TEXT), draw(st.binary(max_size=50)), AsBytes(table, **given)


async def test_good_messages_among_any_others_at_a_delay_exchange_are_stored(
    make_entrance: MakeEntrance, rabbitmq_url: str, namespace: str
) -> None:
    rabbit, delay = Exchanges(rabbitmq_url), f"{namespace}.delay"
    await rabbit.target(namespace)
    entrance = make_entrance("rabbitmq", rabbitmq_url, exchanges=[delay])
    entrance.ingest("rabbitmq")
    entrance.scan()
    await reading(entrance, delay)
    good = [("k", body, pika.BasicProperties(headers={"x-delay": 50})) for body in GOOD]
    sent = among(drawn(messages()), good)
    await rabbit.send(delay, sent)

    await drained(entrance, delay)
    assert await asyncio.to_thread(missing, rabbitmq_url, namespace) == set()


def missing(url: str, queue: str) -> set[bytes]:
    """The good messages that did not arrive in the queue in time."""
    left = set(GOOD)
    connection = pika.BlockingConnection(pika.URLParameters(url))
    channel = connection.channel()
    for method, _, body in channel.consume(queue, inactivity_timeout=DEADLINE_S):
        if method is None:
            break
        channel.basic_ack(method.delivery_tag)
        left.discard(body)
        if not left:
            break
    connection.close()
    return left


RECORDS: st.SearchStrategy[Record] = st.tuples(
    st.none() | st.binary(max_size=300),
    st.none() | st.binary(max_size=50),
    st.lists(
        st.tuples(
            NAMES | st.sampled_from(["scheduler-epoch", "scheduler-target-topic"]) | TEXT,
            st.none() | st.binary(max_size=12) | WORDS.map(str.encode) | st.just(b"x" * 40_000),
        ),
        max_size=4,
    ),
)


async def test_good_records_among_any_others_at_a_delay_topic_are_stored(
    make_entrance: MakeEntrance, real_kafka_url: str, namespace: str
) -> None:
    kafka = Kafka(real_kafka_url)
    delay, target = await kafka.pair(namespace)
    entrance = make_entrance("kafka", real_kafka_url, topics=[delay], group=namespace)
    entrance.ingest("kafka")
    entrance.scan()
    good: Sequence[Record] = [(None, body, [("delaybridge-delay", b"50")]) for body in GOOD]
    sent = among(drawn(RECORDS), [*good])
    await kafka.send_many(delay, sent)

    async def all_read() -> bool:
        found = await topic_source(entrance, delay)
        return found is not None and found.total >= len(sent)  # some may be read again

    await entrance.until(all_read, f"{len(sent)} records are read")

    async def all_arrived() -> bool:
        return {record.value for record in await kafka.read(target)} >= set(GOOD)

    await entrance.until(all_arrived, "the good records arrive")
