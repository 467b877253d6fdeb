"""A plain consumer that imports only pika: writes to a file how late each message is, in us.

python receive_rabbitmq.py URL QUEUE COUNT FILE

The due time is in the header `delaybridge-due-ms`; a message published directly has its time of
publishing in `sent-us`. The program ends after COUNT messages.
"""

import sys
import time
from typing import Any

import pika


def main(url: str, queue: str, count: int, path: str) -> None:
    late_us: list[int] = []

    def received(channel: Any, method: Any, properties: Any, body: bytes) -> None:
        now_us = time.time_ns() // 1000
        headers = properties.headers
        due_us = headers.get("sent-us") or headers["delaybridge-due-ms"] * 1000
        late_us.append(now_us - due_us)
        if len(late_us) % 100 == 0 or len(late_us) >= count:
            channel.basic_ack(method.delivery_tag, multiple=True)
        if len(late_us) >= count:
            channel.stop_consuming()

    with pika.BlockingConnection(pika.URLParameters(url)) as connection:
        channel = connection.channel()
        channel.basic_qos(prefetch_count=1000)
        channel.basic_consume(queue, received)
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        channel.start_consuming()
    with open(path, "w") as file:
        file.writelines(f"{late}\n" for late in late_us)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4])
