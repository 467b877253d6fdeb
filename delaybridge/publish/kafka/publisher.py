"""Publishes to Kafka: one client, kept up, and for each topic whether it exists.

`client.py` is librdkafka on the loop; `outcomes.py` maps its errors to outcomes.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Sequence

from confluent_kafka import KafkaError, libversion

from delaybridge.message import OWN_HEADERS, Delivery, Destination
from delaybridge.publish import CONFIRMED, Fault, Outcome, PublishOptions, Verdict
from delaybridge.publish.kafka.client import Answers, KafkaClient
from delaybridge.publish.kafka.configuration import check, configuration
from delaybridge.publish.kafka.limits import largest_record
from delaybridge.publish.kafka.outcomes import (
    DOUBTFUL,
    LOGIN_REFUSED,
    MISSING,
    answer,
    error_of,
    not_found,
    not_queued,
    shown,
)
from delaybridge.publish.link import CLOSED, CLOSING, UNCONFIRMED, LinkedPublisher, broker_refusal

ANSWER_TIMEOUT_S = 5.0
WARM_UP_TIMEOUT_S = 5.0  # for the producer id, without which no record is sent
TOPIC_LOOKS_S = (0.0, 0.1, 0.2, 0.4)  # a topic that the broker creates appears meanwhile
TOPIC_TTL_S = 30.0  # without a confirm for longer, the topic is looked up again
MISSING_TTL_S = 1.0  # how long a topic counts as missing before it is looked up again
MAX_TOPICS = 10_000  # remembered at a time
_TRANSIENT = MISSING | {KafkaError.LEADER_NOT_AVAILABLE}


class TopicState:
    """Whether one topic exists, as far as is known, and the deliveries that wait for the answer."""

    def __init__(self) -> None:
        self.waiting: deque[Delivery] = deque()
        self.proved_s: float | None = None  # when it was last seen to exist
        self.refusal: tuple[float, Outcome] | None = None  # valid until, outcome
        self.look_up: asyncio.Task[None] | None = None

    def take(self) -> deque[Delivery]:
        """Remove and return the waiting deliveries."""
        waiting, self.waiting = self.waiting, deque()
        return waiting


class KafkaPublisher(LinkedPublisher):
    """A `Publisher` for one Kafka cluster. Confirmed means: by all in-sync replicas.

    Its URL is kafka[s]://[USER:PASSWORD@]HOST[:PORT][,HOST[:PORT]...][?OPTION=VALUE...]; kafkas://
    verifies certificate and host name. The options are librdkafka's, from an allow-list;
    ConfigError for others, and for values that librdkafka refuses.
    """

    def _configure(self, url: str, options: PublishOptions) -> None:
        self._settings = configuration(self.name, url, options)
        check(self.name, self._settings)
        self._topics: dict[str, TopicState] = {}
        self._unconfirmed: dict[Delivery, float] = {}  # given to librdkafka -> when
        self._overflow: deque[Delivery] = deque()  # librdkafka's queue was full
        self._client: KafkaClient | None = None
        self._troubled = asyncio.Event()
        self._ending: set[asyncio.Task[None]] = set()

    def _send(self, deliveries: Sequence[Delivery]) -> None:
        by_topic: dict[str, list[Delivery]] = {}
        for delivery in deliveries:
            by_topic.setdefault(delivery.destination.address, []).append(delivery)
        now_s = asyncio.get_running_loop().time()
        for name, batch in by_topic.items():
            self._publish_to(name, batch, now_s)

    async def _check(self, destination: Destination) -> str | None:
        if (client := self._client) is None:
            return CLOSING
        error = await client.error_of_topic(destination.address, ANSWER_TIMEOUT_S)
        return None if error is None else not_found(error).reason

    async def limits(self) -> dict[str, int]:
        """The most bytes of one record, if the cluster says so."""
        most = await asyncio.to_thread(largest_record, self._settings)
        return {} if most is None else {"record": most}

    def _describe(self) -> str:
        at = self._settings["bootstrap.servers"]
        how = f"{self._settings['security.protocol']}, idempotent, acks=all"
        return f"Kafka at {at}, {how}, librdkafka {libversion()[0]}"

    # the connection

    async def _connect_until_lost(self) -> None:
        self._troubled.clear()
        trouble = await self._warm_up()
        if trouble is None:
            self._opened()
            await self._troubled.wait()
        else:
            self._change(trouble)

    async def _warm_up(self) -> str | None:
        """Reach a broker and get a producer id before anything is due; the reason if that fails."""
        client = self._client
        if client is None:
            client = self._client = KafkaClient(self._settings, self._answered, self._erred)
        error = await client.error_of_topic(None, ANSWER_TIMEOUT_S)
        if error is not None:
            return f"unreachable: {shown(error)}"
        try:
            await asyncio.wait_for(client.ready.wait(), WARM_UP_TIMEOUT_S)
        except TimeoutError:
            return self.unavailable or "unreachable: the broker gives no producer id"
        return None if client is self._client else self.unavailable

    def _erred(self, client: KafkaClient, error: KafkaError) -> None:
        if client is not self._client:
            return  # that client was dropped
        reason = f"unreachable: {shown(error)}"
        if error.code() in LOGIN_REFUSED:
            client.renew_password()
        if error.fatal():
            # The producer is unusable for good; the next session makes a new one.
            self._drop_client()
            self._give_up(Outcome(Verdict.UNKNOWN, f"fatal: {shown(error)}", Fault.BROKER), reason)
            self._troubled.set()
        elif error.code() == KafkaError._ALL_BROKERS_DOWN:
            self._trouble(reason)

    def _trouble(self, reason: str) -> None:
        self._change(reason)
        self._refuse_waiting(reason)
        self._troubled.set()

    def _give_up(self, outcome: Outcome, unavailable: str) -> None:
        """Deliveries given to librdkafka end in `outcome`; waiting ones are refused."""
        self._change(unavailable)
        flying, self._unconfirmed = self._unconfirmed, {}
        self._reports.add(flying, outcome)
        self._refuse_waiting(unavailable)

    def _drop_client(self) -> None:
        old, self._client = self._client, None
        if old is not None:
            ending = asyncio.create_task(old.stop())
            self._ending.add(ending)
            ending.add_done_callback(self._ending.discard)

    def _is_idle(self) -> bool:
        waiting = any(topic.waiting for topic in self._topics.values())
        return not (self._unconfirmed or self._overflow or waiting)

    async def _disconnect(self) -> None:
        self._give_up(Outcome(Verdict.UNKNOWN, UNCONFIRMED, Fault.BROKER), CLOSED)
        self._reports.flush()
        self._drop_client()
        await asyncio.gather(*self._ending)

    # publishing, and the answers

    def _publish_to(self, name: str, batch: Sequence[Delivery], now_s: float) -> None:
        topic = self._topic(name)
        if topic.refusal is not None and now_s < topic.refusal[0]:
            self._reports.add(batch, topic.refusal[1])
        elif topic.proved_s is None or topic.waiting:
            topic.waiting.extend(batch)
            self._look_up(name, topic)
        else:
            self._hand_over(batch, now_s)  # an error there may reset `proved_s`
            if topic.proved_s is None or now_s - topic.proved_s > TOPIC_TTL_S:
                self._look_up(name, topic)

    def _hand_over(self, batch: Iterable[Delivery], now_s: float) -> None:
        client, overflow = self._client, self._overflow
        if client is None or self.unavailable is not None:
            self._reports.add(batch, broker_refusal(self.unavailable or "not_connected"))
            return
        for delivery in batch:
            if overflow:
                overflow.append(delivery)  # after those that wait, to keep the order
                continue
            try:
                client.produce(delivery, _headers(delivery))
            except BufferError:
                self._no_room(delivery)
            except Exception as exc:
                self._reports.add([delivery], not_queued(delivery, exc))
                self._doubt(delivery.destination.address, error_of(exc))
            else:
                self._unconfirmed[delivery] = now_s

    def _no_room(self, delivery: Delivery) -> None:
        if self._unconfirmed:
            self._overflow.append(delivery)  # until some of those are answered
        else:
            self._reports.add([delivery], Outcome(Verdict.REFUSED, "message_too_large: no room"))

    def _answered(self, client: KafkaClient, answers: Answers) -> None:
        now_s = asyncio.get_running_loop().time()
        confirmed: list[Delivery] = []
        for delivery, error in answers:
            since_s = self._unconfirmed.pop(delivery, None)
            if since_s is None:
                continue  # it has its outcome already
            if error is None:
                confirmed.append(delivery)
            else:
                is_proof = client.disturbed_s < since_s
                self._reports.add([delivery], answer(delivery, error, is_proof=is_proof))
                self._doubt(delivery.destination.address, error)
        if confirmed:
            self._reports.add(confirmed, CONFIRMED)
            for name in {delivery.destination.address for delivery in confirmed}:
                self._topic(name).proved_s = now_s
        if self._overflow:
            overflow, self._overflow = self._overflow, deque()
            self._hand_over(overflow, now_s)

    # topics

    def _doubt(self, name: str, error: KafkaError | None) -> None:
        """Look the topic up before the next record if it may be the cause of the error."""
        if error is not None and error.code() in DOUBTFUL:
            self._topic(name).proved_s = None

    def _topic(self, name: str) -> TopicState:
        topic = self._topics.get(name)
        if topic is None:
            if len(self._topics) >= MAX_TOPICS:
                self._topics = {n: t for n, t in self._topics.items() if t.waiting or t.look_up}
            topic = self._topics[name] = TopicState()
        return topic

    def _look_up(self, name: str, topic: TopicState) -> None:
        if topic.look_up is None:
            topic.look_up = asyncio.create_task(self._find(name, topic))

    async def _find(self, name: str, topic: TopicState) -> None:
        error = await self._ask_for(name)
        topic.look_up = None
        now_s = asyncio.get_running_loop().time()
        if error is None:
            topic.proved_s, topic.refusal = now_s, None
            self._hand_over(topic.take(), now_s)
            return
        outcome = not_found(error)
        topic.proved_s = None
        if outcome.fault is Fault.BROKER:
            self._trouble(outcome.reason)
        else:
            topic.refusal = (now_s + MISSING_TTL_S, outcome)
            self._reports.add(topic.take(), outcome)

    async def _ask_for(self, name: str) -> KafkaError | None:
        """The reason why the topic cannot be used. A broker that creates topics creates it."""
        error: KafkaError | None = None
        for pause_s in TOPIC_LOOKS_S:
            await asyncio.sleep(pause_s)
            if (client := self._client) is None:
                return KafkaError(KafkaError._DESTROY)
            error = await client.error_of_topic(name, ANSWER_TIMEOUT_S)
            if error is None or error.code() not in _TRANSIENT:
                break
        return error

    def _refuse_waiting(self, reason: str) -> None:
        overflow, self._overflow = self._overflow, deque()
        self._reports.add(overflow, broker_refusal(reason))
        for topic in self._topics.values():
            self._reports.add(topic.take(), broker_refusal(reason))


def _headers(delivery: Delivery) -> list[tuple[str, str | bytes | None]]:
    ours = (delivery.id, str(delivery.due_ms), str(delivery.attempt))
    return [*delivery.record.headers, *zip(OWN_HEADERS, ours, strict=True)]
