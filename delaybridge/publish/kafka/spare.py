"""A producer beside the prompt one: opened when it is wanted, used once it is ready."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from math import inf

from confluent_kafka import KafkaException

from delaybridge.publish.kafka.client import KafkaClient

REOPEN_S = 10.0  # between two attempts to open it
ANSWER_TIMEOUT_S = 5.0


class Spare:
    """client: the producer; None while it is not open."""

    def __init__(self, make: Callable[[], KafkaClient]) -> None:
        self.client: KafkaClient | None = None
        self._make = make
        self._opened_s = -inf
        self._warm_up: asyncio.Task[None] | None = None

    def open(self) -> KafkaClient | None:
        """Make it if it is missing; returns it once it is ready."""
        now_s = asyncio.get_running_loop().time()
        if self.client is None and now_s >= self._opened_s + REOPEN_S:
            self._opened_s = now_s
            # No thread is free, or a certificate is gone: the prompt one does without it.
            with contextlib.suppress(KafkaException, RuntimeError):
                self.client = self._make()
                self._warm_up = asyncio.create_task(self._reach(self.client))
        return self.client if self.client is not None and self.client.ready.is_set() else None

    def take(self) -> KafkaClient | None:
        """Give it away to be ended; it is opened again when it is wanted."""
        if self._warm_up is not None:
            self._warm_up.cancel()
        client, self.client = self.client, None
        return client

    @staticmethod
    async def _reach(client: KafkaClient) -> None:
        # Without a question of ours, librdkafka first asks for its id after 500 ms.
        error = await client.error_of_topic(None, ANSWER_TIMEOUT_S)
        if error is None and not client.needs_id:
            client.ready.set()
