"""With kombu, on py-amqp; see delayed_pika.py."""

import json
import sys
import time

import kombu


def show(**row):
    print(json.dumps({**row, "atMs": time.time_ns() // 1_000_000}), flush=True)


def main(url, name, *delays):
    arguments = {"x-delayed-type": "direct"}
    exchange = kombu.Exchange(name, "x-delayed-message", durable=True, arguments=arguments)
    queue = kombu.Queue(name, exchange, routing_key="a.b")
    url = url.replace("amqp://", "pyamqp://")
    with kombu.Connection(url, transport_options={"confirm_publish": True}) as connection:
        producer = connection.Producer(serializer="raw")
        for number, delay in enumerate(delays):
            headers = {"own": "kept"} | ({} if delay == "-" else {"x-delay": int(delay)})
            show(sent=f"m{number}")
            producer.publish(
                f"body m{number}",
                exchange=exchange,
                routing_key="a.b",
                declare=[queue],
                headers=headers,
                message_id=f"m{number}",
                content_type="text/plain",
                content_encoding="utf-8",
            )
        left = len(delays)

        def receive(body, message):
            nonlocal left
            show(
                received=message.properties["message_id"],
                exchange=message.delivery_info["exchange"],
                key=message.delivery_info["routing_key"],
                delay=message.headers.get("x-delay"),
                own=message.headers["own"],
                type=message.content_type,
                body=body,
            )
            message.ack()
            left -= 1

        with connection.Consumer(queue, callbacks=[receive]):
            while left:
                connection.drain_events(timeout=60)


main(*sys.argv[1:])
