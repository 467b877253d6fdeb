"""Limits on how much may be pending in a namespace, for one destination and of one tenant.

All are off by default. A client looks at most once a second, and only while it schedules; in
between it counts its own messages, and with a look those that are on their way. A limit can
therefore be exceeded only if several clients schedule in the same second. Messages are counted.
Bytes, and the shares of destinations and tenants, are estimated from a sample of every bucket. A
small bucket is in the sample as a whole; with many messages pending, a share is right to within a
few per cent of all that is pending. A tenant is refused only if the low end of its estimate is at
its limit: never because others have many messages, so that one of its own stands for thousands.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from delaybridge.accept.accept import DestinationCache
from delaybridge.errors import MessageError, StoreError, StoreFull
from delaybridge.message import Limits, destination_text, tenant_text
from delaybridge.store.protocol.bucket import Bucket
from delaybridge.store.protocol.replies import Sample
from delaybridge.store.protocol.verbs import Each, Steps

_EVERY_S = 1.0
_ANOTHER_S = 10.0  # while a look is under way, which Redis may leave without an answer
_SAMPLED = 64  # messages of each bucket
_Z = 3.0  # standard errors: 999 of 1,000 estimates are too high by less


class _Pending:
    """What is pending of one destination, one tenant, or in all: messages, and their bytes."""

    __slots__ = ("estimate", "is_counted", "squares", "sums", "variance")

    def __init__(self) -> None:
        """estimate: of messages, and of bytes; so are the others.

        variance: of the estimate. sums, squares: of the records drawn from one bucket. is_counted:
        some were added since the look.
        """
        self.is_counted = False
        self.estimate, self.variance = [0.0, 0.0], [0.0, 0.0]
        self.sums, self.squares = [0.0, 0.0], [0.0, 0.0]

    def add(self, size: int, times: float) -> None:
        """A record, and the number of messages that it stands for."""
        for unit, value in enumerate((1, size)):
            self.estimate[unit] += times * value
            self.sums[unit] += value
            self.squares[unit] += value * value

    def end(self, messages: int, drawn: int) -> None:
        """All records that were drawn from a bucket are added, with its number of messages.

        Each bucket is a stratum of its own: what was drawn from a small one says nothing of a large
        one. The variance of a total, drawn without putting back (Cochran, Sampling Techniques, 5).
        """
        weight = messages * (messages - drawn) / drawn
        for unit in range(2):
            among = self.squares[unit] / drawn - (self.sums[unit] / drawn) ** 2
            self.variance[unit] += max(among, 0.0) * weight
            self.sums[unit] = self.squares[unit] = 0.0


_Place = tuple[str, str]  # pending, destination or tenant; and its name
_ALL: _Place = ("pending", "")


class Quota:
    """Decides which messages are refused, from the last look at Redis and its own count since."""

    def __init__(
        self,
        limits: Limits,
        kinds: Mapping[str, str],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._limits, self._kinds, self._monotonic = limits, kinds, monotonic
        self._looked_s, self._parsed = -_EVERY_S, DestinationCache()
        self._has_looked, self._looks = False, 0  # looks that are under way
        self._open = dict[object, int]()  # calls under way, looks too: how many counts came before
        self._meanwhile = list[tuple[bytes, int]]()  # what was counted since the oldest began
        self._forgotten = 0  # counts before those
        self._pending = defaultdict[_Place, _Pending](_Pending)
        self._set = {
            limited: [
                (unit, getattr(limits, setting), setting)
                for unit, setting in enumerate((f"{limited}_messages", f"{limited}_bytes"))
            ]
            for limited in ("pending", "destination", "tenant")
        }
        self._tenants = {
            name: [(unit, limit, "tenants") for unit, limit in enumerate(both)]
            for name, both in limits.tenants.items()
        }
        is_set = {limited: any(limit for _, limit, _ in of) for limited, of in self._set.items()}
        self._by_destination = is_set["destination"]
        self._by_tenant = is_set["tenant"] or bool(self._tenants)
        self.is_set = any(is_set.values()) or self._by_tenant

    def read_counts(self, buckets: Sequence[Bucket]) -> Steps[bool]:
        """Whether there are limits. Asks the store first if the last look is too old."""
        wait_s = _ANOTHER_S if self._looks else _EVERY_S
        is_old = not self._has_looked or self._monotonic() - self._looked_s >= wait_s
        if self.is_set and is_old:
            self._looked_s = self._monotonic()
            self._looks += 1
            try:
                with self.under_way(is_look=True) as begin:
                    samples = yield Each(bucket.sample(_SAMPLED) for bucket in buckets)
                    # A damaged bucket does not stop messages for the others.
                    self._take([each for each in samples if not isinstance(each, StoreError)])
                    # They may come behind the samples.
                    for payload, times in self._since(begin):
                        self._add(payload, times)
                    self._has_looked = True
            finally:
                self._looks -= 1
        return self.is_set

    @contextmanager
    def under_way(self, *, is_look: bool = False) -> Iterator[int]:
        """From before messages are counted until their call is answered: a look that begins in
        between may not see them. is_look: keep what calls already under way have counted."""
        own, begin = object(), self._forgotten + len(self._meanwhile)
        if is_look:
            begin = min(self._open.values(), default=begin)
        self._open[own] = begin
        try:
            yield begin
        finally:
            del self._open[own]
            if not self._open:
                self._forgotten += len(self._meanwhile)
                self._meanwhile.clear()
            elif (oldest := min(self._open.values())) > self._forgotten:
                del self._meanwhile[: oldest - self._forgotten]
                self._forgotten = oldest

    def _since(self, begin: int) -> list[tuple[bytes, int]]:
        return self._meanwhile[begin - self._forgotten :]

    def refusal(self, payload: bytes) -> StoreFull | None:
        """The error if this record is over a limit, else None."""
        for place in self._places(payload, payload):
            if (full := self._over(place)) is not None:
                # Some may have gone out: the next call looks again. Not if only others counted: who
                # is refused could keep Redis busy.
                if self._pending[place].is_counted and not self._looks:
                    self._looked_s = -_EVERY_S
                return full
        return None

    def check(self, payload: bytes, buckets: Sequence[Bucket]) -> Steps[None]:
        """StoreFull if this record is over a limit."""
        if (yield from self.read_counts(buckets)) and (full := self.refusal(payload)) is not None:
            raise full

    def count(self, payload: bytes, times: int = 1) -> None:
        """This record is about to be written; -1 time: it was not."""
        if self._open:
            self._meanwhile.append((payload, times))
        self._add(payload, times)

    def _add(self, payload: bytes, times: int) -> None:
        for place in self._places(payload, payload):
            pending = self._pending[place]
            pending.add(len(payload), times)
            pending.is_counted = True

    def _take(self, samples: Sequence[Sample]) -> None:
        self._pending.clear()
        for each in samples:
            drawn = len(each.records)
            found = set[_Place]()
            for beginning, size, _, end in each.records:
                for place in self._places(beginning, beginning[:1] + end):
                    self._pending[place].add(size, each.messages / drawn)
                    found.add(place)
            for place in found:
                self._pending[place].end(each.messages, drawn)

    def _over(self, place: _Place) -> StoreFull | None:
        limited, name = place
        found = self._pending[place]
        of_it = self._tenants.get(name) if limited == "tenant" else None
        for unit, limit, setting in of_it or self._set[limited]:
            error = _Z * math.sqrt(found.variance[unit]) if limited == "tenant" else 0.0
            if limit and round(found.estimate[unit] - error) >= limit:
                what = f"{name and f'{name}: '}limits.{setting}"
                count = f"{'about ' * bool(error)}{found.estimate[unit]:,.0f}"
                return StoreFull(
                    f"{what}: {count} are pending, {limit:,} are allowed; not written: raise the "
                    "limit, or wait until some have gone out",
                    limit=what,
                )
        return None

    def _places(self, beginning: bytes, end: bytes) -> Iterator[_Place]:
        """What a record counts for. end: its last bytes, after its first."""
        yield _ALL
        if self._by_destination:
            yield "destination", self._label(beginning)
        if self._by_tenant and (tenant := tenant_text(end)):
            yield "tenant", tenant

    def _label(self, beginning: bytes) -> str:
        text = destination_text(beginning)
        try:
            return self._parsed.parse(text, self._kinds)[0].label
        except MessageError:
            return text
