"""A producer of a delayed exchange that knows nothing of a front: pika, confirms, reconnecting.

Half of its messages have a delay. It writes what it was told as `load.py` does: `ok` is a confirm;
what got none before the connection was lost is of unknown outcome, and is not sent again.

It ends when there is a file FILE.end.

python -m tests.chaos.front_load URL,URL EXCHANGE FILE
"""

from __future__ import annotations

import hashlib
import itertools
import json
import random
import sys
import time
import uuid
from pathlib import Path
from typing import IO, Any

import pika
from pika.adapters.blocking_connection import BlockingChannel

from tests.rigs.programs.consume_delayed import AGAIN_S, declare

RATE = 80.0
MOST_MS = 3000
DESTINATION = "rabbitmq:{0}/key"


class Producer:
    """Publishes one message after the other, each with its confirm."""

    def __init__(self, exchange: str, file: IO[str]) -> None:
        self._exchange, self._file, self._random = exchange, file, random.Random(exchange)
        self._end = Path(f"{file.name}.end")

    @property
    def is_over(self) -> bool:
        return self._end.exists()

    def run(self, url: str) -> None:
        """Publish until it is over; raises what pika raises."""
        parameters = pika.URLParameters(url)
        parameters.heartbeat = 5
        with pika.BlockingConnection(parameters) as connection:
            channel = connection.channel()
            declare(channel, self._exchange)
            channel.confirm_delivery()
            while not self.is_over:
                self._publish(channel)
                connection.sleep(1 / RATE)

    def _publish(self, channel: BlockingChannel) -> None:
        draw, id = self._random, uuid.uuid4().hex
        body, mark = draw.randbytes(draw.randrange(300)), f"{draw.getrandbits(32):x}"
        delay_ms = draw.choice((0, draw.randrange(1, MOST_MS)))
        least = time.time_ns() // 1_000_000 + delay_ms
        headers = {"x-mark": mark, "x-least": least} | ({"x-delay": delay_ms} if delay_ms else {})
        about = {"sha": hashlib.sha1(body).hexdigest(), "mark": mark, "once": False}
        to = DESTINATION.format(self._exchange)
        self._write("invoke", id, {**about, "least": least, "to": to, "delay": delay_ms})
        described = pika.BasicProperties(message_id=id, headers=headers, delivery_mode=2)
        try:
            channel.basic_publish(self._exchange, "key", body, described, mandatory=True)
        except BaseException as error:
            self._write("info", id, {"why": repr(error)})
            raise
        self._write("ok", id, {"due": least})

    def _write(self, phase: str, id: str, more: dict[str, Any]) -> None:
        when = {"at_us": time.time_ns() // 1000, "p": "front"}
        self._file.write(
            json.dumps({**when, "f": "schedule", "phase": phase, "id": id, **more}) + "\n"
        )


def main(urls: str, exchange: str, path: str) -> None:
    with open(path, "a", buffering=1) as file:
        producer = Producer(exchange, file)
        for url in itertools.cycle(urls.split(",")):
            try:
                producer.run(url)
            except (pika.exceptions.AMQPError, OSError) as error:
                print(repr(error), file=sys.stderr, flush=True)
                time.sleep(AGAIN_S)
            if producer.is_over:
                return


if __name__ == "__main__":
    main(*sys.argv[1:])
