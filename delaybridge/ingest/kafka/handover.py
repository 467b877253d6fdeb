"""Batches on their way from the consumer's thread to the loop, one at a time."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Collection

from delaybridge.ingest.kafka.records import RawRecord
from delaybridge.ingest.kafka.topics import Place, Topic
from delaybridge.publish.link import call_on_loop

Batch = dict[Topic, list[RawRecord]]


class HandOver:
    """One batch that the thread offers and the loop takes. At most two are with the loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._batch: Batch | None = None
        self._taking = threading.Lock()  # the loop takes the batch, or the thread takes from it
        self._arrived = asyncio.Event()
        self._taken = threading.Event()
        self._unstored = 0  # batches taken and not stored yet
        self._all_stored = threading.Event()
        self._all_stored.set()
        self._error: BaseException | None = None

    # for the loop

    async def next(self) -> Batch:
        """The next batch. Raises the error that ended the thread."""
        while True:
            if self._error is not None:
                raise self._error
            if (batch := self._take()) is not None:
                return batch
            await self._arrived.wait()
            self._arrived.clear()

    def stored(self) -> None:
        """One of the batches taken is stored."""
        self._unstored -= 1
        if not self._unstored:
            self._all_stored.set()

    def release(self) -> None:
        """Let the thread wait for the loop no longer."""
        self._taken.set()
        self._all_stored.set()

    def _take(self) -> Batch | None:
        with self._taking:
            batch, self._batch = self._batch, None
            if batch is not None:
                self._arrived.clear()
                self._unstored += 1
                self._all_stored.clear()
                self._taken.set()
            return batch

    # for the thread

    def offer(self, batch: Batch) -> None:
        """Have the loop take this batch; the one before was taken."""
        self._taken.clear()
        self._batch = batch
        self.tell(self._arrived.set)

    def withdraw(self, places: Collection[Place]) -> None:
        """Take the records of these partitions out of the offered batch, if it is still there."""
        with self._taking:
            if self._batch is None:
                return
            left = {
                topic: [r for r in records if (topic.name, r.partition) not in places]
                for topic, records in self._batch.items()
            }
            self._batch = {topic: records for topic, records in left.items() if records} or None
            if self._batch is None:
                self._taken.set()

    def wait_taken(self, timeout_s: float) -> bool:
        """Whether the loop takes the offered batch in time."""
        return self._taken.wait(timeout_s)

    def wait_stored(self, timeout_s: float) -> None:
        """Wait until everything that was taken is stored, but no longer than this."""
        self._all_stored.wait(timeout_s)

    def fail(self, error: BaseException) -> None:
        """Have the next call of `next` raise this error."""
        self._error = error
        self.tell(self._arrived.set)

    def tell(self, callback: Callable[..., None], *arguments: object) -> None:
        """Call this on the loop."""
        call_on_loop(self._loop, callback, *arguments)
