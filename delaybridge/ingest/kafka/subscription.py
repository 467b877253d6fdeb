"""Which topics a consumer subscribes to: those asked for, except those of other namespaces."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Collection, Mapping, Sequence

from confluent_kafka import KafkaException

from delaybridge.ingest.kafka.owners import TopicOwners, TopicsChanged
from delaybridge.ingest.kafka.topics import TopicIds

DELETED = "idle: the topic was deleted"
ELSEWHERE = "idle: other processes read it"
FOREIGN = "idle: every matching topic belongs to another namespace"
NO_TOPIC = "idle: no such topic exists yet"
SETTLED_S = 5.0  # a member without partitions by then gets none for now
ANSWER_TIMEOUT_S = 3.0


class Subscription:
    """The topics of one consumer. To be used in its thread."""

    def __init__(self, asked: Sequence[str], ids: TopicIds, owners: TopicOwners) -> None:
        """asked: names, or patterns that begin with ^.

        topics: those to subscribe to. since_s: when the group was asked for partitions.
        """
        self.topics = list(asked)
        self.since_s = time.monotonic()
        self.asked, self._ids, self._owners = list(asked), ids, owners
        self._seen: set[str] = set()  # topics that were read

    def claim(self) -> Mapping[str, str]:
        """Claim the topics for this namespace; of those that belong to others, the owners.

        If there are any, the rest is subscribed to by name: no pattern could leave them out.
        KafkaException if there is no answer in time.
        """
        names = self._existing()
        foreign = self._owners.claim(names, ANSWER_TIMEOUT_S)
        if foreign:
            self.topics = sorted(names - foreign.keys())
        return foreign

    def check(self, read: set[str]) -> None:
        """TopicsChanged if a topic changed hands, or a new one has to be subscribed to by name.

        read: topics of which this consumer has partitions.
        """
        with contextlib.suppress(KafkaException):
            names = read
            if self._owners.foreign:
                names = self._existing()
                if names - self._owners.foreign.keys() - {*self.topics}:
                    raise TopicsChanged("there are new topics")
            self._owners.check(names, ANSWER_TIMEOUT_S)

    def idle(self, read: Collection[str]) -> dict[str, str]:
        """What is asked for, or was read, and is not read here although nothing is wrong; why."""
        left = [asked for asked in self.asked if not _matching(asked, read)]
        self._seen.update(read)
        given_up = self._seen.difference(read, self.asked)
        if not (left or given_up) or time.monotonic() - self.since_s <= SETTLED_S:
            return {}
        try:
            existing = {*self._ids.names(ANSWER_TIMEOUT_S)} - self._owners.foreign.keys()
        except KafkaException:
            return {}
        reasons = dict.fromkeys(given_up - existing, DELETED)
        reasons |= {asked: self._why_idle(asked, existing) for asked in left}
        return {asked: reason for asked, reason in reasons.items() if reason}

    def _why_idle(self, asked: str, existing: Collection[str]) -> str:
        is_pattern = asked.startswith("^")
        if _matching(asked, existing):
            return ELSEWHERE
        if _matching(asked, self._owners.foreign):
            return FOREIGN if is_pattern else ""
        return NO_TOPIC if is_pattern else ""

    def _existing(self) -> set[str]:
        """The topics that are named, and those that exist and match a pattern."""
        names = {name for name in self.asked if not name.startswith("^")}
        if len(names) < len(self.asked):
            existing = self._ids.names(ANSWER_TIMEOUT_S)
            names.update(*(_matching(asked, existing) for asked in self.asked))
        return names


def _matching(asked: str, names: Collection[str]) -> set[str]:
    """The topics that a name, or a pattern that begins with ^, means."""
    if asked.startswith("^"):
        return {name for name in names if re.match(asked, name)}
    return {asked} & {*names}
