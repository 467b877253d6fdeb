"""A plain consumer: it imports its broker's client library, and nothing of delaybridge.

Run by path. Consumes the queues or topics that the variable SOURCE describes, as JSON, and writes a
line of JSON for each message when it arrives.
"""

import json
import os
import sys
import time
from typing import Any


def main() -> None:
    """Consume until it is killed."""
    source = json.loads(os.environ["SOURCE"])
    (consume_kafka if source.pop("kind") == "kafka" else consume_rabbitmq)(**source)


def consume_kafka(settings: dict[str, Any], topics: list[str]) -> None:
    """Consume every partition from its beginning, assigned: joining a group takes seconds."""
    from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

    eager = {"fetch.wait.max.ms": 10, "enable.auto.commit": False, "log_level": 0}
    consumer = Consumer({**settings, **eager, "group.id": topics[0]})
    known = {t: consumer.list_topics(t, timeout=10).topics[t].partitions for t in topics}
    consumer.assign([TopicPartition(t, p, OFFSET_BEGINNING) for t in topics for p in known[t]])
    tell(ready=True)
    while True:
        record = consumer.poll(1.0)
        at_us = time.time_ns() // 1000
        if record is not None and not record.error():
            received(dict(record.headers() or []), at_us)


def consume_rabbitmq(url: str, queues: list[str]) -> None:
    """Consume with acknowledgements, as an ordinary consumer does."""
    import pika

    channel = pika.BlockingConnection(pika.URLParameters(url)).channel()
    channel.basic_qos(prefetch_count=1000)

    def on_message(_channel: Any, method: Any, properties: Any, _body: bytes) -> None:
        received(properties.headers, time.time_ns() // 1000)
        channel.basic_ack(method.delivery_tag)

    for queue in queues:
        channel.basic_consume(queue, on_message)
    tell(ready=True)
    channel.start_consuming()


def received(headers: dict[str, Any], at_us: int) -> None:
    """Write down one message: the three headers that delaybridge adds, and when it arrived."""
    id = headers["delaybridge-id"]
    tell(
        id=id if isinstance(id, str) else id.decode(),
        due_ms=int(headers["delaybridge-due-ms"]),
        attempt=int(headers["delaybridge-attempt"]),
        at_us=at_us,
    )


def tell(**fields: object) -> None:
    """Write one line of JSON."""
    sys.stdout.write(json.dumps(fields) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
