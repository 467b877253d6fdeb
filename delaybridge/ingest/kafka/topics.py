"""The ids of topics, which tell a topic from an earlier one of the same name."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import suppress
from typing import Any, NamedTuple

from confluent_kafka import KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._listoffsets import OffsetSpec

from delaybridge.publish import PublishOptions
from delaybridge.publish.kafka.configuration import Configuration, LineLogger, configuration
from delaybridge.publish.kafka.outcomes import error_of

ANSWER_TIMEOUT_S = 10.0
_ENDS_TIMEOUT_S = 1.0
_AGAIN_S = 0.1
_LOOK_SHARE = 10  # at most one tenth of the time is spent on looking
_LOOK_S = 1.0  # ... but there is a look every second, whatever it costs


Place = tuple[str, int]


class Topic(NamedTuple):
    """One topic. id: empty where the broker gives none."""

    name: str
    id: str


class TopicRecreated(Exception):
    """A topic was deleted, and another has its name."""


class TopicIds:
    """The ids of topics. To be used in one thread."""

    def __init__(self, settings: Configuration) -> None:
        self._settings = settings
        self._admin = AdminClient(dict(settings.current()), logger=LineLogger())
        self._known: dict[str, str] = {}
        self._next_look_s = 0.0

    def names(self, timeout_s: float) -> list[str]:
        """All topics of the cluster; KafkaException if there is no answer in time."""
        try:
            return [*self._admin.list_topics(timeout=timeout_s).topics]
        except KafkaException:
            self._settings.renew(self._admin)
            raise

    def ends(self, places: Iterable[Place]) -> dict[Place, int]:
        """The offsets after the last records of partitions, of those that answer in time."""
        latest: Any = OffsetSpec.latest()  # type: ignore[no-untyped-call]
        asked = {TopicPartition(*place): latest for place in places}
        found: dict[Place, int] = {}
        if asked:
            answers = self._admin.list_offsets(asked, request_timeout=_ENDS_TIMEOUT_S)
            for place, future in answers.items():
                with suppress(KafkaException, FutureTimeout):
                    found[place.topic, place.partition] = future.result(_ENDS_TIMEOUT_S).offset
        return found

    def topic_named(self, name: str) -> Topic:
        """The topic as it was last learnt."""
        return Topic(name, self._known.get(name, ""))

    def learn(self, names: Iterable[str], *, pause: Callable[[float], bool]) -> None:
        """Ask for ids, repeatedly while not every broker knows the topic yet.

        pause: waits that many seconds; true means give up. KafkaException if there is no answer in
        time: message ids are made of topic ids, so a missing one would give the same records other
        ids.
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

        If a look finds nothing changed, all records read before it are from the topic that was
        learnt. Each call looks, unless that would cost too much and `at_once` is false. A topic
        that cannot be asked about counts as unchanged: it is unavailable, not new.
        """
        if not names or (not at_once and time.monotonic() < self._next_look_s):
            return
        began_s = time.monotonic()
        found, _ = self._ask(names)
        took_s = time.monotonic() - began_s
        self._next_look_s = began_s + min(took_s * _LOOK_SHARE, max(_LOOK_S, 2 * took_s))
        for name, id in found.items():
            if self._known.get(name, id) != id:
                raise TopicRecreated(
                    f"{name} was deleted and created again; it is read from its start"
                )

    def _ask(self, names: set[str]) -> tuple[dict[str, str], KafkaException | None]:
        """The ids found, and the last error of those not found."""
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
        if refusal is not None:
            self._settings.renew(self._admin)
        return found, refusal


def topics_of(broker: str, url: str, options: PublishOptions, timeout_s: float) -> list[str]:
    """All topics of a cluster; none if it gives no answer in time."""
    with suppress(KafkaException):
        return TopicIds(configuration(broker, url, options)).names(timeout_s)
    return []


def _text(id: Any) -> str:
    """A topic id in the 22 characters that Kafka's own tools print; empty if there is none."""
    high, low = id.get_most_significant_bits(), id.get_least_significant_bits()
    return "" if not (high or low) else str(id)
