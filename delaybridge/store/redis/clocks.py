"""Time for scripts on servers that refuse TIME in them; the URL asks for it: time_in_scripts=no.

TIME, as a command of its own, is asked of each server once a second. The machine's steady clock
tells how much later it is. What a script is told is never ahead of the server's clock, except a
time that a delay is counted from, which is never behind. A clock that is set back, or the other
clock of a server that took over, is noticed a second later.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import msgspec

from delaybridge.store.protocol.scripts import now_places
from delaybridge.store.protocol.verbs import RedisCommand, plain

Commands = Sequence[RedisCommand[Any]]

_KNOWN_S = 1.0  # how long an answer counts
_DELAYING = frozenset(
    ("schedule", "schedule_one", "reschedule", "kick", "retry", "restore", "receive")
)


class TimeSeen(NamedTuple):
    """What a server's clock showed, and when it was asked and had answered on the steady one."""

    us: int
    asked_s: float
    answered_s: float


class Clocks:
    """The clocks of a store's servers."""

    def __init__(self, node_of: Callable[[str], str]) -> None:
        """node_of: the server that has a key."""
        self._node_of, self._seen = node_of, dict[str, TimeSeen]()

    def asked(self, commands: Commands) -> dict[str, RedisCommand[None]]:
        """TIME, by server, of those that are to run scripts and were not asked in the last second.

        The answers are remembered.
        """
        now_s = time.monotonic()
        nodes = {self._node_of(each.keys[0]) for each in commands if _is_untold(each)}
        fresh = {n for n, seen in self._seen.items() if seen.asked_s >= now_s - _KNOWN_S}
        return {
            node: plain("TIME", parse=partial(self._see, node, now_s), near=node and f"@{node}")
            for node in nodes - fresh
        }

    def _see(self, node: str, asked_s: float, reply: Sequence[bytes]) -> None:
        us = int(reply[0]) * 1_000_000 + int(reply[1])
        self._seen[node] = TimeSeen(us, asked_s, time.monotonic())

    def with_times(
        self, commands: Commands, failed: Mapping[str, Exception]
    ) -> tuple[list[RedisCommand[Any]], dict[int, Exception]]:
        """The same commands, each script with its server's time; and errors, by place.

        failed: the errors of servers that were asked in vain, which are those of their scripts.
        """
        found, errors, now_s = list(commands), dict[int, Exception](), time.monotonic()
        for i, command in enumerate(found):
            if not _is_untold(command):
                continue
            node = self._node_of(command.keys[0])
            if node in failed:
                errors[i] = failed[node]
            elif node in self._seen:  # else its slot has just moved there
                found[i] = _stamped(command, self._seen[node], now_s)
        return found, errors


def _is_untold(command: RedisCommand[Any]) -> bool:
    place = None if command.is_plain else now_places().get(command.name)
    return place is not None and command.args[place] == ""


def _stamped(command: RedisCommand[Any], seen: TimeSeen, now_s: float) -> RedisCommand[Any]:
    is_delay = command.name in _DELAYING
    since_s = seen.asked_s if is_delay else seen.answered_s
    ms = (seen.us + (now_s - since_s) * 1e6) / 1000
    args = [*command.args]
    args[now_places()[command.name]] = math.ceil(ms) if is_delay else int(ms)
    return msgspec.structs.replace(command, args=args)
