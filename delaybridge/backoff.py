"""The waits between tries: each twice as long as the one before, up to a longest."""

from __future__ import annotations

from random import uniform
from typing import Annotated

from msgspec import Meta, Struct

ATTEMPTS_LIMIT = 1000
FACTOR_LIMIT = 100.0
WAIT_LIMIT_MS = 24 * 3600 * 1000
_Wait = Annotated[int, Meta(ge=1, le=WAIT_LIMIT_MS)]


class Backoff:
    """How long to wait before the next try, in seconds.

    jitter: each wait is shortened at random by up to this share (0 to 1), so that processes that
    failed together do not try again together. steady_s: if it worked for longer than this before it
    failed, the next try comes after the first wait again; by default the longest wait.
    """

    def __init__(
        self, first_s: float, longest_s: float, steady_s: float | None = None, jitter: float = 0.0
    ) -> None:
        self._first_s, self._longest_s, self._jitter = first_s, longest_s, jitter
        self._steady_s = longest_s if steady_s is None else steady_s
        self._wait_s = first_s

    def next_s(self, worked_s: float = 0.0) -> float:
        """The wait before the next try; worked_s: how long it worked before it failed."""
        wait_s = self._first_s if worked_s > self._steady_s else self._wait_s
        self._wait_s = min(2 * wait_s, self._longest_s)
        return wait_s * uniform(1 - self._jitter, 1.0)


class RetryPlan(Struct, frozen=True, omit_defaults=True):
    """Some fields of a retry policy; None leaves the field as a more general plan has it."""

    max_attempts: Annotated[int, Meta(ge=1, le=ATTEMPTS_LIMIT)] | None = None
    base_ms: _Wait | None = None
    factor: Annotated[float, Meta(gt=1, le=FACTOR_LIMIT)] | None = None
    max_ms: _Wait | None = None
    jitter: Annotated[float, Meta(ge=0, le=1)] | None = None
