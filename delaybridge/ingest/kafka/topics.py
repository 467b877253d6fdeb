"""Topics by their ids, which tell a topic from another that bore its name before.

And where the reading of a partition begins, and how much of it waits.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import suppress
from typing import Any, NamedTuple

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient

from delaybridge.publish.kafka.outcomes import error_of

ANSWER_TIMEOUT_S = 10.0
_MEASURE_TIMEOUT_S = 0.2
_AGAIN_S = 0.1
_LOOK_SHARE = 10  # looking costs at most one part in so many
_LOOK_S = 1.0  # ... but so often there is a look, whatever it costs


Place = tuple[str, int]


class Topic(NamedTuple):
    """One topic. id: empty where the broker gives none."""

    name: str
    id: str


class TopicRecreated(Exception):
    """A topic bears the name of another that was read."""


class TopicIds:
    """The ids of topics. To be used in one thread."""

    def __init__(self, settings: Mapping[str, Any], logger: logging.Logger) -> None:
        """settings: librdkafka's."""
        self._admin = AdminClient(dict(settings), logger=logger)
        self._known: dict[str, str] = {}
        self._next_look_s = 0.0

    def names(self, timeout_s: float) -> list[str]:
        """The topics that are there; KafkaException if there is no answer."""
        return [*self._admin.list_topics(timeout=timeout_s).topics]

    def of(self, name: str) -> Topic:
        """The topic as it was last learnt."""
        return Topic(name, self._known.get(name, ""))

    def learn(self, names: Iterable[str], *, pause: Callable[[float], bool]) -> None:
        """Ask for ids, and again while a topic is not known everywhere yet.

        pause: waits so many seconds; true if there is no time for more. KafkaException if there is
        no answer in time: an id that is missing once would make other ids, and so other messages,
        of the same records.
        """
        deadline_s = time.monotonic() + ANSWER_TIMEOUT_S
        left = set(names)
        while left:
            found, error = self._ask(left)
            self._known |= found
            left -= found.keys()
            if error is not None and (pause(_AGAIN_S) or time.monotonic() > deadline_s):
                raise error

    def check(self, names: set[str], *, at_once: bool = False) -> None:
        """TopicRecreated if one of them has another id than was learnt.

        Of records that were read before a look that finds nothing changed it is certain whose they
        are. There is a look each time, unless it costs too much and need not be at once. A topic
        that cannot be asked about counts as unchanged: it is away, not new.
        """
        if not names or (not at_once and time.monotonic() < self._next_look_s):
            return
        began_s = time.monotonic()
        found, _ = self._ask(names)
        took_s = time.monotonic() - began_s
        self._next_look_s = began_s + min(took_s * _LOOK_SHARE, max(_LOOK_S, 2 * took_s))
        for name, id in found.items():
            if self._known.get(name, id) != id:
                raise TopicRecreated(f"{name} was deleted and made anew; it is read from its start")

    def _ask(self, names: set[str]) -> tuple[dict[str, str], KafkaException | None]:
        """The ids that were given, and what was said instead of the others."""
        found: dict[str, str] = {}
        refusal = None
        asked = self._admin.describe_topics(
            TopicCollection(sorted(names)), request_timeout=ANSWER_TIMEOUT_S
        )
        for name, future in asked.items():
            try:
                found[name] = _text(future.result(ANSWER_TIMEOUT_S).topic_id)
            except FutureTimeout:
                refusal = KafkaException(KafkaError(KafkaError._TIMED_OUT))
            except KafkaException as exc:
                error = error_of(exc)
                if error is not None and error.code() == KafkaError._UNSUPPORTED_FEATURE:
                    found[name] = ""
                else:
                    refusal = exc
        return found, refusal


def _text(id: Any) -> str:
    """A topic id in the 22 characters that Kafka's own tools print; empty if there is none."""
    high, low = id.get_most_significant_bits(), id.get_least_significant_bits()
    return "" if not (high or low) else str(id)


def skips(texts: Iterable[str]) -> dict[Place, int]:
    """TOPIC/PARTITION=OFFSET -> the first offset to read."""
    skipped = {}
    for text in texts:
        place, _, offset = text.rpartition("=")
        topic, _, partition = place.rpartition("/")
        skipped[topic, int(partition)] = int(offset) + 1
    return skipped


def beginnings(
    consumer: Consumer,
    partitions: Sequence[TopicPartition],
    topics: TopicIds,
    skip: Mapping[Place, int],
) -> list[TopicPartition]:
    """Where the group left off; the beginning where it never was, or was in a topic that is gone.

    skip: first offset to read, if it is more. KafkaException if the broker does not say.
    """
    known = consumer.committed(list(partitions), timeout=ANSWER_TIMEOUT_S) if partitions else []
    for place in known:
        if place.error is not None:
            raise KafkaException(place.error)
        read_from = place.metadata or ""  # the id of the topic whose offset this is
        if place.offset < 0 or read_from not in ("", topics.of(place.topic).id):
            place.offset = OFFSET_BEGINNING
        after = skip.get((place.topic, place.partition))
        if after is not None and place.offset < after:
            place.offset = after
    return known


def waiting(
    consumer: Consumer, begun: Mapping[Place, int], stopped: Collection[Place]
) -> dict[str, int]:
    """How many records wait, by topic, as far as they were read and fetched.

    begun: where partitions began. stopped: of what is not fetched the broker is asked.
    """
    found: dict[str, int] = {}
    for place in consumer.position(consumer.assignment()):
        where = place.topic, place.partition
        position = place.offset if place.offset >= 0 else begun.get(where, 0)
        with suppress(KafkaException):
            low, high = consumer.get_watermark_offsets(
                place, timeout=_MEASURE_TIMEOUT_S, cached=where not in stopped
            )
            behind = max(high - max(position, low), 0)
            found[place.topic] = found.get(place.topic, 0) + behind
    return found
