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
from delaybridge.client import AsyncClient
from delaybridge.client.requests import stored_receipt
from delaybridge.gathering import Later
from delaybridge.intercept import LazyClient, Timing, is_timed, timing_of, without_instructions
from delaybridge.intercept.kafka import check_record, message_of
from delaybridge.store.messages.scheduling import Receipt
from delaybridge.store.protocol.verbs import new_stamp
from delaybridge.times import At

__all__ = ["AIOKafkaProducer"]

MOST_UNSTORED = 10_000

Sending = Coroutine[Any, Any, asyncio.Future[Any]]

_Plain: Any = aiokafka.AIOKafkaProducer  # untyped
_plain_send = _Plain.send


class AIOKafkaProducer(_Plain):  # type: ignore[misc]
    """aiokafka's producer; `send` and `send_and_wait` accept `delay` and `deliver_at`.

    client: stores the delayed messages; by default one made from the settings at the first delay
    and closed by `stop`. broker: the configured Kafka that these messages go to, if there are
    several.
    """

    def __init__(
        self, *, client: AsyncClient | None = None, broker: str | None = None, **kwargs: Any
    ) -> None:
        self._lazy_client = LazyClient(client, broker)
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
        delay: Later = None,
        deliver_at: At = None,
    ) -> Sending:
        """Send now, as aiokafka does; or store a message with a delay until it is due.

        delay, deliver_at: when to deliver it; a header may give a delay instead. Key and value go
        through the producer's serializers. The workers choose the partition by the key, unless one
        is given here; they ignore `timestamp_ms`. Waits while 10,000 messages are being stored.

        The future of a delayed message holds its Receipt once it is stored. Its id is that of the
        header `delaybridge-id`, else a new one. The future may raise MessageConflict, StoreFull and
        StoreError, and the message was not stored; after StoreUnavailable it may be. `send` itself
        raises MessageError if the message is refused, also within a transaction, and ConfigError.
        """
        timing = None
        # Most messages have neither delay nor headers: these cost no call.
        if delay is not None or deliver_at is not None or (headers and is_timed(headers)):
            timing = timing_of(headers, delay, deliver_at)
        if timing is None:  # aiokafka's own coroutine: another around it would cost time
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
        delay: Later = None,
        deliver_at: At = None,
    ) -> Any:
        """`send` and wait: returns aiokafka's metadata, or the Receipt of a delayed message."""
        future = await self.send(
            topic, value, key, partition, timestamp_ms, headers, delay=delay, deliver_at=deliver_at
        )
        return await future

    async def flush(self) -> None:
        """Wait until every message is delivered or stored, or has failed."""
        await super().flush()
        await self._stored()

    async def stop(self) -> None:
        """Store and deliver what is pending, and close the connections."""
        try:
            await self._stored()
        finally:
            await super().stop()
            await self._lazy_client.close()

    async def _delay(
        self, timing: Timing, topic: str, value: Any, key: Any, partition: int | None, headers: Any
    ) -> asyncio.Future[Receipt]:
        if self._closed:
            raise aiokafka.errors.ProducerClosed
        transactions = self._txn_manager
        is_in_transaction = (
            transactions and transactions.transactional_id and transactions.is_in_transaction()
        )
        check_record(topic, is_in_transaction=is_in_transaction)
        client = self._lazy_client.open()
        kept = without_instructions(headers)
        key, value = self._serialize(key, value, kept)
        broker = self._lazy_client.broker
        message = message_of(client, broker, timing, topic, value, key, partition, kept)
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
    (receipt,) = await client.schedule_accepted([(new_stamp(), accepted)])
    return stored_receipt(receipt)
