"""Damaged buckets of one worker: each waits until it is repaired, and the others go on."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from math import inf

from delaybridge.backoff import Backoff
from delaybridge.errors import StoreError
from delaybridge.events import BucketDamaged, BucketMended, CounterMended, Emit
from delaybridge.store.namespace import damage
from delaybridge.store.namespace.damage import Damage
from delaybridge.store.protocol.bucket import Bucket
from delaybridge.store.protocol.verbs import plain
from delaybridge.store.redis.store import AsyncStore

_LOOK_S = 1.0  # between two looks at a bucket whose damage was found


class _Case:
    """One damaged bucket. reported: the damage last logged. token: of the lease to release."""

    def __init__(self, bucket: Bucket) -> None:
        self.bucket = bucket
        self.error = self.reported = ""
        self.token: str | None = None
        self.look_at_s: float | None = None  # None: the bucket works, as far as known
        self.backoff = Backoff(1.0, 30.0)  # where no damage was found


class DamagedBuckets:
    """Sets buckets aside when the store refuses their calls, and finds out when to try them again.

    Damage that is found is logged once, with its key. If none is found the bucket is tried again
    with a back-off.
    """

    def __init__(
        self, store: AsyncStore, monotonic: Callable[[], float], emit: Emit,
        mender: tuple[str, int] | None = None,
    ) -> None:  # fmt: skip
        """mender: who mends a lost counter, and the ttl of a lease in ms; None: operators do."""
        self._store, self._monotonic, self._emit = store, monotonic, emit
        self._mender = mender
        self._cases: dict[int, _Case] = {}

    def add(self, bucket: Bucket, error: StoreError, token: str | None = None) -> None:
        """The store refused a call for this bucket: set it aside. token: of its lease, if held."""
        case = self._cases.setdefault(bucket.number, _Case(bucket))
        case.error, case.token = str(error), token
        case.look_at_s = self._monotonic()

    @property
    def numbers(self) -> set[int]:
        """The buckets that are set aside."""
        return {n for n, case in self._cases.items() if case.look_at_s is not None}

    def announced(self) -> dict[str, str]:
        """Bucket -> its damage, as the worker announces it."""
        return {str(n): c.reported for n, c in self._cases.items() if c.reported}

    def next_look_s(self) -> float:
        """When to look at the next of them."""
        waiting = (c.look_at_s for c in self._cases.values() if c.look_at_s is not None)
        return min(waiting, default=inf)

    async def retry(self) -> bool:
        """Look at the buckets whose time has come; repaired ones may be taken again.

        Returns whether `announced` changed.
        """
        now_s, before = self._monotonic(), self.announced()
        for case in list(self._cases.values()):
            if case.look_at_s is not None and case.look_at_s <= now_s:
                await self._look_at(case, now_s)
        return self.announced() != before

    async def _look_at(self, case: _Case, now_s: float) -> None:
        bucket, token = case.bucket, case.token
        releasing = [] if token is None else [bucket.release(token)]
        replies = await self._store.run_isolated([*damage.commands(bucket), *releasing])
        case.token = None
        follower = self._store.follower
        if follower is not None and follower.is_retired(bucket.number):
            del self._cases[bucket.number]  # it has given all its messages to other buckets
            return
        found = damage.found(bucket, replies, was_owned=True)
        if self._mender is not None and _is_counter(found):
            found = await self._mended(case, *self._mender)
        if found:
            case.look_at_s = now_s + _LOOK_S
            self._report(case, "; ".join(f"{one}; mend it: {one.remedy}" for one in found))
        elif case.error and not case.reported:  # no damage found: try again later
            case.look_at_s = now_s + case.backoff.next_s()
            self._report(case, case.error)
        else:
            self._emit(BucketMended(bucket=bucket.number))
            case.look_at_s, case.reported = None, ""

    async def _mended(self, case: _Case, name: str, ttl_ms: int) -> list[Damage]:
        """What is still damaged after a lost counter was set again, under a lease of its own.

        Two who mended at once could set it back below numbers that are drawn meanwhile.
        """
        bucket, token = case.bucket, f"{name}:{secrets.token_hex(8)}:1"
        words = (bucket.key("lease"), token, "NX", "PX", ttl_ms)
        asked = [plain("SET", *words, parse=bool), *damage.commands(bucket)]
        taken, *replies = await self._store.run_isolated(asked)
        found = damage.found(bucket, replies, was_owned=True)
        if taken is True:
            mending = [damage.with_counter(bucket, found[0])] if _is_counter(found) else []
            await self._store.run_isolated([*mending, bucket.release(token)])
            if mending:
                self._emit(CounterMended(bucket=bucket.number, reason=str(found[0])))
                case.error, found = "", []
        return found

    def _report(self, case: _Case, what: str) -> None:
        if case.reported != what:
            case.reported = what
            self._emit(BucketDamaged(bucket=case.bucket.number, reason=what))


def _is_counter(found: Sequence[Damage]) -> bool:
    """Whether a lost counter is all the damage."""
    return len(found) == 1 and bool(found[0].counter)
