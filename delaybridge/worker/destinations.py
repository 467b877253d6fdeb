"""The rules of destinations that a worker obeys: read before it claims anything, then each second.

A change is also told on the wake channel. What cannot be read changes nothing: the rules known
before stay in force, so no error resumes a destination that is paused.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from math import inf
from typing import Any

from delaybridge.errors import StoreUnavailable, printable
from delaybridge.store.namespace import rules
from delaybridge.store.namespace.rules import NO_RULES, Rule, Rules
from delaybridge.store.protocol.verbs import RedisCommand
from delaybridge.store.redis.store import AsyncStore
from delaybridge.worker.eventlog import say
from delaybridge.worker.parts import Part

_SHOWN_CHARS = 200
_SHOWN_PLACES = 10
_TOLD_ANSWERS = 3


class Destinations(Part):
    """A part of the pulse. asked: how often the rules were asked for."""

    name = "destinations"

    def __init__(self, namespace: str) -> None:
        self._namespace = namespace
        self.rules: Rules = NO_RULES
        self._on_change: Callable[[Rules], None] = lambda rules: None
        self.asked = self._taken = 0
        self._stored: Mapping[bytes, bytes] | None = {}  # None: others are in force
        self._error = ""
        self._told = 0  # answers in which the rules may have been changed
        self._eased: Sequence[str] = ()  # places whose pause or rate went, untold so far

    def expect_change(self) -> None:
        """The wake channel says that the rules have changed."""
        self._told = _TOLD_ANSWERS

    def follow(self, on_change: Callable[[Rules], None]) -> None:
        """Call this with the rules whenever they have changed from now on."""
        self._on_change = on_change

    async def read(self, store: AsyncStore) -> None:
        """Read them now. Raises StoreUnavailable if Redis does not answer."""
        replies = await store.run_each(self.commands())
        self.take_replies(replies)
        for reply in replies:
            if isinstance(reply, StoreUnavailable):
                raise reply

    def commands(self) -> Sequence[RedisCommand[Any]]:
        """What reads them; the reply knows when they were asked for."""
        self.asked += 1
        number, read = self.asked, rules.read(self._namespace)
        numbered = RedisCommand(
            read.name, read.keys, read.args,
            lambda reply: (number, read.parse(reply)), is_plain=True,
        )  # fmt: skip
        return [numbered]

    def take_replies(self, replies: Sequence[Any]) -> None:
        """Obey the rules in the reply, unless a later question was answered already."""
        (reply,) = replies
        if isinstance(reply, Exception):
            self._unreadable(reply)
        elif (stored := self._newest(reply)) is not None:
            self._obey(stored)

    def _newest(self, reply: tuple[int, Mapping[bytes, bytes]]) -> Mapping[bytes, bytes] | None:
        """What a reply says; None: a later question was answered already."""
        number, stored = reply
        if number < self._taken:
            return None
        self._taken = number
        return stored

    def _obey(self, stored: Mapping[bytes, bytes]) -> None:
        """Obey these rules, and say what has changed."""
        self._say_lost()
        if stored == self._stored and not self._error:
            return
        self._error = ""
        self._stored = stored
        before, self.rules = self.rules, rules.understood(stored, self.rules)
        self._keep_known()
        if self.rules.odd != before.odd:
            self._say_odd()
        if self.rules.by_place != before.by_place:
            self._eased = _eased(before, self.rules)
            self._changed()

    def _keep_known(self) -> None:
        """Keep in force what Redis may have lost of the rules known before; here nothing is."""

    def _changed(self) -> None:
        self._say_changed()
        self._on_change(self.rules)

    def _unreadable(self, error: Exception) -> None:
        if not isinstance(error, StoreUnavailable) and str(error) != self._error:
            self._error = str(error)
            hint = "the rules known before stay in force; see: delaybridge doctor"
            say(logging.ERROR, "rules_unreadable", reason=self._error[:_SHOWN_CHARS], hint=hint)

    def _say_lost(self) -> None:
        """Say what was eased at an earlier answer and was not announced: a failover lost the rule.

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
