"""With aio-pika; see delayed_pika.py."""

import asyncio
import json
import sys
import time

import aio_pika


def show(**row):
    print(json.dumps({**row, "atMs": time.time_ns() // 1_000_000}), flush=True)


async def main(url, name, *delays):
    connection = await aio_pika.connect_robust(url)
    async with connection, connection.channel() as channel:
        exchange = await channel.declare_exchange(
            name,
            aio_pika.ExchangeType.X_DELAYED_MESSAGE,
            durable=True,
            arguments={"x-delayed-type": "topic"},
        )
        queue = await channel.declare_queue(name, durable=True)
        await queue.bind(exchange, "a.#")
        for number, delay in enumerate(delays):
            headers = {"own": "kept"} | ({} if delay == "-" else {"x-delay": int(delay)})
            show(sent=f"m{number}")
            message = aio_pika.Message(
                f"body m{number}".encode(),
                headers=headers,
                message_id=f"m{number}",
                content_type="text/plain",
                delivery_mode=aio_pika.DeliveryMode.PERSISTENT,
            )
            await exchange.publish(message, "a.b")
        left = len(delays)
        async with queue.iterator() as messages:
            async for message in messages:
                show(
                    received=message.message_id,
                    exchange=message.exchange,
                    key=message.routing_key,
                    delay=message.headers.get("x-delay"),
                    own=message.headers["own"],
                    type=message.content_type,
                    body=message.body.decode(),
                )
                await message.ack()
                if not (left := left - 1):
                    break


asyncio.run(main(*sys.argv[1:]))
