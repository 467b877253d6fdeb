"""Steering: the calls that change the rule of a destination, and end or begin its pause."""

from __future__ import annotations

from delaybridge.accept.destination import parse_destination
from delaybridge.errors import StoreNewer
from delaybridge.store.namespace import registry, rules
from delaybridge.store.namespace.namespace import Namespace
from delaybridge.store.namespace.rules import Change, Rule, place_of
from delaybridge.store.protocol.verbs import Each, Steps


class RuleChanges(Namespace):
    """The calls that steer destinations; workers obey within a second."""

    def steer(self, place: str, change: Change) -> Steps[Rule]:
        """Change the rule of a place that names a broker of this client, or has a rule already.

        MessageError: it is not such a place, or the change is wrong. Or StoreNewer.
        """
        (record,) = yield Each([registry.read_layout(self.namespace)])
        if isinstance(record, StoreNewer):
            raise record
        place = place_of(place, self.kinds)
        if place.partition(":")[0] not in self.kinds:
            (stored,) = yield [rules.read(self.namespace)]
            if place.encode() not in stored:
                parse_destination(f"{place}:" if ":" not in place else place, self.kinds)  # raises
        return (yield from rules.change(self.namespace, place, change))

    def pause(self, place: str) -> Steps[Rule]:
        """Pause a place; if it is paused already, it stays so since then.

        With a ledger that is a change, too: the ledger may have a later one that ends the pause.
        """
        place = place_of(place, self.kinds)
        stored, now_us = yield [rules.read(self.namespace), self.clock()]
        rule = rules.understood(stored).by_place.get(place, Rule())
        since_ms = rule.paused_ms if rule.paused else now_us // 1000
        change = {"paused": True, "paused_ms": since_ms}
        return (yield from self.steer(place, change))

    def resume(self, place: str) -> Steps[Rule]:
        """End the pause of a place."""
        return (yield from self.steer(place, {"paused": None, "paused_ms": None}))
