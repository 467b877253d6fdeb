"""Limits on how much may be pending in a namespace and for one destination (off by default).

A client looks at most once a second, and only while it schedules; in between it counts its own
messages. A limit can therefore be exceeded only if several clients schedule in the same second.
Messages are counted. Bytes, and the share of each destination, are estimated from a sample of every
bucket. A small bucket is in the sample as a whole; with many messages pending, the share of a
destination is right to within a few per cent of all that is pending.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

from delaybridge.accept.destination import parse_destination
from delaybridge.errors import MessageError, StoreError, StoreFull
from delaybridge.message import Limits, destination_text
from delaybridge.store.command import Each, Steps
from delaybridge.store.replies import Sample
from delaybridge.store.verbs import Bucket

_EVERY_S = 1.0
_SAMPLED = 64  # messages of each bucket


class Quota:
    """Decides which messages are refused, from the last look at Redis and its own count since."""

    def __init__(
        self,
        limits: Limits,
        kinds: Mapping[str, str],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._limits, self._kinds, self._monotonic = limits, kinds, monotonic
        self._looked_s = -_EVERY_S
        # Pending by destination, and in the whole namespace under an empty name.
        self._messages = defaultdict[str, float](float)
        self._bytes = defaultdict[str, float](float)
        self._has_counted = False
        self._by_destination = bool(limits.destination_messages or limits.destination_bytes)
        self.is_set = bool(self._by_destination or limits.pending_messages or limits.pending_bytes)

    def look(self, buckets: Sequence[Bucket]) -> Steps[bool]:
        """Whether there are limits. Asks the store first if the last look is too old."""
        if self.is_set and self._monotonic() - self._looked_s >= _EVERY_S:
            self._looked_s = self._monotonic()
            samples = yield Each(bucket.sample(_SAMPLED) for bucket in buckets)
            # A damaged bucket does not stop messages for the others.
            self._take([each for each in samples if not isinstance(each, StoreError)])
        return self.is_set

    def refusal(self, payload: bytes) -> StoreFull | None:
        """The error if this record is over a limit, else None."""
        full = self._over("", "pending")
        if full is None and self._by_destination:
            full = self._over(self._label(payload), "destination")
        if full is not None and self._has_counted:
            self._looked_s = -_EVERY_S  # some may have gone out since, so the next call looks again
        return full

    def count(self, payload: bytes, times: int = 1) -> None:
        """This record is about to be written; -1 time: it was not."""
        self._has_counted = True
        for label in ("", self._label(payload)) if self._by_destination else ("",):
            self._messages[label] += times
            self._bytes[label] += times * len(payload)

    def _take(self, samples: Sequence[Sample]) -> None:
        self._messages.clear()
        self._bytes.clear()
        self._has_counted = False
        for each in samples:
            self._messages[""] += each.messages
            for beginning, record_bytes, _ in each.records:
                stands_for = each.messages / len(each.records)
                self._bytes[""] += stands_for * record_bytes
                if self._by_destination:
                    label = self._label(beginning)
                    self._messages[label] += stands_for
                    self._bytes[label] += stands_for * record_bytes

    def _over(self, label: str, limited: str) -> StoreFull | None:
        for unit, counted in (("messages", self._messages), ("bytes", self._bytes)):
            limit = getattr(self._limits, f"{limited}_{unit}")
            if limit and round(counted[label]) >= limit:
                what = f"{label and f'{label}: '}limits.{limited}_{unit}"
                return StoreFull(
                    f"{what}: {counted[label]:,.0f} are pending, {limit:,} are allowed; not "
                    "written: raise the limit, or wait until some have gone out",
                    limit=what,
                )
        return None

    def _label(self, beginning: bytes) -> str:
        text = destination_text(beginning)
        try:
            return parse_destination(text, self._kinds).label
        except MessageError:
            return text
