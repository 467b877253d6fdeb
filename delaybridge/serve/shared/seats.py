"""Answers that take long: streams, polls that wait, downloads. Each keeps its connection busy.

They get half of the connections, so that others always find room, and a token half of those.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from delaybridge.serve.http.problems import Problem

_LATER = {"Retry-After": "3"}
_REMEDY = "try again, or raise serve.connections"


class Seats:
    """Those that are under way in this process. A tenant's tokens count as one."""

    def __init__(self, connections: int) -> None:
        self._most = max(1, connections // 2)
        self._most_of_one = max(1, connections // 4)
        self._of_one = Counter[str | bytes]()

    @property
    def count(self) -> int:
        """How many seats are taken now."""
        return self._of_one.total()

    @contextmanager
    def seat(self, tenant: str, digest: bytes) -> Iterator[None]:
        """Keep a seat for one answer; Problem 429 or 503 if there is none.

        digest: of the token that asks.
        """
        who = tenant or digest  # empty: there are no tokens, so there are no shares
        if self.count >= self._most:
            what = f"{self._most} streams, polls and downloads are open; {_REMEDY}"
            raise Problem(503, "too_many_clients", what, headers=_LATER)
        if who and self._of_one[who] >= self._most_of_one:
            whose = f"of tenant {tenant}" if tenant else "of this token"
            what = f"{self._most_of_one} streams, polls and downloads {whose} are open; {_REMEDY}"
            raise Problem(429, "too_many_clients", what, headers=_LATER)
        self._of_one[who] += 1
        try:
            yield
        finally:
            self._of_one[who] -= 1
            if not self._of_one[who]:
                del self._of_one[who]
