"""Publishes to Kafka: up to four producers, kept up, and for each topic whether it exists.

`client.py` is librdkafka on the loop; `clients.py` the producers; `topic.py` says which of them a
topic gains from; `care.py` finds the guilty of a refused batch; `outcomes.py` maps librdkafka's
errors to outcomes.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence

from confluent_kafka import KafkaError, libversion

from delaybridge.errors import DETAIL_LIMIT, printable
from delaybridge.message import Delivery, Destination
from delaybridge.publish import CONFIRMED, Fault, Outcome, PublishOptions, Verdict
from delaybridge.publish.kafka.client import Answers, KafkaClient, on_thread
from delaybridge.publish.kafka.clients import KafkaClients
from delaybridge.publish.kafka.configuration import check, configuration, largest_record
from delaybridge.publish.kafka.outcomes import (
    LOGIN_REFUSED,
    MISSING,
    OF_A_BATCH,
    FailedRecord,
    Judgement,
    answer,
    error_of,
    error_text,
    judged,
    not_found,
    not_queued,
)
from delaybridge.publish.kafka.topic import AGAIN_S, Rank, TopicState, TopicStates, Turns
from delaybridge.publish.link import CLOSED, CLOSING, UNCONFIRMED, LinkedPublisher, broker_refusal
from delaybridge.stranger import KAFKA, wrong_server

ANSWER_TIMEOUT_S = 5.0
WARM_UP_TIMEOUT_S = 5.0  # for the producer id, without which no record is sent
TOPIC_LOOKS_S = (0.0, 0.1, 0.2, 0.4)  # a topic that the broker creates appears meanwhile
TOPIC_TTL_S = 30.0  # without a confirm for longer, the topic is looked up again
MISSING_TTL_S = 1.0  # how long a topic counts as missing before it is looked up again
_NOT_ASKED = KafkaError(KafkaError._DESTROY)
_TRANSIENT = MISSING | {KafkaError.LEADER_NOT_AVAILABLE}


class Flight:
    """Records of one topic that were handed to librdkafka together, and when."""

    __slots__ = ("since_s", "topic")

    def __init__(self, topic: TopicState, since_s: float) -> None:
        self.topic, self.since_s = topic, since_s


class KafkaPublisher(LinkedPublisher):
    """A `Publisher` for one Kafka cluster. Confirmed means: by all in-sync replicas.

    Its URL is kafka[s]://[USER:PASSWORD@]HOST[:PORT][,HOST[:PORT]...][?OPTION=VALUE...]; kafkas://
    verifies certificate and host name. The options are librdkafka's, from an allow-list;
    ConfigError for others, and for values that librdkafka refuses.
    """

    def _configure(self, url: str, options: PublishOptions) -> None:
        self._settings = configuration(self.name, url, options)
        check(self.name, self._settings)
        self._topics = TopicStates()
        self._clients = KafkaClients(
            self._settings, self._guarded(self._answered), self._guarded(self._erred)
        )
        self._unconfirmed: dict[Delivery, Flight] = {}  # given to librdkafka
        self._holding: dict[TopicState, None] = {}  # topics that hold records, and why they wait
        self._troubled = asyncio.Event()
        self._turns = Turns()
        self._login_refused = ""

    def _send(self, deliveries: Sequence[Delivery]) -> None:
        by_topic: dict[str, list[Delivery]] = {}
        for delivery in deliveries:
            by_topic.setdefault(delivery.destination.address, []).append(delivery)
        now_s = asyncio.get_running_loop().time()
        for name, batch in by_topic.items():
            topic = self._topics[name]
            if topic.refusal is not None and now_s < topic.refusal[0]:
                self._reports.add(batch, topic.refusal[1])
            elif topic.proved_s is None or topic.waiting:
                topic.waiting.extend(batch)
                self._look_up(topic)
            else:
                self._hand_over(topic, batch, now_s)  # an error there may reset `proved_s`
                if topic.proved_s is None or now_s - topic.proved_s > TOPIC_TTL_S:
                    self._look_up(topic)

    async def _check(self, destination: Destination) -> str | None:
        if (client := self._clients.prompt) is None:
            return CLOSING
        error = await client.error_of_topic(destination.address, ANSWER_TIMEOUT_S)
        return None if error is None else not_found(error).reason

    async def limits(self) -> dict[str, int]:
        """The most bytes of one record, if the cluster says so."""
        most = await on_thread(lambda: largest_record(self._settings))
        return {} if most is None else {"record": most}

    def _describe(self) -> str:
        at = self._settings["bootstrap.servers"]
        how = f"{self._settings['security.protocol']}, idempotent, acks=all"
        return f"Kafka at {at}, {how}, librdkafka {libversion()[0]}"

    # the connection

    async def _connect_until_lost(self) -> None:
        self._troubled.clear()
        self._login_refused = ""
        trouble = await self._warm_up()
        if trouble is None:
            self._opened()
            await self._troubled.wait()
        else:
            self._change(trouble)

    async def _warm_up(self) -> str | None:
        """Reach a broker and get a producer id before anything is due; the reason if that fails."""
        client = self._clients.open()
        error = await client.error_of_topic(None, ANSWER_TIMEOUT_S)
        if error is not None:
            # librdkafka tells no wrong port or password from one that is down.
            why = await _wrong_server(self._settings) or self._login_refused
            return why or f"unreachable: {error_text(error)}"
        try:
            async with asyncio.timeout(WARM_UP_TIMEOUT_S):
                await client.ready.wait()
        except TimeoutError:
            return self.unavailable or "unreachable: the broker gives no producer id"
        return None if client is self._clients.prompt else self.unavailable

    def _erred(self, client: KafkaClient, error: KafkaError) -> None:
        if client not in self._clients:
            return  # that client was dropped
        if error.code() in LOGIN_REFUSED:
            client.renew_password()
            user = printable(self._settings.get("sasl.username", ""))
            self._login_refused = f"login_refused: the broker refused user {user}"[:DETAIL_LIMIT]
        reason = self._login_refused or f"unreachable: {error_text(error)}"
        if not (error.fatal() or error.code() == KafkaError._ALL_BROKERS_DOWN):
            return
        if client is not self._clients.prompt and not self._topics.need(client):
            self._clients.drop_spare(client)  # no record needs it; the prompt one tells of all
        elif error.fatal():
            # The producer is unusable for good; the next session makes a new one.
            self._give_up(
                Outcome(Verdict.UNKNOWN, f"fatal: {error_text(error)}", Fault.BROKER), reason
            )
            self._troubled.set()
        else:
            client.is_down = True
            self._trouble(reason)

    def _trouble(self, reason: str) -> None:
        self._change(reason)
        self._refuse_waiting(reason)
        self._troubled.set()

    def _give_up(self, outcome: Outcome, unavailable: str) -> None:
        """Deliveries given to librdkafka end in `outcome`; waiting ones are refused."""
        self._change(unavailable)
        self._clients.drop()
        flying, self._unconfirmed = self._unconfirmed, {}
        self._reports.add(flying, outcome)
        for topic in self._topics.values():
            topic.in_flight = 0
        self._refuse_waiting(unavailable)

    def _abandon(self, reason: str) -> None:
        self._give_up(Outcome(Verdict.UNKNOWN, reason, Fault.BROKER), reason)

    def _is_idle(self) -> bool:
        kept = any(topic.waiting or topic.held for topic in self._topics.values())
        return not (self._unconfirmed or kept)

    async def _disconnect(self) -> None:
        self._give_up(Outcome(Verdict.UNKNOWN, UNCONFIRMED, Fault.BROKER), CLOSED)
        self._reports.flush()
        await self._clients.ended()

    # publishing, and the answers

    def _hand_over(self, topic: TopicState, batch: Iterable[Delivery], now_s: float) -> None:
        if self._clients.prompt is None or self.unavailable is not None:
            self._reports.add(batch, broker_refusal(self.unavailable or "not_connected"))
            return
        others_wait = bool(topic.held)
        topic.held.extend(batch)  # after those that wait, to keep the order
        if not others_wait:
            self._go_on(topic, now_s)

    def _go_on(self, topic: TopicState, now_s: float) -> None:
        """Give librdkafka what the topic holds; what it cannot take now stays held."""
        while topic.held:
            client = topic.client = self._choose(topic, now_s)
            if topic.is_blocked or client is None:
                self._holding[topic] = None
                return
            piece = topic.piece(now_s, one_by_one=client is self._clients.single)
            count, error = client.produce(topic.name, piece)
            sent = topic.pop(count)
            topic.in_flight += len(sent)
            self._unconfirmed.update(dict.fromkeys(sent, Flight(topic, now_s)))
            if isinstance(error, BufferError) and self._unconfirmed:
                self._holding[topic] = None  # until some of those are answered
                return
            if error is not None:
                self._not_taken(topic, topic.pop(1)[0], error)

    def _choose(self, topic: TopicState, now_s: float) -> KafkaClient | None:
        """The producer for what the topic holds. The topic is blocked if it is to change first."""
        topic.end_change()
        if topic.is_blocked:
            return topic.client
        best = self._clients.best_for(topic, now_s)
        if topic.in_flight == 0 or best is topic.client:
            return best
        topic.begin_change(self._guarded(self._stay))
        return topic.client

    def _stay(self, topic: TopicState) -> None:
        """The change took too long: the topic goes on with the producer that it has."""
        now_s = asyncio.get_running_loop().time()
        topic.stay_until(now_s + AGAIN_S)
        self._go_on(topic, now_s)

    def _not_taken(self, topic: TopicState, delivery: Delivery, error: Exception) -> None:
        if isinstance(error, BufferError):
            outcome = Outcome(Verdict.REFUSED, "message_too_large: no room")
        else:
            outcome = not_queued(delivery, error)
            topic.doubt(error_of(error))
        self._reports.add([delivery], outcome)

    def _answered(self, client: KafkaClient, answers: Answers) -> None:
        if client not in self._clients:
            return  # its deliveries have their outcomes already
        now_s = asyncio.get_running_loop().time()
        self._judge(client, answers.failed, now_s)
        if answers.confirmed:
            client.is_down = False
            self._reports.add(answers.confirmed, CONFIRMED)
            flights = Counter(map(self._unconfirmed.pop, answers.confirmed))
            for flight, count in flights.items():
                flight.topic.confirmed(count, flight.since_s, now_s)
        is_spare = client is not self._clients.prompt
        if client.is_down and is_spare and not self._topics.need(client):
            self._clients.drop_spare(client)  # else its topics would stay with it, settled
        for topic in [topic for topic in self._holding if not topic.is_blocked]:
            del self._holding[topic]
            self._go_on(topic, now_s)

    def _judge(self, client: KafkaClient, failures: Iterable[FailedRecord], now_s: float) -> None:
        refused: dict[TopicState, list[FailedRecord]] = {}
        for failure in failures:
            delivery, error, _ = failure
            flight = self._unconfirmed.pop(delivery)
            is_proof = client.disturbed_s < flight.since_s
            if is_proof and error.code() in OF_A_BATCH:
                refused.setdefault(flight.topic, []).append(failure)
            else:
                flight.topic.failed(now_s)
                self._reports.add([delivery], answer(delivery, error, is_proof=is_proof))
                flight.topic.doubt(error)
        for topic, theirs in refused.items():
            for judgement in judged(theirs, alone=client is self._clients.single):
                self._refused(topic, judgement, now_s)

    def _refused(self, topic: TopicState, judgement: Judgement, now_s: float) -> None:
        topic.refused(judgement, now_s)
        for delivery, error, _ in judgement.guilty:
            self._reports.add([delivery], answer(delivery, error, is_proof=True))
        if self.unavailable is not None:
            self._reports.add(topic.take_all(), broker_refusal(self.unavailable))
        elif topic.held:
            self._holding[topic] = None

    # topics

    def _look_up(self, topic: TopicState) -> None:
        if topic.look_up is None:
            topic.look_up = self._spawn(self._find(topic))

    async def _find(self, topic: TopicState) -> None:
        since_s = self._since_s
        try:
            error = await self._ask_for(topic)
        finally:
            topic.look_up = None
        now_s = asyncio.get_running_loop().time()
        if error is None:
            topic.proved(now_s)
            topic.refusal = None
            waiting, topic.waiting = topic.waiting, deque()
            self._hand_over(topic, waiting, now_s)
            return
        outcome = not_found(error)
        topic.proved_s = None
        if outcome.fault is not Fault.BROKER:
            topic.rank = Rank.REFUSED
            topic.refusal = (now_s + MISSING_TTL_S, outcome)
            self._reports.add(topic.take_all(), outcome)
        elif self.unavailable is not None:
            self._reports.add(topic.take_all(), broker_refusal(self.unavailable))
        elif error is not _NOT_ASKED and since_s == self._since_s:
            self._trouble(outcome.reason)
        elif topic.waiting:  # a question of an earlier session says nothing about this one
            self._look_up(topic)

    async def _ask_for(self, topic: TopicState) -> KafkaError | None:
        """The reason why the topic cannot be used. A broker that creates topics creates it."""
        error: KafkaError | None = None
        for pause_s in TOPIC_LOOKS_S:
            await asyncio.sleep(pause_s)
            async with self._turns.turn(topic.rank):
                client = self._clients.prompt
                if client is None or self.unavailable is not None or not topic.needs_look_up:
                    return _NOT_ASKED  # it may have waited for long
                error = await client.error_of_topic(topic.name, ANSWER_TIMEOUT_S)
            if error is None or error.code() not in _TRANSIENT:
                break
            if topic.rank is Rank.NEW:
                topic.rank = Rank.REFUSED  # the next ones go before its other looks
        return error

    def _refuse_waiting(self, reason: str) -> None:
        self._holding.clear()
        for topic in self._topics.values():
            self._reports.add(topic.take_all(), broker_refusal(reason))


async def _wrong_server(settings: Mapping[str, str]) -> str:
    """The reason if it is no Kafka that answers, else empty; nothing is asked over TLS."""
    if "ssl" in settings["security.protocol"]:
        return ""
    host, _, port = settings["bootstrap.servers"].split(",")[0].rpartition(":")
    return await wrong_server(host, int(port), KAFKA)
