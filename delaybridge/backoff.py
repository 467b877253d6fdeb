"""The waits between tries: each twice as long as the one before, up to a longest."""

from __future__ import annotations

from random import uniform


class Backoff:
    """How long to wait before the next try, in seconds.

    jitter: each wait is shortened at random by up to this share (0 to 1), so that processes that
    failed together do not try again together.
    """

    def __init__(self, first_s: float, longest_s: float, *, jitter: float = 0.0) -> None:
        self._first_s, self._longest_s, self._jitter = first_s, longest_s, jitter
        self._wait_s = first_s

    def next_s(self) -> float:
        """The wait before the next try. Each call doubles the wait of the call after it."""
        wait_s, self._wait_s = self._wait_s, min(2 * self._wait_s, self._longest_s)
        return wait_s * uniform(1 - self._jitter, 1.0)

    def restart(self) -> None:
        """Begin again with the first wait."""
        self._wait_s = self._first_s
