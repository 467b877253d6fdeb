"""A plain consumer of a delayed exchange that imports only pika, and declares it as the plugin's.

It connects to the addresses in turn. Appends each message to a file, as JSON: a message without a
delay has its id and its earliest time in `message_id` and the header x-least. One that comes from
another exchange, or with its delay not negated, has that in its mark.

python consume_delayed.py URL,URL EXCHANGE FILE
"""

import hashlib
import itertools
import json
import sys
import time

import pika

AGAIN_S = 0.1


def declare(channel, name):
    """The delayed exchange, and a queue of its name that gets all messages."""
    about = {"x-delayed-type": "topic"}
    channel.exchange_declare(name, "x-delayed-message", durable=True, arguments=about)
    channel.queue_declare(name, durable=True, arguments={"x-queue-type": "quorum"})
    channel.queue_bind(name, name, "#")


def line(method, properties, body, exchange):
    """What is written down of a delivery."""
    headers = properties.headers or {}
    mark, delay = headers.get("x-mark"), headers.get("x-delay", 0)
    if method.exchange not in (exchange, "") or delay > 0:
        mark = f"{mark} from {method.exchange}, delay {delay}"
    seen = {
        "id": headers.get("delaybridge-id") or properties.message_id,
        "due_ms": headers.get("delaybridge-due-ms", headers.get("x-least")),
        "attempt": headers.get("delaybridge-attempt", 1),
        "at_us": time.time_ns() // 1000,
        "sha": hashlib.sha1(body).hexdigest(),
        "mark": mark,
        "redelivered": method.redelivered,
    }
    return json.dumps(seen) + "\n"


def main(url: str, exchange: str, history) -> None:
    parameters = pika.URLParameters(url)
    parameters.heartbeat = 5
    channel = pika.BlockingConnection(parameters).channel()
    channel.basic_qos(prefetch_count=500)
    declare(channel, exchange)

    def received(ch, method, properties, body):
        history.write(line(method, properties, body, exchange))
        ch.basic_ack(method.delivery_tag)

    channel.basic_consume(exchange, received)
    print("ready", flush=True)
    channel.start_consuming()


def reconnecting(urls: str, exchange: str, path: str) -> None:
    """Run `main` for ever, at the next address each time."""
    with open(path, "a", buffering=1) as history:
        for url in itertools.cycle(urls.split(",")):
            try:
                main(url, exchange, history)
            except (pika.exceptions.AMQPError, OSError):
                time.sleep(AGAIN_S)


if __name__ == "__main__":
    reconnecting(*sys.argv[1:])
