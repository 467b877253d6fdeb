"""Which outcome each of Kafka's errors means for a message.

librdkafka does not say whether a failed message was written. An error proves that it was not only
if no connection was lost since the message was handed over: otherwise librdkafka may have sent it
before, unreported. Everything else is unknown, purged messages too: librdkafka keeps those that it
will send a second time in the same queue as new ones.
"""

from __future__ import annotations

from dataclasses import replace

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
DOWN = frozenset(
    {
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._AUTHENTICATION,
        KafkaError._SSL,
        KafkaError._RESOLVE,
        KafkaError._TIMED_OUT,
        KafkaError._TRANSPORT,
        KafkaError._DESTROY,
        KafkaError.SASL_AUTHENTICATION_FAILED,
    }
)
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
    return Outcome(Verdict.UNKNOWN, f"{word}: {shown(error)}", fault)


def not_queued(delivery: Delivery, exc: Exception) -> Outcome:
    """The outcome of a delivery that librdkafka did not accept."""
    error = error_of(exc)
    if error is None:
        return Outcome(Verdict.REFUSED, f"unencodable: {type(exc).__name__}")
    return _refusal(error, delivery) or Outcome(Verdict.REFUSED, f"refused: {shown(error)}")


def not_found(error: KafkaError) -> Outcome:
    """The outcome of deliveries to a topic that could not be looked up."""
    if (refused := _refusal(error)) is not None:
        return refused
    fault = Fault.BROKER if error.code() in DOWN else Fault.DESTINATION
    word = "unreachable" if fault is Fault.BROKER else "topic_unavailable"
    return Outcome(Verdict.REFUSED, f"{word}: {shown(error)}", fault)


def error_of(exc: BaseException) -> KafkaError | None:
    """The error inside a KafkaException; None if there is none."""
    found = exc.args[0] if isinstance(exc, KafkaException) else None
    return found if isinstance(found, KafkaError) else None


def shown(error: KafkaError) -> str:
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
    return Outcome(Verdict.REFUSED, f"{word}: {shown(error)}", fault)
