"""Which messages of a `schedule` command stay in the ledger alone, and the command without them.

Its arguments and its reply are described in lua/schedule.lua.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any

import msgspec

from delaybridge.ledger.sql.rows import LedgerRow
from delaybridge.store.protocol.verbs import GATHERED, Arg, RedisCommand

NOW, POLICY = 0, 1  # places of arguments
_COUNT, _FIRST_ID = 9, 10
REPLACE = 2  # policy
CREATED = 1


def replaces(command: RedisCommand[Any]) -> bool:
    """Whether a command stores messages, and these replace others of their ids."""
    policy = int(command.args[POLICY]) if command.name == "schedule" else 0
    return policy == REPLACE or policy >= GATHERED


def only(command: RedisCommand[Any], places: Sequence[int]) -> RedisCommand[Any]:
    """The command with the messages at these places alone."""
    args = command.args
    count = int(args[_COUNT])
    ids, entries = args[_FIRST_ID:][:count], args[_FIRST_ID + count :][:count]
    runs = args[_FIRST_ID + 2 * count :]
    scores = [
        score for score, many in zip(runs[::2], runs[1::2], strict=True) for _ in range(int(many))
    ]
    left: list[Arg] = [*args[:_COUNT], len(places)]
    left += [ids[place] for place in places] + [entries[place] for place in places]
    for score, run in groupby(scores[place] for place in places):
        left += (score, sum(1 for _ in run))
    return msgspec.structs.replace(command, args=left)


def whole_reply(
    rows: Sequence[LedgerRow], places: Sequence[int], reply: Sequence[int]
) -> Sequence[int]:
    """The reply for all rows, from the one for those at these places; the others were accepted."""
    if reply and reply[0] < 0:
        return reply
    answers = [(CREATED, row.due_ms) for row in rows]
    runs: Iterable[tuple[int, ...]] = zip(reply[::3], reply[1::3], reply[2::3], strict=True)
    sent = [(answer, due_ms) for answer, due_ms, many in runs for _ in range(many)]
    for place, answer in zip(places, sent, strict=True):
        answers[place] = answer
    return [number for answer, run in groupby(answers) for number in (*answer, sum(1 for _ in run))]
