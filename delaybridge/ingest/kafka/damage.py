"""Records that stop a partition until an operator decides, and where reading could continue."""

from __future__ import annotations

from confluent_kafka import OFFSET_END, Consumer, KafkaError, KafkaException, TopicPartition

from delaybridge.publish.kafka.configuration import Configuration, LineLogger
from delaybridge.publish.kafka.outcomes import error_of, error_text

_GONE = frozenset({KafkaError._AUTO_OFFSET_RESET, KafkaError._LOG_TRUNCATION})
_UNREADABLE = {
    KafkaError._BAD_MSG: "corrupt: a record batch fails its checksum",
    KafkaError._BAD_COMPRESSION: "corrupt: a record batch cannot be decompressed",
    KafkaError._NOT_IMPLEMENTED: "unsupported: a record batch of an unknown format",
}
STOPS = _GONE | _UNREADABLE.keys()
"""Codes of errors that stop the reading of a partition."""
_ANSWER_TIMEOUT_S = 5.0
_LOOK_S = 2.0


def diagnosis(settings: Configuration, place: TopicPartition, code: int) -> str:
    """Say to the operator what is wrong with the record at a place, and how to continue.

    Takes a moment: it asks the broker, and looks for the batch's end.
    """
    look = _private_consumer(settings)
    try:
        low, high = look.get_watermark_offsets(place, timeout=_ANSWER_TIMEOUT_S)
        if code in _UNREADABLE:
            last = _end_of_batch(look, place, high)
            return f"{_UNREADABLE[code]}: {_range(place, last)}"
    except KafkaException as exc:
        error = error_of(exc)
        why = "no answer" if error is None else error_text(error)
        what = _UNREADABLE.get(code, "lost_input: the next record does not exist")
        return f"{what}; stopped at offset {place.offset} ({why})"
    finally:
        look.close()
    if place.offset < low:
        lost = "lost_input: retention took records before they were read"
        return f"{lost}: {_range(place, low - 1)}"
    return (
        f"lost_input: the log was cut back: it ends at offset {high}, before the next record to "
        f"read, {place.offset}"
    )


def is_readable(settings: Configuration, topic: str, partition: int) -> bool:
    """Whether a partition can be read, even if it holds nothing new."""
    look = _private_consumer(settings)
    try:
        look.assign([TopicPartition(topic, partition, OFFSET_END)])
        found = look.consume(1, _LOOK_S)
        error = found[0].error() if found else KafkaError(KafkaError._TIMED_OUT)
        return error is None or error.code() == KafkaError._PARTITION_EOF
    finally:
        look.close()


def _private_consumer(settings: Configuration) -> Consumer:
    """A consumer that joins no group and commits nothing; librdkafka demands a group name."""
    own = {
        "group.id": "delaybridge-look",
        "enable.auto.commit": False,
        "enable.partition.eof": True,
        "auto.offset.reset": "error",
        "check.crcs": True,
    }
    return Consumer({**settings.current(), **own}, logger=LineLogger())


def _range(place: TopicPartition, last: int) -> str:
    return (
        f"offsets {place.offset} to {last}; to continue after them: delaybridge ingest kafka "
        f"--skip-offset {place.topic}/{place.partition}={last}"
    )


def _end_of_batch(look: Consumer, place: TopicPartition, high: int) -> int:
    """The last offset of the batch that begins at a place; high: where the log ends.

    A client learns only where such a batch begins, and gets the same error for every offset
    inside it.
    """
    inside, outside = place.offset, high
    while outside - inside > 1:
        middle = (inside + outside) // 2
        look.assign([TopicPartition(place.topic, place.partition, middle)])
        found = look.consume(1, _LOOK_S)
        error = found[0].error() if found else None
        if error is not None and error.code() in _UNREADABLE and found[0].offset() == place.offset:
            inside = middle
        else:
            outside = middle
    return inside
