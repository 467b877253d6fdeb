"""A plain consumer that imports only confluent-kafka. Appends each record to a file, as JSON.

python consume_kafka.py HOST:PORT TOPIC FILE
"""

import hashlib
import json
import sys
import time

from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition


def main(servers: str, topic: str, path: str) -> None:
    consumer = Consumer(
        {"bootstrap.servers": servers, "group.id": f"{topic}-check", "fetch.wait.max.ms": 10}
    )
    partitions = consumer.list_topics(topic, timeout=60).topics[topic].partitions
    consumer.assign([TopicPartition(topic, p, OFFSET_BEGINNING) for p in partitions])
    print("ready", flush=True)
    with open(path, "a", buffering=1) as history:
        while True:
            record = consumer.poll(1.0)
            at = time.time_ns() // 1000
            if record is None or record.error():
                continue
            headers = dict(record.headers() or [])
            history.write(
                json.dumps(
                    {
                        "id": headers["delaybridge-id"].decode(),
                        "due_ms": int(headers["delaybridge-due-ms"]),
                        "attempt": int(headers["delaybridge-attempt"]),
                        "at_us": at,
                        "sha": hashlib.sha1(record.value() or b"").hexdigest(),
                        "mark": headers.get("x-mark", b"").decode() or None,
                    }
                )
                + "\n"
            )


if __name__ == "__main__":
    main(*sys.argv[1:])
