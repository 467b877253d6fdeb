"""Leaving: what left a bucket becomes over in the ledger, with its history."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from delaybridge.ledger.comparing.healing import Left
from delaybridge.ledger.sql.rows import DELAYED, IN_FLIGHT, OVER, PUBLISHED, RowName, Step

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from delaybridge.ledger.sql.records import Records


def write_left(
    records: Records,
    worker: str,
    bucket: int,
    found: Sequence[Left],
    at_ms: Mapping[RowName, int],
    may_be_told: bool,
    on: Connection,
) -> None:
    """Write down what left. at_ms: when, if this worker knows it.

    may_be_told: the ledger may know some of it, from a call without an answer.
    """
    now_ms = time.time_ns() // 1_000_000
    left = {(bucket, each.id, int.from_bytes(each.stamp, "big")): each.state for each in found}
    known = records.states(on, [*left]) if may_be_told else {}
    told = {name for name, (state, _) in known.items() if state in OVER}
    by_state = defaultdict[str, list[RowName]](list)
    steps = []
    for name, state in left.items():
        if name not in told:
            by_state[state].append(name)
            before, ms = IN_FLIGHT if state == PUBLISHED else DELAYED, at_ms.get(name, now_ms)
            steps.append(Step(name[1], before, state, ms, worker, name[0]))
    for state, own in by_state.items():
        records.change(on, own, state, now_ms)
    records.note(on, steps)
