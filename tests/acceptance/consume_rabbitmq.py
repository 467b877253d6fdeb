"""A plain consumer: pika and nothing of ours. Writes what it receives, then acknowledges.

python consume_rabbitmq.py URL QUEUE FILE
"""

import hashlib
import json
import sys
import time

import pika


def main(url: str, queue: str, path: str) -> None:
    connection = pika.BlockingConnection(pika.URLParameters(url))
    channel = connection.channel()
    channel.basic_qos(prefetch_count=1000)
    with open(path, "a", buffering=1) as history:

        def received(ch, method, properties, body):
            at = time.time_ns() // 1000
            headers = properties.headers or {}
            history.write(
                json.dumps(
                    {
                        "id": headers["delaybridge-id"],
                        "due_ms": headers["delaybridge-due-ms"],
                        "attempt": headers["delaybridge-attempt"],
                        "at_us": at,
                        "sha": hashlib.sha1(body).hexdigest(),
                    }
                )
                + "\n"
            )
            ch.basic_ack(method.delivery_tag)

        channel.basic_consume(queue, received)
        print("ready", flush=True)
        channel.start_consuming()


def reconnecting(url: str, queue: str, path: str) -> None:
    """The broker may be stopped under it: an ordinary consumer comes back."""
    while True:
        try:
            main(url, queue, path)
        except pika.exceptions.AMQPError:
            time.sleep(0.2)


if __name__ == "__main__":
    reconnecting(*sys.argv[1:])
