"""aiokafka with delays: `AIOKafkaProducer`.

from delaybridge.intercept.aiokafka import AIOKafkaProducer

async with AIOKafkaProducer(bootstrap_servers="...") as producer:
    receipt = await producer.send_and_wait("orders", b"...", key=b"42", delay="15m")
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import aiokafka

from delaybridge.accept.accept import Accepted
from delaybridge.client import AsyncClient, only
from delaybridge.errors import MessageError
from delaybridge.intercept import (
    SIGNS,
    Timing,
    broker_of,
    destination,
    timing_of,
    without_instructions,
)
from delaybridge.message import Message
from delaybridge.store.receipts import Receipt
from delaybridge.store.verbs import new_stamp
from delaybridge.times import At, Delay

__all__ = ["AIOKafkaProducer"]

MOST_UNSTORED = 10_000

Sending = Coroutine[Any, Any, asyncio.Future[Any]]

_Plain: Any = aiokafka.AIOKafkaProducer  # untyped
_plain_send = _Plain.send


class AIOKafkaProducer(_Plain):  # type: ignore[misc]
    """aiokafka's, whose `send` and `send_and_wait` take `delay` and `deliver_at`.

    client: who stores what is delayed, and stays open; by default one of the settings, made at the
    first delay and closed by `stop`. broker: the configured Kafka that these messages go to, where
    there are several.
    """

    def __init__(
        self, *, client: AsyncClient | None = None, broker: str | None = None, **kwargs: Any
    ) -> None:
        self._delay_client, self._delay_broker = client, broker
        self._owns_delay_client = client is None
        self._unstored: set[asyncio.Future[Receipt]] = set()
        self._room = asyncio.Semaphore(MOST_UNSTORED)
        super().__init__(**kwargs)

    def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Any = None,
        *,
        delay: Delay = None,
        deliver_at: At = None,
    ) -> Sending:
        """As aiokafka's; with `delay`, `deliver_at` or a delay in the headers, stored until then.

        The future of a delayed message holds its Receipt, once it is stored; that bears its id:
        that of the header `delaybridge-id`, else a new one. Or it raises: MessageConflict,
        StoreFull, StoreError: this was not stored; StoreUnavailable: it may be. Key and value go
        through the producer's serializers. The workers choose the partition by the key, unless one
        is given here; `timestamp_ms` means nothing to them. Where very many are being stored, this
        waits until some are. MessageError: refused, as within a transaction; ConfigError.
        """
        timing = None
        if delay is not None or deliver_at is not None:
            timing = timing_of(headers, delay, deliver_at)
        elif headers:
            for pair in headers:
                if pair[0] in SIGNS:
                    timing = timing_of(headers, None, None)
                    break
        if timing is None:  # no coroutine around aiokafka's: what passes through shall cost nothing
            plain: Sending = _plain_send(self, topic, value, key, partition, timestamp_ms, headers)
            return plain
        return self._delay(timing, topic, value, key, partition, headers)

    async def send_and_wait(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Any = None,
        *,
        delay: Delay = None,
        deliver_at: At = None,
    ) -> Any:
        """As aiokafka's; of a delayed message the Receipt, once it is stored. See `send`."""
        future = await self.send(
            *(topic, value, key, partition, timestamp_ms, headers),
            delay=delay,
            deliver_at=deliver_at,
        )
        return await future

    async def flush(self) -> None:
        """Wait until all is delivered or stored, or has failed to be."""
        await super().flush()
        await self._stored()

    async def stop(self) -> None:
        """Flush and close."""
        try:
            await self._stored()
        finally:
            await super().stop()
            if self._owns_delay_client and self._delay_client is not None:
                client, self._delay_client = self._delay_client, None
                await client.close()

    async def _delay(
        self,
        timing: Timing,
        topic: str,
        value: Any,
        key: Any,
        partition: int | None,
        headers: Any,
    ) -> asyncio.Future[Receipt]:
        if self._closed:
            raise aiokafka.errors.ProducerClosed
        transactions = self._txn_manager
        if transactions and transactions.transactional_id and transactions.is_in_transaction():
            raise MessageError("in_transaction", "delay", "send it before or after it")
        if not isinstance(topic, str):
            raise TypeError(f"topic: must be str, not {type(topic).__name__}")
        if self._delay_client is None:
            self._delay_client = AsyncClient.from_settings()
        client = self._delay_client
        kept = without_instructions(headers)
        key, value = self._serialize(key, value, kept)
        message = Message(
            destination("kafka", broker_of(client, "kafka", self._delay_broker), topic),
            value,
            delay=timing.delay,
            at=timing.at,
            id=timing.id,
            key=key,
            headers=kept,
            properties={} if partition is None else {"partition": partition},
        )
        accepted = client.accept(message)
        await self._room.acquire()
        stored = asyncio.get_running_loop().create_task(_store(client, accepted))
        self._unstored.add(stored)
        stored.add_done_callback(self._forget)
        return stored

    def _forget(self, stored: asyncio.Future[Receipt]) -> None:
        self._unstored.discard(stored)
        self._room.release()

    async def _stored(self) -> None:
        while self._unstored:
            await asyncio.wait(self._unstored)


async def _store(client: AsyncClient, accepted: Accepted) -> Receipt:
    return only(await client.schedule_accepted([(new_stamp(), accepted)]))
