"""The buckets of one worker that wait until their damage is mended; the others go on."""

from __future__ import annotations

from collections.abc import Callable
from math import inf

from delaybridge.errors import StoreError
from delaybridge.events import BucketDamaged, BucketMended, Emit
from delaybridge.store import damage
from delaybridge.store.store import AsyncStore
from delaybridge.store.verbs import Bucket

_LOOK_S = 1.0  # between two looks at a bucket whose damage is known
_PAUSE_S = (1.0, 30.0)  # before one is tried again whose damage no look shows: first, at most


class _Case:
    """One such bucket. said: what the log was told. token: of the lease to be given back."""

    def __init__(self, bucket: Bucket) -> None:
        self.bucket = bucket
        self.error = self.said = ""
        self.token: str | None = None
        self.look_at_s: float | None = None  # None: it works, as far as is known
        self.pause_s = _PAUSE_S[0]


class DamagedBuckets:
    """Keeps buckets aside whose verbs the store refused, and looks when they may be tried again.

    A look that shows damage says so once, with the key; without, what was refused is tried again
    after a pause, longer each time.
    """

    def __init__(self, store: AsyncStore, monotonic: Callable[[], float], emit: Emit) -> None:
        self._store, self._monotonic, self._emit = store, monotonic, emit
        self._cases: dict[int, _Case] = {}

    def add(self, bucket: Bucket, error: StoreError, token: str | None = None) -> None:
        """A verb of this bucket was refused: it waits. token: of its lease, if it is held."""
        case = self._cases.setdefault(bucket.number, _Case(bucket))
        case.error, case.token = str(error), token
        case.look_at_s = self._monotonic()

    @property
    def numbers(self) -> set[int]:
        """The buckets that wait."""
        return {n for n, case in self._cases.items() if case.look_at_s is not None}

    def announced(self) -> dict[str, str]:
        """What is damaged by bucket, for whoever asks how the fleet does."""
        return {str(n): c.said for n, c in self._cases.items() if c.said}

    def next_look_s(self) -> float:
        """When the next of them is to be looked at."""
        waiting = (c.look_at_s for c in self._cases.values() if c.look_at_s is not None)
        return min(waiting, default=inf)

    async def look(self) -> bool:
        """Look at those whose time has come; those that are mended wait no more.

        Returns whether there is news for `announced`.
        """
        now_s, before = self._monotonic(), self.announced()
        for case in list(self._cases.values()):
            if case.look_at_s is not None and case.look_at_s <= now_s:
                await self._look_at(case, now_s)
        return self.announced() != before

    async def _look_at(self, case: _Case, now_s: float) -> None:
        bucket, token = case.bucket, case.token
        releasing = [] if token is None else [bucket.release(token)]
        replies = await self._store.apart([*damage.look(bucket), *releasing])
        case.token = None
        found = damage.found(bucket, replies, was_owned=True)
        if found:
            case.look_at_s = now_s + _LOOK_S
            self._say(case, "; ".join(f"{one}; mend it: {one.remedy}" for one in found))
        elif case.error and not case.said:  # nothing to be seen: tried again
            case.look_at_s = now_s + case.pause_s
            case.pause_s = min(2 * case.pause_s, _PAUSE_S[1])
            self._say(case, case.error)
        else:
            self._emit(BucketMended(bucket=bucket.number))
            case.look_at_s, case.said = None, ""

    def _say(self, case: _Case, what: str) -> None:
        if case.said != what:
            case.said = what
            self._emit(BucketDamaged(bucket=case.bucket.number, reason=what))
