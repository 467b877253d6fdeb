"""A message that is delivered again keeps its stamp and id, though its bytes may have neither."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Collection, Iterable

from delaybridge.errors import MessageError
from delaybridge.ingest.rabbitmq.channel import HeldMessage
from delaybridge.ingest.rabbitmq.deaths import has_died
from delaybridge.ingest.rabbitmq.messages import RawMessage, content_of
from delaybridge.store.protocol.verbs import new_stamp

_RETURNED_S = 60.0  # in which what a lost channel held is delivered again, however late the queue


class Identities:
    """Stamp and id of the messages that were held when a channel ended.

    known: by content; empty as long as no channel has ended.
    """

    def __init__(self, queues: Collection[str]) -> None:
        self._queues = queues
        self.known: defaultdict[int, list[tuple[bytes, str]]] = defaultdict(list)
        self._since_s = 0.0  # when the last channel ended

    def remember(self, messages: Iterable[HeldMessage]) -> None:
        """Keep stamp and id of messages that will be delivered again."""
        for held in messages:
            self.known[self._fingerprint(held.message)].append((held.stamp, held.id))
        self._since_s = asyncio.get_running_loop().time()

    def recall(self, message: RawMessage) -> tuple[bytes, str | None]:
        """Stamp and id that the message had before; else a new stamp and None.

        Each pair goes to one message only: many may have the same bytes, and two messages of one
        id would become one. A returned message may have expired before it is delivered again.
        """
        if not message.redelivered and not has_died(message.header):
            # Each queue delivers returned messages before new ones, but the other one may be late.
            if asyncio.get_running_loop().time() > self._since_s + _RETURNED_S:
                self.known.clear()
            return new_stamp(), None
        had = self.known.get(fingerprint := self._fingerprint(message))
        if not had:
            return new_stamp(), None
        known = had.pop(0)
        if not had:
            del self.known[fingerprint]
        return known

    def _fingerprint(self, message: RawMessage) -> int:
        try:
            return hash((*content_of(message, self._queues), message.body))
        except MessageError:
            return hash((message.header, message.body))
