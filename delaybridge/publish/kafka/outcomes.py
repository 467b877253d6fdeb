"""Which outcome each of Kafka's errors means for a message.

librdkafka does not say whether a failed message was written. An error proves that it was not only
if no connection was lost since the message was handed over: otherwise librdkafka may have sent it
before, unreported. Everything else is unknown, purged messages too: librdkafka keeps those that it
will send a second time in the same queue as new ones.

Kafka takes or refuses a batch as a whole: one record without a key in a compacted topic, one that
an interceptor or a schema does not like, or a batch above the topic's `max.message.bytes`. The
other records are innocent: they are certainly not written, and go again at once, without a failed
attempt (`Care`). Most brokers name the guilty. Where none is named, halves of the batch go, one
after the other, and a refused half is halved again, until so few are left that each goes in its own
request.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from typing import NamedTuple

from confluent_kafka import KafkaError, KafkaException

from delaybridge.errors import DETAIL_LIMIT, printable
from delaybridge.message import Delivery
from delaybridge.publish import Fault, Outcome, Verdict

MISSING = frozenset(
    {
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError.TOPIC_EXCEPTION,  # not a valid name
        KafkaError._UNKNOWN_TOPIC,
        KafkaError._UNKNOWN_PARTITION,
    }
)
# After these the topic is looked up before the next record.
DOUBTFUL = MISSING | {KafkaError._MSG_TIMED_OUT}
LOGIN_REFUSED = frozenset({KafkaError._AUTHENTICATION, KafkaError.SASL_AUTHENTICATION_FAILED})
DOWN = frozenset({
    KafkaError._ALL_BROKERS_DOWN, KafkaError._AUTHENTICATION, KafkaError._SSL, KafkaError._RESOLVE,
    KafkaError._TIMED_OUT, KafkaError._TRANSPORT, KafkaError._DESTROY,
    KafkaError.SASL_AUTHENTICATION_FAILED,
})  # fmt: skip
# Code -> first word of the reason, and where the fault is.
_REFUSALS = {
    **dict.fromkeys(MISSING, ("topic_missing", Fault.MESSAGE)),
    KafkaError.MSG_SIZE_TOO_LARGE: ("message_too_large", Fault.MESSAGE),
    KafkaError.RECORD_LIST_TOO_LARGE: ("message_too_large", Fault.MESSAGE),
    KafkaError.INVALID_RECORD: ("rejected", Fault.MESSAGE),
    KafkaError._INVALID_DIFFERENT_RECORD: ("rejected_with_another", Fault.MESSAGE),
    KafkaError.INVALID_TIMESTAMP: ("rejected", Fault.MESSAGE),
    KafkaError.POLICY_VIOLATION: ("rejected", Fault.MESSAGE),
    KafkaError.TOPIC_AUTHORIZATION_FAILED: ("access_refused", Fault.DESTINATION),
    KafkaError.CLUSTER_AUTHORIZATION_FAILED: ("access_refused", Fault.DESTINATION),
}


def answer(delivery: Delivery, error: KafkaError, *, is_proof: bool) -> Outcome:
    """The outcome of a failed delivery. is_proof: no connection was lost meanwhile."""
    refused = _refusal(error, delivery)
    if refused is not None and is_proof:
        of_message = refused.fault is Fault.MESSAGE and error.code() not in MISSING
        return replace(refused, answered=of_message)
    word = "confirm_timeout" if error.code() == KafkaError._MSG_TIMED_OUT else "failed"
    fault = Fault.MESSAGE if refused is None else refused.fault
    return Outcome(Verdict.UNKNOWN, f"{word}: {error_text(error)}", fault)


def not_queued(delivery: Delivery, exc: Exception) -> Outcome:
    """The outcome of a delivery that librdkafka did not accept."""
    error = error_of(exc)
    if error is None:
        return Outcome(Verdict.REFUSED, f"unencodable: {type(exc).__name__}")
    return _refusal(error, delivery) or Outcome(Verdict.REFUSED, f"refused: {error_text(error)}")


def not_found(error: KafkaError) -> Outcome:
    """The outcome of deliveries to a topic that could not be looked up."""
    if (refused := _refusal(error)) is not None:
        return refused
    fault = Fault.BROKER if error.code() in DOWN else Fault.DESTINATION
    word = "unreachable" if fault is Fault.BROKER else "topic_unavailable"
    return Outcome(Verdict.REFUSED, f"{word}: {error_text(error)}", fault)


def error_of(exc: BaseException) -> KafkaError | None:
    """The error inside a KafkaException; None if there is none."""
    found = exc.args[0] if isinstance(exc, KafkaException) else None
    return found if isinstance(found, KafkaError) else None


def error_text(error: KafkaError) -> str:
    """The error as text, printable and short."""
    return printable(f"{error.name().lstrip('_')} {error.str()}")[:DETAIL_LIMIT]


def _refusal(error: KafkaError, delivery: Delivery | None = None) -> Outcome | None:
    found = _REFUSALS.get(error.code())
    if found is None:
        return None
    word, fault = found
    asked = None if delivery is None else delivery.record.partition
    if asked is not None and error.code() == KafkaError._UNKNOWN_PARTITION:
        word = "partition_missing"
    return Outcome(Verdict.REFUSED, f"{word}: {error_text(error)}", fault)


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
