"""How a topic is sent after Kafka refused a batch of it, until the guilty stand alone.

Kafka takes or refuses a batch as a whole: one record without a key in a compacted topic, one that
an interceptor or a schema does not like, or a batch above the topic's `max.message.bytes`. The
other records are innocent: they are certainly not written, and go again at once, without a failed
attempt. Most brokers name the guilty. Where none is named, halves of the batch go, one after the
other, and a refused half is halved again, until so few are left that each goes in its own request.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import islice
from typing import NamedTuple

from confluent_kafka import KafkaError

from delaybridge.message import Delivery

CARE_S = 600.0  # from the last refused batch; longer than the guilty wait for their next attempt
ALONE = 500  # suspects at most that go each in its own request
PIECE_RECORDS = 1000
PIECE_BYTES = 500_000  # librdkafka makes one batch of it, which has at most 1,000,000

TOO_LARGE = frozenset({KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE})
# With these the broker has refused a whole batch before it wrote any of it.
OF_A_BATCH = TOO_LARGE | {
    KafkaError.INVALID_RECORD,
    KafkaError._INVALID_DIFFERENT_RECORD,
    KafkaError.INVALID_TIMESTAMP,
    KafkaError.POLICY_VIOLATION,
}


class FailedRecord(NamedTuple):
    """A record that librdkafka reports as failed."""

    delivery: Delivery
    error: KafkaError
    partition: int | None


class Judgement(NamedTuple):
    """Who is to blame for one refused batch. suspects: the broker did not say which of them."""

    guilty: Sequence[FailedRecord] = ()
    innocent: Sequence[FailedRecord] = ()
    suspects: Sequence[FailedRecord] = ()


def judged(failures: Sequence[FailedRecord], *, alone: bool = False) -> list[Judgement]:
    """A judgement for each partition, and for what was too large there.

    alone: each record had its own request.

    librdkafka reports all records of a batch together. Whoever is alone is guilty.
    """
    if alone:
        return [Judgement(guilty=failures)]
    batches: dict[tuple[int | None, bool], list[FailedRecord]] = {}
    for failure in failures:  # a batch that is too large blames no record of another one
        is_large = failure.error.code() in TOO_LARGE
        batches.setdefault((failure.partition, is_large), []).append(failure)
    return [_judgement(batch) for batch in batches.values()]


def _judgement(batch: Sequence[FailedRecord]) -> Judgement:
    if len(batch) == 1:
        return Judgement(guilty=batch)
    other = KafkaError._INVALID_DIFFERENT_RECORD
    innocent = [each for each in batch if each.error.code() == other]
    if innocent and len(innocent) < len(batch):
        return Judgement([each for each in batch if each.error.code() != other], innocent)
    return Judgement(suspects=batch)


class _Set:
    """Records that were sent before, one after the other in `held`."""

    __slots__ = ("are_suspects", "count")

    def __init__(self, count: int, *, are_suspects: bool) -> None:
        self.count, self.are_suspects = count, are_suspects


class Care:
    """The pieces in which a topic is sent. Each waits for the answer to the one before.

    Otherwise librdkafka would put them into one batch again. until_s: when it ends.
    """

    def __init__(self) -> None:
        self.until_s = 0.0
        self._sets: list[_Set] = []  # the records that `held` begins with
        self._most_bytes = PIECE_BYTES
        self._returned_sets = self._returned = 0  # since the last piece was sent

    @property
    def is_over(self) -> bool:
        """Whether no record is left that was sent before."""
        return not self._sets

    @property
    def has_suspects(self) -> bool:
        """Whether the next piece is of suspects."""
        return bool(self._sets) and self._sets[0].are_suspects

    @property
    def is_for_one_by_one(self) -> bool:
        """Whether each record of the next piece should have its own request."""
        return self.has_suspects and self._sets[0].count <= ALONE

    def put_back(self, judgement: Judgement, held: deque[Delivery], now_s: float) -> None:
        """Hold again those that may not be guilty, before all that have not been sent yet."""
        self.until_s = now_s + CARE_S
        innocent = [each.delivery for each in judgement.innocent]
        suspects = [each.delivery for each in judgement.suspects]
        half = len(suspects) // 2
        if suspects and judgement.suspects[0].error.code() in TOO_LARGE:
            size = sum(delivery.size for delivery in suspects)
            self._most_bytes = min(self._most_bytes, size // 2)
            half = 0
        for those in (innocent, suspects[:half], suspects[half:]):
            if those:
                held.rotate(-self._returned)
                held.extendleft(reversed(those))
                held.rotate(self._returned)
                made = _Set(len(those), are_suspects=those is not innocent)
                self._sets.insert(self._returned_sets, made)
                self._returned += len(those)
                self._returned_sets += 1

    def piece(self, held: deque[Delivery], *, one_by_one: bool = False) -> list[Delivery]:
        """The records to send next, at least one. one_by_one: each has its own request."""
        most = min(self._sets[0].count, PIECE_RECORDS) if self._sets else PIECE_RECORDS
        if one_by_one:
            return list(islice(held, most))
        found: list[Delivery] = []
        size = 0
        for delivery in islice(held, most):
            size += delivery.size
            if found and size > self._most_bytes:
                break
            found.append(delivery)
        return found

    def left(self, count: int) -> None:
        """This number of records has left `held`."""
        self._returned = self._returned_sets = 0
        while count and self._sets:
            taken = min(count, self._sets[0].count)
            count -= taken
            self._sets[0].count -= taken
            if not self._sets[0].count:
                del self._sets[0]

    def forget(self) -> None:
        """Nothing is held any more."""
        self._sets.clear()
        self._returned = self._returned_sets = 0
