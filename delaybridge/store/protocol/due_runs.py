"""Runs of messages that are due at the same time, as `lua/schedule.lua` reads them."""

from __future__ import annotations

from collections.abc import Sequence

from delaybridge.accept.accept import Accepted
from delaybridge.store.protocol.command import Arg

_FRACTIONS = [f"{rank / 256:.8f}"[1:] for rank in range(256)]  # exact: of a score, by rank


def runs_of(messages: Sequence[tuple[bytes, Accepted]]) -> list[Arg]:
    """Score and number of messages of each run."""
    runs: list[Arg] = []
    when, rank, begin = "", 0, 0
    for i, (_, message) in enumerate(messages):
        if message.when != when or message.rank != rank:
            if i:
                runs += (when + _FRACTIONS[rank], i - begin)
            when, rank, begin = message.when, message.rank, i
    if messages:
        runs += (when + _FRACTIONS[rank], len(messages) - begin)
    return runs
