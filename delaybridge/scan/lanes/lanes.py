"""All lanes of a worker: the parts that they share, and what changes them from outside."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from delaybridge.events import Emit
from delaybridge.scan.lanes.admission import Admission
from delaybridge.scan.lanes.lane import Broker, Lane, Window
from delaybridge.scan.lanes.outcomes import Dispatch, Outcomes
from delaybridge.scan.lanes.parking import Parking
from delaybridge.scan.lanes.retry import RetryPolicy
from delaybridge.scan.lanes.returning import Returning
from delaybridge.scan.lanes.routing import Routing, RuleBook
from delaybridge.scan.lanes.spans import PublishSpans
from delaybridge.store.namespace.rules import Rules


class Lanes:
    """The parts, each of which knows those before it.

    window: counts what is in flight. routing: finds the lane of a copy. parking: sets copies
    aside; returning: brings them back. dispatch: gives fired copies to their brokers. outcomes:
    gives each an exit when its publish ended. admission: decides whether a copy may be fired.
    """

    def __init__(
        self, brokers: Mapping[str, Broker], retry: RetryPolicy, emit: Emit, *,
        window_messages: int, window_bytes: int, dead_letters: Mapping[str, str] = {},
        spans: PublishSpans | None = None,
    ) -> None:  # fmt: skip
        """window_messages, window_bytes: bounds of the messages in flight on all lanes together.

        dead_letters: broker -> destination of messages that are given up. spans: None if the
        worker does not trace.
        """
        self.window = Window(window_messages, window_bytes)
        self.routing = Routing(brokers, window_messages, emit, RuleBook(retry, dead_letters))
        self.parking = Parking(self.window, self.routing)
        self.returning = Returning(self.window, self.routing, self.parking)
        self.dispatch = Dispatch(self.window, self.parking, emit, spans)
        self.outcomes = Outcomes(
            self.window, self.routing, self.parking, self.dispatch, emit, spans
        )
        self.admission = Admission(self.window, self.routing, self.parking, self.outcomes)

    def brokers_changed(self, names: Collection[str]) -> list[Lane]:
        """These brokers were added, replaced or removed; returns their old lanes.

        The old lanes finish the copies that are fired. All others are routed again, in order.
        """
        left = self.routing.brokers_changed(names)
        self.returning.routes_changed({*names})
        return left

    def rules_changed(self, rules: Rules) -> None:
        """The rules of destinations are these now. Fired messages go out as they were.

        Where destinations get lanes of their own, or lose them, the others are routed again.
        """
        self.returning.routes_changed(self.routing.rules_changed(rules))
