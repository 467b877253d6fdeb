"""Why messages do not go out: failed publishes, and parked messages with the reason."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from delaybridge.message import PULL

_WORD = re.compile(r"ingress:\w+|[^:\n]+")
LACKING = "no_broker"
UNRECEIVED = "unreceived: no consumer has received it yet"
LIMITED = "limited"
ORPHANED = "orphaned"
REFUSES = "refuses"
SLOW = "slow: its destination takes messages more slowly than they fall due"


class Trouble(NamedTuple):
    """A destination (`NAME:`: a whole broker) whose messages do not go out, and the reason.

    The worker parks them, or the destination refuses each one.
    """

    destination: str
    reason: str
    worker: str

    @property
    def is_by_rule(self) -> bool:
        """Whether a rule of the destination is the reason."""
        return first_word(self.reason) == LIMITED

    @property
    def is_refusal(self) -> bool:
        """Whether the destination refuses them; they are tried again."""
        return first_word(self.reason) == REFUSES


class WorkerTroubles(NamedTuple):
    """The part of a worker's announcement about messages that do not go out.

    brokers: name of each broker -> why it is unavailable, None if it is available; None as a whole
    if the worker's version does not announce it. parked: lane -> why its messages are parked.
    paused: the places that it keeps paused; None if its version knows no rules of destinations.
    refused: lane -> why its last messages failed, if none was confirmed since.
    """

    brokers: Mapping[str, str | None] | None = None
    parked: Mapping[str, str] = {}
    paused: tuple[str, ...] | None = None
    refused: Mapping[str, str] = {}

    def why(self, destination: str) -> str:
        """Why a message to this destination is parked, as far as the worker has announced it."""
        name = destination.partition(":")[0]
        if name == PULL:
            return UNRECEIVED
        if self.brokers is not None and name not in self.brokers:
            return f"{LACKING}: its worker has no broker named {name!r}"
        if reason := (self.brokers or {}).get(name):
            return reason
        for label, reason in self.parked.items():
            if destination == label or destination.startswith(f"{label}/"):
                return reason
        return self.parked.get(other_kind(name), SLOW)

    def troubles(self, worker: str) -> list[Trouble]:
        """The same as a list: whole brokers first, then destinations, those that refuse last."""
        brokers = [(f"{name}:", why) for name, why in (self.brokers or {}).items() if why]
        refused = [
            (label, f"{REFUSES}: {why}")
            for label, why in self.refused.items()
            if why and label not in self.parked
        ]
        return [Trouble(*each, worker) for each in [*brokers, *self.parked.items(), *refused]]


def other_kind(broker: str) -> str:
    """The lane of messages whose broker was of another kind when they were scheduled."""
    return f"{broker}: of another kind"


def first_word(reason: str) -> str:
    """The word that reasons are grouped by: `unroutable` for `unroutable: 312 NO_ROUTE`.

    For quarantined messages it includes the code: `ingress:bad_header`.
    """
    found = _WORD.match(reason)
    return found[0] if found else ""
