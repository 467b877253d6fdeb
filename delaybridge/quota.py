"""How much may be pending: in a namespace, and for any one destination (off by default).

A client looks at most once a second, and only while it schedules, so a limit is passed by what is
scheduled within a second. Messages are counted. Bytes, and the share of each destination, are
estimated from a sample of every bucket: with few messages all of them are in it, with many a
destination's share is right to within a few per cent of all that is pending.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

from delaybridge.accept import parse_destination
from delaybridge.commands import Bucket, Sample
from delaybridge.errors import MessageError, StoreError, StoreFull
from delaybridge.message import Limits, destination_text
from delaybridge.steps import Each, Steps

_EVERY_S = 1.0
_SAMPLED = 64  # messages of each bucket


class Quota:
    """What is refused now, as far as the last look says."""

    def __init__(
        self,
        limits: Limits,
        kinds: Mapping[str, str],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._limits, self._kinds, self._monotonic = limits, kinds, monotonic
        self._looked_s = -_EVERY_S
        self._all: str | None = None  # why nothing is taken
        self._full: dict[str, str] = {}  # destination -> why nothing more is taken for it
        pending = (limits.pending_messages, limits.pending_bytes)
        self._is_set = any((*pending, limits.destination_messages, limits.destination_bytes))

    def look(self, buckets: Sequence[Bucket]) -> Steps[bool]:
        """Whether anything is refused. Asks the store if the last look is too old."""
        if not self._is_set:
            return False
        if self._monotonic() - self._looked_s >= _EVERY_S:
            self._looked_s = self._monotonic()
            samples = yield Each(bucket.sample(_SAMPLED) for bucket in buckets)
            # A damaged bucket is a matter of its own messages.
            self._judge([each for each in samples if not isinstance(each, StoreError)])
        return self._all is not None or bool(self._full)

    def refusal(self, payload: bytes) -> StoreFull | None:
        """Why this record is refused, if it is."""
        why = self._all or (self._full and self._full.get(self._label(payload)))
        return StoreFull(why) if why else None

    def _judge(self, samples: Sequence[Sample]) -> None:
        limits = self._limits
        messages, size = defaultdict[str, float](float), defaultdict[str, float](float)
        for each in samples:
            for beginning, record_bytes in each.records:
                label, stands_for = self._label(beginning), each.messages / len(each.records)
                messages[label] += stands_for
                size[label] += stands_for * record_bytes
        self._all = _over(
            "pending_messages", sum(each.messages for each in samples), limits.pending_messages
        ) or _over("pending_bytes", sum(size.values()), limits.pending_bytes)
        self._full = {}
        for label in messages:
            why = _over(
                "destination_messages", messages[label], limits.destination_messages
            ) or _over("destination_bytes", size[label], limits.destination_bytes)
            if why is not None:
                self._full[label] = f"{label}: {why}"

    def _label(self, beginning: bytes) -> str:
        text = destination_text(beginning)
        try:
            return parse_destination(text, self._kinds).label
        except MessageError:
            return text


def _over(limit_name: str, pending: float, limit: int) -> str | None:
    if not limit or round(pending) < limit:
        return None
    return (
        f"limits.{limit_name}: {pending:,.0f} are pending, {limit:,} are allowed; not written: "
        "raise the limit, or wait until some have gone out"
    )
