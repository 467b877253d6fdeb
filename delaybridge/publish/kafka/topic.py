"""What the publisher knows about one topic, and when its records gain from a patient producer.

TopicStates are looked up in `Turns`, a few at a time, those that exist before all others. A look-up
costs cluster and worker about a millisecond, and a broker answers one after the other: thousands at
once, each for a topic that does not exist, would hold up those of every other topic.
"""

from __future__ import annotations

import asyncio
from asyncio import Task, TimerHandle, get_running_loop
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from enum import IntEnum

from confluent_kafka import KafkaError

from delaybridge.message import Delivery
from delaybridge.publish import Outcome
from delaybridge.publish.kafka.client import KafkaClient
from delaybridge.publish.kafka.outcomes import DOUBTFUL, Care, Judgement

MAX_TOPICS = 10_000  # remembered at a time
AT_ONCE = 8  # look-ups under way
_LAST_TURN = 4  # each fourth turn is for one that others go before


class Rank(IntEnum):
    """What is known of a topic. The first go first."""

    PROVED = 0  # it existed when it was looked up last, or since
    NEW = 1
    REFUSED = 2  # it was missing, or no one may use it


class Turns:
    """Who may look up now, and who waits."""

    def __init__(self) -> None:
        self._under_way = 0
        self._waiting: tuple[deque[asyncio.Future[None]], ...] = tuple(deque() for _ in Rank)
        self._count = 0

    @asynccontextmanager
    async def turn(self, rank: Rank) -> AsyncIterator[None]:
        """Wait for a turn, which lasts as long as the block."""
        await self._take(rank)
        try:
            yield
        finally:
            self._pass_on()

    async def _take(self, rank: Rank) -> None:
        if self._under_way < AT_ONCE:
            self._under_way += 1
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting[rank].append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():  # its turn had come
                self._pass_on()
            raise

    def _pass_on(self) -> None:
        while queues := [queue for queue in self._waiting if queue]:
            self._count += 1
            turn = queues[0 if self._count % _LAST_TURN else -1].popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self._under_way -= 1


MANY = 400  # in flight: the patient producer's 5 ms are less than these take anyway
FEW = 128  # in flight: the backlog is over
SLOW_S = 0.2  # a confirm takes longer than this: 5 ms more do not matter
CHANGE_S = 1.0  # how long records wait at most for a topic to change its producer
AGAIN_S = 3.0  # from a change that took longer to the next attempt
SETTLED_S = 30.0  # how long it stays where it is after a failed record
QUEUED = 5  # in flight, and slow: librdkafka would spin; it sends five requests at a time


class TopicState:
    """One topic: whether it exists, which producer has its records, and what waits for either.

    Two producers keep no order between them, so all records in flight are in one of them. The topic
    changes to the other one only while none is in flight; `held` waits for that, or for room.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.waiting: deque[Delivery] = deque()  # for the look-up
        self.proved_s: float | None = None  # when it was last seen to exist
        self.refusal: tuple[float, Outcome] | None = None  # valid until, outcome
        self.look_up: Task[None] | None = None
        self.rank = Rank.NEW  # among the look-ups
        self.held: deque[Delivery] = deque()
        self.client: KafkaClient | None = None  # has the records in flight
        self.in_flight = 0
        self.change: TimerHandle | None = None  # while it changes; ends a change that takes long
        self.settled_s = 0.0  # until then it does not change
        self.care: Care | None = None  # after a refused batch: it is sent in pieces
        self._took_s = 0.0  # from hand-over to confirm, the last time

    @property
    def is_in_use(self) -> bool:
        """Whether anything waits or is in flight, so that it must not be forgotten."""
        return bool(self.waiting or self.look_up or self.held or self.in_flight)

    @property
    def needs_look_up(self) -> bool:
        """Whether anything depends on what a look-up finds."""
        return bool(self.waiting) or self.proved_s is not None

    @property
    def is_blocked(self) -> bool:
        """Whether `held` must wait for those in flight: for a change of producer, or with care."""
        return self.in_flight > 0 and (self.change is not None or self.care is not None)

    def gains_from_patience(self, *, is_patient: bool) -> bool:
        """Whether what is held is better sent by the patient producer. is_patient: it is now."""
        count = self.in_flight + len(self.held)
        if self._took_s > SLOW_S and (is_patient or count > QUEUED):
            return True
        return count >= (FEW if is_patient else MANY)

    def proved(self, now_s: float) -> None:
        """It exists: it was found, or a record was confirmed."""
        self.proved_s, self.rank = now_s, Rank.PROVED

    def confirmed(self, count: int, since_s: float, now_s: float) -> None:
        """The broker has this many records, handed over at `since_s`."""
        self.in_flight -= count
        self.proved(now_s)
        self._took_s = now_s - since_s

    def failed(self, now_s: float) -> None:
        """The broker may or may not have one record, and may still get it on its old connection."""
        self.in_flight -= 1
        self.stay_until(now_s + SETTLED_S)

    def refused(self, judgement: Judgement, now_s: float) -> None:
        """The broker has none of a batch: who is not guilty of it goes again."""
        self.in_flight -= sum(map(len, judgement))
        if judgement.innocent or judgement.suspects:
            self.care = self.care or Care()
            self.care.put_back(judgement, self.held, now_s)

    def piece(self, now_s: float, *, one_by_one: bool = False) -> Sequence[Delivery]:
        """The records of `held` to send next; call it while the topic is not blocked.

        one_by_one: the producer that it has makes a request of each record.
        """
        care = self.care
        if care is not None and care.is_over and now_s > care.until_s:
            care = self.care = None
        return self.held if care is None else care.piece(self.held, one_by_one=one_by_one)

    def doubt(self, error: KafkaError | None) -> None:
        """Look it up before the next record if it may be the cause of the error."""
        if error is not None and error.code() in DOUBTFUL:
            self.proved_s = None

    def pop(self, count: int) -> list[Delivery]:
        """Remove this number of records from `held`, the first ones."""
        if self.care is not None:
            self.care.left(count)
        return [self.held.popleft() for _ in range(count)]

    def stay_until(self, at_s: float) -> None:
        """Keep the producer that it has."""
        self.settled_s = max(self.settled_s, at_s)
        self.end_change()

    def begin_change(self, give_up: Callable[[TopicState], None]) -> None:
        """Wait until none is in flight. `give_up` is called if that takes long."""
        self.change = get_running_loop().call_later(CHANGE_S, give_up, self)

    def end_change(self) -> None:
        """It has changed, or does not any more."""
        if self.change is not None:
            self.change.cancel()
            self.change = None

    def take_all(self) -> list[Delivery]:
        """Remove and return all deliveries that librdkafka does not have, in order."""
        self.end_change()
        taken = [*self.held, *self.waiting]
        self.held.clear()
        self.waiting.clear()
        if self.care is not None:
            self.care.forget()
        return taken


class TopicStates(dict[str, TopicState]):
    """The topics that were published to, by name; bounded. A new name gets its state."""

    def __missing__(self, name: str) -> TopicState:
        if len(self) >= MAX_TOPICS:
            for other in [name for name, topic in self.items() if not topic.is_in_use]:
                del self[other]
        topic = self[name] = TopicState(name)
        return topic

    def need(self, client: KafkaClient) -> bool:
        """Whether a producer has records of one of them in flight."""
        return any(topic.in_flight and topic.client is client for topic in self.values())
