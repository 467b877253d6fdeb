"""The rules of destinations that a worker obeys: read before it claims anything, then each second.

A change is also told on the wake channel. What cannot be read changes nothing: the rules known
before stay in force, so no error resumes a destination that is paused. With a ledger nor does a
Redis that was wiped, or came back older: until its rules agree with the ledger, of what it has only
pauses are obeyed, besides the rules known before.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from math import inf
from typing import Any

import msgspec

from delaybridge.errors import StoreUnavailable, printable
from delaybridge.ledger.sql.rows import RULE, Control, ControlName
from delaybridge.store.namespace import ledger_agreement, rules
from delaybridge.store.namespace.ledger_agreement import Agreement
from delaybridge.store.namespace.rule_fields import field_and_place
from delaybridge.store.namespace.rules import NO_RULES, Rule, Rules
from delaybridge.store.protocol.command import RedisCommand
from delaybridge.store.redis.store import AsyncStore
from delaybridge.worker.eventlog import say

_SHOWN_CHARS = 200
_SHOWN_PLACES = 10
_TOLD_ANSWERS = 3
_NOTHING: Mapping[ControlName, Control] = {}
_UNREAD_S = 10.0  # a pause may have come and been lost since


class Destinations:
    """A part of the pulse. on_change: called with the rules whenever they have changed.

    asked: how often they were asked for. agree: whether those that were read last were those of
    the ledger, if there is one. known: whether they agreed once, and were read ever since.
    """

    name = "destinations"

    def __init__(
        self,
        namespace: str,
        *,
        has_ledger: bool = False,
        unrecorded: Mapping[ControlName, Control] = _NOTHING,
    ) -> None:
        """unrecorded: changes that the ledger lacks, and Redis may have lost."""
        self._unrecorded = unrecorded
        self._namespace, self._has_ledger = namespace, has_ledger
        self.agree = self.known = not has_ledger
        self._read_s = -inf
        self.rules: Rules = NO_RULES
        self.on_change: Callable[[Rules], None] = lambda rules: None
        self.asked = self._taken = 0
        self._stored: Mapping[bytes, bytes] | None = {}  # None: others are in force
        self._error = ""
        self._told = 0  # answers for which somebody may have changed the rules
        self._eased: Sequence[str] = ()  # places whose pause or rate went, and nobody said so yet

    def told(self) -> None:
        """Somebody said that the rules have changed."""
        self._told = _TOLD_ANSWERS

    async def read(self, store: AsyncStore) -> None:
        """Read them now. Raises StoreUnavailable if Redis does not answer."""
        replies = await store.run_each(self.commands())
        self.take(replies)
        for reply in replies:
            if isinstance(reply, StoreUnavailable):
                raise reply

    def commands(self) -> Sequence[RedisCommand[Any]]:
        """What reads them; the reply knows when they were asked for."""
        self.asked += 1
        number, read = self.asked, rules.read(self._namespace)
        asked = [
            RedisCommand(
                read.name, read.keys, read.args,
                lambda reply: (number, read.parse(reply)), is_plain=True,
            )
        ]  # fmt: skip
        return ledger_agreement.watched(self._namespace, asked) if self._has_ledger else asked

    def take(self, replies: Sequence[Any]) -> None:
        """Obey the rules in the reply, unless a later question was answered already."""
        found = None
        if self._has_ledger:
            found, replies = ledger_agreement.agreed(replies)
        (reply,) = replies
        if isinstance(reply, Exception):
            self.known = not self._has_ledger
            self._unreadable(reply)
            return
        number, stored = reply
        if number < self._taken:
            return
        self._taken = number
        if self._has_ledger:
            self._compare(found, stored)
        if not self.agree:
            self._obey_pauses(stored)
            return
        self._say_lost()
        if stored == self._stored and not self._error:
            return
        self._error = ""
        self._stored = stored
        before, self.rules = self.rules, rules.understood(stored, self.rules)
        self._keep_paused()
        if self.rules.odd != before.odd:
            self._say_odd()
        if self.rules.by_place != before.by_place:
            self._eased = _eased(before, self.rules)
            self._say_changed()
            self.on_change(self.rules)

    def _compare(self, found: Agreement | None, stored: Mapping[bytes, bytes]) -> None:
        before_s, self._read_s = self._read_s, time.monotonic()
        self.agree = found is not None and len(stored) >= found.rules
        self.known = self.agree or (self.known and self._read_s - before_s < _UNREAD_S)

    def _obey_pauses(self, stored: Mapping[bytes, bytes]) -> None:
        """Of rules that may be of the past: their pauses."""
        known = dict(self.rules.by_place)
        for place, rule in rules.understood(stored).by_place.items():
            if rule.paused and not known.get(place, Rule()).paused:
                known[place] = msgspec.structs.replace(
                    known.get(place, Rule()), paused=True, paused_ms=rule.paused_ms
                )
        if known != self.rules.by_place:
            self.rules, self._stored = self.rules._replace(by_place=known), None
            self._say_changed()
            self.on_change(self.rules)

    def _keep_paused(self) -> None:
        """What this worker knows to be paused stays so, until the ledger knows it, too.

        Somebody who did not know it may have compared them.
        """
        kept = dict(self.rules.by_place)
        for each in self._unrecorded.values():
            place = field_and_place(each.name)[1].decode(errors="backslashreplace")
            if each.kind == RULE and each.is_paused and not kept.get(place, Rule()).paused:
                kept[place] = msgspec.structs.replace(kept.get(place, Rule()), paused=True)
        if kept != self.rules.by_place:
            self.rules, self._stored = self.rules._replace(by_place=kept), None

    def _unreadable(self, error: Exception) -> None:
        if not isinstance(error, StoreUnavailable) and str(error) != self._error:
            self._error = str(error)
            hint = "the rules known before stay in force; see: delaybridge doctor"
            say(logging.ERROR, "rules_unreadable", reason=self._error[:_SHOWN_CHARS], hint=hint)

    def _say_lost(self) -> None:
        """Say what was eased at an earlier answer, if nobody told of it: a failover lost the rule.

        A worker may see a change just before it is told of it.
        """
        if self._eased and not self._told:
            places = ",".join(map(printable, self._eased[:_SHOWN_PLACES]))
            hint = "nobody said so: if Redis lost it, set it again; see: delaybridge destination ls"
            say(logging.WARNING, "rules_lost", places=places, hint=hint)
        self._eased, self._told = (), max(0, self._told - 1)

    def _say_odd(self) -> None:
        for place, what in list(self.rules.odd.items())[:_SHOWN_PLACES]:
            reason = printable(what)[:_SHOWN_CHARS]
            hint = "ignored; what was known before stays in force"
            say(logging.ERROR, "rule_unreadable", place=printable(place), reason=reason, hint=hint)

    def _say_changed(self) -> None:
        by_place = self.rules.by_place
        paused = [printable(place) for place, rule in by_place.items() if rule.paused]
        shown = ",".join(paused[:_SHOWN_PLACES]) or "none"
        say(logging.INFO, "rules_changed", rules=len(by_place), paused=shown)


def _eased(before: Rules, after: Rules) -> list[str]:
    """The places whose pause is gone, or whose rate is gone or higher."""
    return [
        place
        for place, was in before.by_place.items()
        if (now := after.by_place.get(place, Rule())) != was
        and ((was.paused and not now.paused) or (was.rate or inf) < (now.rate or inf))
    ]
