"""How many records are read at once, so that those set aside leave room to other topics."""

from __future__ import annotations

BATCH_MESSAGES = 1000
FIRST_BATCH_MESSAGES = 16  # before anything is known of their size
_BATCHES = 4  # that the window holds
HOLD_SHARE = 1 / (2 * _BATCHES)  # of it: what may be set aside before its topics are paused


class BatchWindow:
    """The room for records of one consumer: `window_bytes`, and four batches."""

    def __init__(self, window_bytes: int) -> None:
        """room: the share that is not set aside."""
        self.room = 1.0
        self._window_bytes = window_bytes
        self._messages = FIRST_BATCH_MESSAGES
        self._latest = 0.0, 0.0  # shares of two batches, which may have to be set aside, too

    @property
    def next_messages(self) -> int:
        """The most records of the next batch: with those on their way it takes half of the room."""
        share = (self.room - sum(self._latest)) / 2
        return max(int(self._messages * min(share * _BATCHES, 1)), 1)

    def share(self, messages: int, size: int) -> float:
        """How much of the window these fill."""
        return max(messages / (_BATCHES * BATCH_MESSAGES), size / self._window_bytes)

    def took(self, sizes: list[int]) -> None:
        """A batch of records of these sizes was read."""
        self._latest = self._latest[1], self.share(len(sizes), sum(sizes))
        fitting = self._window_bytes // (_BATCHES * max(*sizes, 1, 1))
        self._messages = max(min(fitting, 2 * self._messages, BATCH_MESSAGES), 1)
