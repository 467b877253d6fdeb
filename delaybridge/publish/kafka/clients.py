"""The producers of one publisher: one sends at once, the others wait a little for company.

librdkafka cannot change `linger.ms` on a producer that lives, nor per record. A backlog in large
requests costs the worker 5 us less a message, and the broker up to 15.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from confluent_kafka import KafkaError

from delaybridge.publish.kafka.client import Answers, KafkaClient, Spare
from delaybridge.publish.kafka.configuration import Configuration
from delaybridge.publish.kafka.topic import TopicState

LINGER_MS = 5
# Long enough to keep a piece in one batch even if the thread that hands it over is interrupted. If
# librdkafka splits a piece, the broker may refuse the first part and write the second.
PIECE_LINGER_MS = 25


class KafkaClients:
    """The producers of one publisher.

    prompt: sends at once, or as the operator's linger says. patient: waits for LINGER_MS, for
    backlogs; never open if the operator set a linger. apart: waits for PIECE_LINGER_MS, and has the
    topics of which a batch was refused. After each refusal librdkafka sends nothing from that
    producer, whatever the topic, until all its requests are answered. single: makes a request of
    each record, for the last suspects of a batch. The last three are used only once they are ready.
    """

    def __init__(
        self,
        settings: Configuration,
        on_answers: Callable[[KafkaClient, Answers], None],
        on_error: Callable[[KafkaClient, KafkaError], None],
    ) -> None:
        self.prompt: KafkaClient | None = None
        self._settings, self._on_answers, self._on_error = settings, on_answers, on_error
        self._patient = Spare(lambda: self._make_lingering(LINGER_MS))
        self._apart = Spare(lambda: self._make_lingering(PIECE_LINGER_MS))
        self._single = Spare(lambda: self._make(settings.with_single_records()))
        self._ending: set[asyncio.Task[None]] = set()

    @property
    def patient(self) -> KafkaClient | None:
        """The one for backlogs; None while it is not open."""
        return self._patient.client

    @property
    def apart(self) -> KafkaClient | None:
        """The one for topics of which a batch was refused; None while it is not open."""
        return self._apart.client

    @property
    def single(self) -> KafkaClient | None:
        """The one that makes a request of each record; None while it is not open."""
        return self._single.client

    def __contains__(self, client: KafkaClient) -> bool:
        """Whether it is one of those in use."""
        return client is self.prompt or any(client is spare.client for spare in self._spares)

    def open(self) -> KafkaClient:
        """Make the prompt and the patient one if they are missing; returns the prompt one."""
        if self.prompt is None:
            self.prompt = self._make(self._settings)
        self._open_patient()
        return self.prompt

    def best_for(self, topic: TopicState, now_s: float) -> KafkaClient | None:
        """The producer that should have what this topic holds; the one it has if that must stay."""
        client = topic.client
        # A lost connection charges all that the single one has in flight: no topic stays there.
        may_stay = client is not None and client in self and client is not self.single
        if may_stay and now_s < topic.settled_s:
            return client
        if topic.care is not None:
            single = self._single.open() if topic.care.has_suspects else None
            single = single if topic.care.is_for_one_by_one else None
            return single or self._apart.open() or self._open_patient() or self.prompt
        patient = self.patient
        is_patient = patient is not None and topic.client is patient
        if not topic.gains_from_patience(is_patient=is_patient):
            return self.prompt
        return self._open_patient() or self.prompt

    def drop(self) -> None:
        """End all clients, in the background."""
        self._end(self.prompt)
        self.prompt = None
        for spare in self._spares:
            self._end(spare.take_client())

    def drop_spare(self, client: KafkaClient) -> None:
        """End one that is not the prompt one; it is opened again when it is wanted."""
        for spare in self._spares:
            if spare.client is client:
                self._end(spare.take_client())

    @property
    def _spares(self) -> tuple[Spare, ...]:
        return self._patient, self._apart, self._single

    async def ended(self) -> None:
        """Wait until all that were dropped have ended."""
        await asyncio.gather(*self._ending)

    def _open_patient(self) -> KafkaClient | None:
        return self._patient.open() if self._settings.may_linger else None

    def _make_lingering(self, linger_ms: int) -> KafkaClient:
        settings = self._settings
        return self._make(settings.with_linger(linger_ms) if settings.may_linger else settings)

    def _make(self, settings: Configuration) -> KafkaClient:
        return KafkaClient(settings, self._on_answers, self._on_error)

    def _end(self, client: KafkaClient | None) -> None:
        if client is not None:
            ending = asyncio.create_task(client.stop())
            self._ending.add(ending)
            ending.add_done_callback(self._ending.discard)
