"""Whether the ledger answers a worker, by what was asked of it."""

from __future__ import annotations

import logging
import time
from math import inf

from delaybridge.errors import ConfigError, LedgerUnavailable
from delaybridge.worker.eventlog import say

_CALM_S = 0.75  # less than between two questions to a ledger that is silent


class Silence:
    """reason: why the ledger does not answer; empty while it does, as far as was seen.

    word, end: what the log says when it begins, and ends. last_s: when it did not answer last, on
    the monotonic clock.
    """

    def __init__(self, word: str = "ledger_silent", end: str = "ledger_answers") -> None:
        self._word, self._end = word, end
        self.reason, self.last_s = "", -inf

    def begins(self, error: Exception) -> None:
        """Something failed. Of Redis' errors tells whoever needs Redis."""
        if isinstance(error, LedgerUnavailable | ConfigError):
            if not self.reason:
                say(logging.WARNING, self._word, reason=str(error))
            self.reason, self.last_s = str(error), time.monotonic()

    def ends(self, since_s: float) -> None:
        """The ledger took all that was written to it since then.

        It may take some of it and refuse the rest, such as a full disk.
        """
        if self.reason and self.last_s < since_s - _CALM_S:
            say(logging.INFO, self._end)
            self.reason = ""
