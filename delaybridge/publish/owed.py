"""The outcomes that a publisher owes: one for each delivery, whatever its code raises."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence

from delaybridge.message import Delivery
from delaybridge.publish import Fault, Outcome, Report, Verdict

_log = logging.getLogger("delaybridge")


class Owed:
    """Deliveries without an outcome. Only their first outcome is passed on."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._left: set[Delivery] = set()

    def take(self, deliveries: Iterable[Delivery]) -> None:
        """The publisher was handed these."""
        self._left.update(deliveries)

    @property
    def left(self) -> list[Delivery]:
        """All that have no outcome."""
        return list(self._left)

    def has_any_of(self, deliveries: Iterable[Delivery]) -> bool:
        """Whether one of them has no outcome."""
        return not self._left.isdisjoint(deliveries)

    def report(self, deliveries: Sequence[Delivery], outcome: Outcome) -> None:
        """Report this outcome of those of the deliveries that have none."""
        left = self._left
        if not left.issuperset(deliveries):
            deliveries = [delivery for delivery in deliveries if delivery in left]
        left.difference_update(deliveries)
        if deliveries:
            self._report(deliveries, outcome)


def failure(name: str, exc: BaseException) -> Outcome:
    """The outcome of deliveries whose publisher raised this, which is logged."""
    _log.error("%s: publishing raised %s", name, type(exc).__name__, exc_info=exc)
    return Outcome(Verdict.UNKNOWN, f"failed: {type(exc).__name__}", Fault.BROKER)
