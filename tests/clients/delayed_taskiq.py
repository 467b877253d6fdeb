"""Tasks of taskiq with the delayed exchange of taskiq-aio-pika; see delayed_pika.py."""

import asyncio
import json
import sys
import time

from taskiq.api import run_receiver_task
from taskiq_aio_pika import AioPikaBroker, Exchange, Queue


def show(**row):
    print(json.dumps({**row, "atMs": time.time_ns() // 1_000_000}), flush=True)


async def main(url, name, *delays):
    broker = AioPikaBroker(
        url,
        exchange=Exchange(name=f"{name}-now"),
        delayed_message_exchange_plugin=True,
        task_queues=[Queue(name=name)],
        dead_letter_queue=Queue(name=f"{name}-dead"),
    )
    broker.is_worker_process = True
    ran = asyncio.Queue()

    @broker.task("run")
    async def run(id):
        show(received=id)
        ran.put_nowait(id)

    await broker.startup()
    receiver = asyncio.create_task(run_receiver_task(broker))
    for number, delay in enumerate(delays):
        labels = {} if delay == "-" else {"delay": int(delay) / 1000}
        show(sent=f"m{number}")
        await run.kicker().with_labels(**labels).kiq(f"m{number}")
    for _ in delays:
        await ran.get()
    receiver.cancel()
    await asyncio.gather(receiver, return_exceptions=True)
    await broker.shutdown()


asyncio.run(main(*sys.argv[1:]))
