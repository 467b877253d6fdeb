"""An application that publishes delayed messages with a drop-in producer; a test may kill it.

python produce_delayed.py LIBRARY TARGET COUNT JOURNAL LEAST_S SECONDS

LIBRARY: pika, kombu, aio_pika, confluent_kafka, aiokafka. Message n has id TARGET-LIBRARY-n and a
delay of LEAST_S to LEAST_S + 3, and is the same in every run. The messages are spread over SECONDS.
The journal has a line for each accepted message; a restarted application continues after the last.
Settings come from the environment.
"""

import asyncio
import os
import random
import sys
import time
from pathlib import Path

SPREAD_S = 3.0


def message(prefix: str, number: int) -> tuple[str, bytes, float]:
    """Id and body of message n, and the seconds to add to the least delay."""
    draw = random.Random(f"{prefix}-{number}")
    return f"{prefix}-{number}", draw.randbytes(draw.randrange(300)), draw.uniform(0, SPREAD_S)


class Journal:
    """A file with one line for each accepted message, in order from message 0."""

    def __init__(
        self, prefix: str, count: int, path: Path, *, least_s: float, seconds: float
    ) -> None:
        self._path, self._count, self._prefix = path, count, prefix
        self._least_s, self._pause_s = least_s, seconds / count

    def left(self):
        """Yield the messages that are not accepted yet; asking for the next one notes the last."""
        done = self._path.read_bytes().count(b"\n") if self._path.exists() else 0
        with self._path.open("ab", buffering=0) as file:
            for number in range(done, self._count):
                id, body, more_s = message(self._prefix, number)
                yield id, body, self._least_s + more_s
                file.write(b"%d\n" % number)
                time.sleep(self._pause_s)


def with_pika(target: str, journal: Journal, url: str) -> None:
    import pika

    from delaybridge.intercept.pika import BlockingConnection

    # Never closed: pika's close raises if the broker was down in the meantime.
    channel = BlockingConnection(pika.URLParameters(url)).channel()
    for id, body, delay in journal.left():
        properties = pika.BasicProperties(message_id=id, headers={"a": 1})
        channel.basic_publish(target, "key", body, properties, delay=delay)


def with_kombu(target: str, journal: Journal, url: str) -> None:
    import kombu

    from delaybridge.intercept.kombu import Producer

    with kombu.Connection(url) as connection:
        producer = Producer(connection)
        for id, body, delay in journal.left():
            producer.publish(
                body,
                "key",
                exchange=target,
                content_type="application/octet-stream",
                content_encoding="binary",
                message_id=id,
                delay=delay,
            )


def with_aio_pika(target: str, journal: Journal, url: str) -> None:
    from aio_pika import Message

    from delaybridge.intercept.aio_pika import connect_robust

    async def run() -> None:
        async with await connect_robust(url) as connection:
            exchange = await (await connection.channel()).get_exchange(target)
            for id, body, delay in journal.left():
                await exchange.publish(Message(body, message_id=id), "key", delay=delay)

    asyncio.run(run())


def with_confluent_kafka(target: str, journal: Journal, url: str) -> None:
    from delaybridge.intercept.confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": url.removeprefix("kafka://")})

    def delivered(error, _) -> None:
        if error is not None:
            raise RuntimeError(error)

    for id, body, delay in journal.left():
        headers = [("delaybridge-id", id.encode())]
        producer.produce(target, body, headers=headers, delay=delay, on_delivery=delivered)
        producer.flush()


def with_aiokafka(target: str, journal: Journal, url: str) -> None:
    from delaybridge.intercept.aiokafka import AIOKafkaProducer

    async def run() -> None:
        producer = AIOKafkaProducer(bootstrap_servers=url.removeprefix("kafka://"))
        async with producer:
            for id, body, delay in journal.left():
                headers = [("delaybridge-id", id.encode())]
                await producer.send_and_wait(target, body, headers=headers, delay=delay)

    asyncio.run(run())


def main(library: str, target: str, count: str, path: str, least_s: str, seconds: str) -> None:
    broker = "KAFKA" if "kafka" in library else "RABBITMQ"
    journal = Journal(
        f"{target}-{library}", int(count), Path(path),
        least_s=float(least_s), seconds=float(seconds),
    )  # fmt: skip
    globals()[f"with_{library}"](target, journal, os.environ[f"DELAYBRIDGE_BROKERS__{broker}"])


if __name__ == "__main__":
    main(*sys.argv[1:])
