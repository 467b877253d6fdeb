"""The two producers of one publisher: one sends at once, the other waits a little for company.

librdkafka cannot change `linger.ms` on a producer that lives, nor per record. A backlog in large
requests costs the worker 5 us less a message, and the broker up to 15.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from math import inf

from confluent_kafka import KafkaError, KafkaException

from delaybridge.publish.kafka.client import Answers, KafkaClient
from delaybridge.publish.kafka.configuration import Configuration
from delaybridge.publish.kafka.topic import TopicState

LINGER_MS = 5
REOPEN_S = 10.0  # between two attempts to open the patient producer
ANSWER_TIMEOUT_S = 5.0


class KafkaClients:
    """The producers of one publisher.

    prompt: sends at once, or as the operator's linger says. patient: waits for LINGER_MS, and is
    used only once it is ready; None if the operator set a linger, and while it is not open.
    """

    def __init__(
        self,
        settings: Configuration,
        on_answers: Callable[[KafkaClient, Answers], None],
        on_error: Callable[[KafkaClient, KafkaError], None],
    ) -> None:
        self.prompt: KafkaClient | None = None
        self.patient: KafkaClient | None = None
        self._settings, self._on_answers, self._on_error = settings, on_answers, on_error
        self._opened_s = -inf
        self._warm_up: asyncio.Task[KafkaError | None] | None = None
        self._ending: set[asyncio.Task[None]] = set()

    def __contains__(self, client: KafkaClient) -> bool:
        """Whether it is one of those in use."""
        return client is self.prompt or client is self.patient

    def open(self) -> KafkaClient:
        """Make those that are missing; returns the prompt one."""
        if self.prompt is None:
            self.prompt = self._make(self._settings)
        self._open_patient()
        return self.prompt

    def best_for(self, topic: TopicState, now_s: float) -> KafkaClient | None:
        """The producer that should have what this topic holds; the one it has if that must stay."""
        if topic.client is not None and topic.client in self and now_s < topic.settled_s:
            return topic.client
        patient = self.patient
        is_patient = patient is not None and topic.client is patient
        if not topic.gains_from_patience(is_patient=is_patient):
            return self.prompt
        self._open_patient()
        return self.prompt if patient is None or not patient.ready.is_set() else patient

    def drop(self) -> None:
        """End both."""
        self._end(self.prompt)
        self.prompt = None
        self.drop_patient()

    def drop_patient(self) -> None:
        """End the patient one; it is opened again when it is wanted."""
        if self._warm_up is not None:
            self._warm_up.cancel()
        self._end(self.patient)
        self.patient = None

    async def ended(self) -> None:
        """Wait until all that were dropped have ended."""
        await asyncio.gather(*self._ending)

    def _open_patient(self) -> None:
        now_s = asyncio.get_running_loop().time()
        if (
            self.patient is None
            and self._settings.may_linger
            and now_s >= self._opened_s + REOPEN_S
        ):
            self._opened_s = now_s
            # No thread is free, or a certificate is gone: the prompt one does without it.
            with contextlib.suppress(KafkaException, RuntimeError):
                self.patient = self._make(self._settings.with_linger(LINGER_MS))
                # Without a question of ours, librdkafka first asks for its id after 500 ms.
                asking = self.patient.error_of_topic(None, ANSWER_TIMEOUT_S)
                self._warm_up = asyncio.create_task(asking)

    def _make(self, settings: Configuration) -> KafkaClient:
        return KafkaClient(settings, self._on_answers, self._on_error)

    def _end(self, client: KafkaClient | None) -> None:
        if client is not None:
            ending = asyncio.create_task(client.stop())
            self._ending.add(ending)
            ending.add_done_callback(self._ending.discard)
