"""A plain consumer that imports only confluent_kafka; does as receive_rabbitmq.py does.

python receive_kafka.py HOST:PORT TOPIC COUNT FILE
"""

import sys
import time
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition


def main(servers: str, topic: str, count: int, path: str) -> None:
    consumer = Consumer(
        {"bootstrap.servers": servers, "group.id": f"{topic}-bench", "fetch.wait.max.ms": 10}
    )
    partitions = consumer.list_topics(topic, timeout=10).topics[topic].partitions
    consumer.assign([TopicPartition(topic, p, OFFSET_BEGINNING) for p in partitions])
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    late_us: list[int] = []
    while len(late_us) < count:
        record = consumer.poll(1.0)
        now_us = time.time_ns() // 1000
        if record is None or record.error():
            continue
        headers: dict[str, Any] = dict(record.headers() or ())
        sent_us = headers.get("sent-us")
        if sent_us == b"0":
            continue  # a record that warmed the producer up
        due_us = int(sent_us) if sent_us else int(headers["delaybridge-due-ms"]) * 1000
        late_us.append(now_us - due_us)
    with open(path, "w") as file:
        file.writelines(f"{late}\n" for late in late_us)
    consumer.close()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4])
