"""Drift: what differed between the buckets of a worker and the ledger, when compared last."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Set
from typing import NamedTuple

from delaybridge.ledger.comparing.agreement import Compared, Looked
from delaybridge.worker.eventlog import say


class Drift(NamedTuple):
    """What differed in one bucket; restored: how many it lacked."""

    restored: int
    compared: Compared


class Drifts(dict[int, Drift]):
    """What differed, by bucket, when each was compared last."""

    def totals(self) -> Counter[str]:
        """The sums of all buckets, as a worker announces them."""
        total = Counter[str]()
        for each in self.values():
            total["restored"] += each.restored
            total["dropped"] += each.compared.dropped
            total["without_row"] += each.compared.without_row
            total["mended"] += each.compared.mended
        return total

    def keep(self, held: Set[int]) -> None:
        """Forget all others: what differs there, its next owner tells."""
        for bucket in self.keys() - held:
            del self[bucket]

    def differing(self, bucket: int) -> frozenset[str]:
        """The messages that differed when the bucket was compared last."""
        before = self.get(bucket)
        return before.compared.differing if before else frozenset()


def say_found(bucket: int, looked: Looked, compared: Compared, took_s: float) -> None:
    """Log what a comparison found, unless it is nothing."""
    if looked.absent or compared.dropped or compared.without_row or compared.mended:
        say(
            logging.WARNING, "ledger_differs", bucket=bucket, restored=looked.absent,
            dropped=compared.dropped, without_row=compared.without_row,
            example=compared.example, mended=compared.mended, seconds=round(took_s, 3),
        )  # fmt: skip
