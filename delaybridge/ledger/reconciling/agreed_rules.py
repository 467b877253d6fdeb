"""The rules of destinations that a worker with a ledger obeys.

No Redis that was wiped, or came back older, resumes a destination that is paused: until its rules
agree with the ledger, of what it has only pauses are obeyed, besides the rules known before.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from math import inf
from typing import Any

from msgspec.structs import replace

from delaybridge.ledger.comparing.rule_controls import field_and_place
from delaybridge.ledger.sql.rows import RULE, Control, ControlName
from delaybridge.store.namespace import ledger_agreement, rules
from delaybridge.store.namespace.ledger_agreement import Agreement
from delaybridge.store.namespace.rules import Rule
from delaybridge.store.protocol.verbs import RedisCommand
from delaybridge.worker.destinations import Destinations

_UNREAD_S = 10.0  # a pause may have come and been lost since


class AgreedDestinations(Destinations):
    """agree: whether the rules that were read last were those of the ledger.

    known: whether they agreed once, and were read ever since.
    """

    def __init__(self, namespace: str, unrecorded: Mapping[ControlName, Control]) -> None:
        """unrecorded: changes that the ledger lacks, and Redis may have lost."""
        super().__init__(namespace)
        self._unrecorded = unrecorded
        self.agree = self.known = False
        self._read_s = -inf

    def commands(self) -> Sequence[RedisCommand[Any]]:
        """What reads them, and what tells whether they agree with the ledger."""
        return ledger_agreement.watched(self._namespace, super().commands())

    def take_replies(self, replies: Sequence[Any]) -> None:
        """Obey the rules if they agree with the ledger, else only what they pause."""
        found, (reply,) = ledger_agreement.agreed(replies)
        if isinstance(reply, Exception):
            self.known = False
            self._unreadable(reply)
        elif (stored := self._newest(reply)) is not None:
            self._compare(found, stored)
            if self.agree:
                self._obey(stored)
            else:
                self._obey_pauses(stored)

    def _compare(self, found: Agreement | None, stored: Mapping[bytes, bytes]) -> None:
        before_s, self._read_s = self._read_s, time.monotonic()
        self.agree = found is not None and len(stored) >= found.rules
        self.known = self.agree or (self.known and self._read_s - before_s < _UNREAD_S)

    def _obey_pauses(self, stored: Mapping[bytes, bytes]) -> None:
        """Obey the pauses of rules that may be of the past."""
        known = dict(self.rules.by_place)
        for place, rule in rules.understood(stored).by_place.items():
            if rule.paused and not known.get(place, Rule()).paused:
                before = known.get(place, Rule())
                known[place] = replace(before, paused=True, paused_ms=rule.paused_ms)
        if known != self.rules.by_place:
            self.rules, self._stored = self.rules._replace(by_place=known), None
            self._changed()

    def _keep_known(self) -> None:
        """What this worker knows to be paused stays so, until the ledger knows it, too.

        Another worker, which did not know it, may have compared them.
        """
        kept = dict(self.rules.by_place)
        for each in self._unrecorded.values():
            place = field_and_place(each.name)[1].decode(errors="backslashreplace")
            if each.kind == RULE and each.is_paused and not kept.get(place, Rule()).paused:
                kept[place] = replace(kept.get(place, Rule()), paused=True)
        if kept != self.rules.by_place:
            self.rules, self._stored = self.rules._replace(by_place=kept), None
