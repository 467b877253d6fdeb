"""Declares a delayed exchange, publishes to it, and prints what it receives.

`PROGRAM URL NAME DELAY...`: an exchange and a queue of this name, and one message for each delay
in milliseconds; `-` is one without the header. The other programs named delayed_... do the same
with other client libraries. Each prints JSON lines: what it is about to send, what it received.
"""

import json
import sys
import time

import pika


def show(**row):
    print(json.dumps({**row, "atMs": time.time_ns() // 1_000_000}), flush=True)


def main(url, name, *delays):
    with pika.BlockingConnection(pika.URLParameters(url)) as connection:
        channel = connection.channel()
        channel.exchange_declare(
            name, "x-delayed-message", durable=True, arguments={"x-delayed-type": "direct"}
        )
        channel.queue_declare(name, durable=True)
        channel.queue_bind(name, name, "a.b")
        channel.confirm_delivery()
        for number, delay in enumerate(delays):
            headers = {"own": "kept"} | ({} if delay == "-" else {"x-delay": int(delay)})
            properties = pika.BasicProperties(
                headers=headers, message_id=f"m{number}", content_type="text/plain", delivery_mode=2
            )
            show(sent=f"m{number}")
            channel.basic_publish(name, "a.b", f"body m{number}", properties)
        for _, (method, properties, body) in zip(delays, channel.consume(name), strict=False):
            show(
                received=properties.message_id,
                exchange=method.exchange,
                key=method.routing_key,
                delay=properties.headers.get("x-delay"),
                own=properties.headers["own"],
                type=properties.content_type,
                body=body.decode(),
            )
            channel.basic_ack(method.delivery_tag)


main(*sys.argv[1:])
