"""A plain consumer that imports only pika. Appends each message to a file, as JSON.

It acknowledges after each hundred messages, and every fifth of a second. One acknowledgement per
message would make it the slowest part of the bridge.

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
    last = [0, 0]  # delivery tags: received, acknowledged
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
                        "mark": headers.get("x-mark"),
                        "redelivered": method.redelivered,
                    }
                )
                + "\n"
            )
            last[0] = method.delivery_tag
            if last[0] % 100 == 0:
                acknowledge()

        def acknowledge():
            if last[0] > last[1]:
                channel.basic_ack(last[0], multiple=True)
                last[1] = last[0]

        def acknowledge_the_rest():
            acknowledge()
            connection.call_later(0.2, acknowledge_the_rest)

        channel.basic_consume(queue, received)
        acknowledge_the_rest()
        print("ready", flush=True)
        channel.start_consuming()


def reconnecting(url: str, queue: str, path: str) -> None:
    """Run `main` for ever: connect again when the broker has closed the connection."""
    while True:
        try:
            main(url, queue, path)
        except pika.exceptions.AMQPError:
            time.sleep(0.2)


if __name__ == "__main__":
    reconnecting(*sys.argv[1:])
