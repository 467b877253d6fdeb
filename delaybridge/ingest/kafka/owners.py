"""Which namespace each delay topic belongs to, as commits of a consumer group without members.

The mark of a topic is the metadata of an offset committed for its first partition. All namespaces
commit it in the same group, so that they see each other's marks whatever groups they read in.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from delaybridge.ingest.owner import Owner
from delaybridge.publish.kafka.configuration import Configuration, LineLogger
from delaybridge.publish.kafka.outcomes import error_of

GROUP = "delaybridge.owners"
_OFFSET = 2**63 - 1  # after every record, so that lag monitors show none
_SETTLED_S = 0.5  # a namespace that saw no mark before ours has written its own by then
_WRITE_AGAIN_S = 3600.0  # the broker deletes commits of a group without members after a week


class TopicsChanged(Exception):
    """The topics to subscribe to are others than before: start a new consumer."""


class TopicOwners:
    """The marks of delay topics. To be used in one thread."""

    def __init__(
        self, settings: Configuration, owner: Owner, unguarded: Callable[[str], None]
    ) -> None:
        """unguarded: called once if the user may not use the group.

        foreign: topics that belong to other namespaces -> their owners, as of the last claim.
        """
        # Not the AdminClient: it ends the process if the group has moved (librdkafka#5040).
        self._consumer = Consumer(
            {**settings.current(), "group.id": GROUP, "enable.auto.commit": False},
            logger=LineLogger(),
        )
        self._settings, self._owner, self._unguarded = settings, owner, unguarded
        self._is_refused = False
        self._written_s: dict[str, float] = {}
        self.foreign: dict[str, str] = {}

    def close(self) -> None:
        """Close the connections to the cluster."""
        self._consumer.close()

    def claim(self, names: Iterable[str], timeout_s: float) -> dict[str, str]:
        """Mark topics as this namespace's. Returns the owners of those that belong to others.

        If two namespaces mark a topic at the same moment, the last one has it; so a new mark is
        read again after a moment, before a record is. KafkaException if there is no answer in time.
        """
        self.foreign = self._claim(names, timeout_s)
        return self.foreign

    def check(self, names: Iterable[str], timeout_s: float) -> None:
        """Claim topics, and try again those of others; TopicsChanged if one changed hands."""
        before = self.foreign
        if self._claim({*names, *before}, timeout_s) != before:
            raise TopicsChanged("other topics than before belong to another namespace")

    def _claim(self, names: Iterable[str], timeout_s: float) -> dict[str, str]:
        asked = sorted(set(names))
        marks = self._read(asked, timeout_s)
        free = [name for name in asked if self._is_to_write(name, marks.get(name, ""))]
        if free and not self._is_refused:
            places = [TopicPartition(name, 0, _OFFSET, self._owner.name) for name in free]
            self._consumer.commit(offsets=places, asynchronous=True)
            if any(marks.get(name) != self._owner.name for name in free):
                self._read(free, timeout_s)  # the commit has then been sent
                time.sleep(_SETTLED_S)
            marks |= self._read(free, timeout_s)  # answered after the commit: same connection
        now_s = time.monotonic()
        self._written_s |= {name: now_s for name in free if marks.get(name) == self._owner.name}
        return {name: mark for name, mark in marks.items() if mark not in ("", self._owner.name)}

    def _is_to_write(self, name: str, mark: str) -> bool:
        if mark != self._owner.name:
            return mark == "" or mark in self._owner.take_over
        return time.monotonic() - self._written_s.get(name, -_WRITE_AGAIN_S) >= _WRITE_AGAIN_S

    def _read(self, names: Sequence[str], timeout_s: float) -> dict[str, str]:
        """The marks of topics that have one; none if the user may not use the group."""
        if not names or self._is_refused:
            return {}
        try:
            found = self._consumer.committed(
                [TopicPartition(name, 0) for name in names], timeout=timeout_s
            )
        except KafkaException as exc:
            if (refusal := self._refusal(exc)) is None:
                self._settings.renew(self._consumer)
                raise
            self._is_refused = True
            self._unguarded(
                f"nothing keeps another namespace from reading its topics, too: {refusal}; allow "
                f"READ on the group {GROUP!r}"
            )
            return {}
        return {place.topic: place.metadata or "" for place in found if place.error is None}

    def _refusal(self, exc: KafkaException) -> str | None:
        """Why the user may not use the group; None if the error is another."""
        errors = [error_of(exc)]
        # If the coordinator may not be looked up, only the message queue reports it.
        while (message := self._consumer.poll(0)) is not None:
            errors.append(message.error())
        for error in errors:
            if error is not None and error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED:
                return error.str()
        return None
