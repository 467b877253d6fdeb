"""What a bucket may lose with its keys: the rows of a table in docs/faults.md.

A cell holds each row against a bridge: `excused` names the invariants that nobody could keep.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import combinations
from typing import NamedTuple

MENDED, TOLD, UNKNOWN = "mended", "told", "cannot be known"


class Loss(NamedTuple):
    """verdict: MENDED, TOLD or UNKNOWN. excused: of the bucket's messages.

    kept, kept_excused: what is different with a ledger, if anything is.
    """

    verdict: str
    what: str
    excused: frozenset[str] = frozenset()
    kept: str = ""
    kept_excused: frozenset[str] | None = None

    def excused_with(self, *, ledger: bool) -> frozenset[str]:
        """With a ledger, or without."""
        kept = self.kept_excused if ledger else None
        return self.excused if kept is None else kept


_UNDONE = frozenset({"I3", "I4"})  # a cancel or a reschedule
_TWICE = frozenset({"I11"})
ALONE = {
    "due": Loss(MENDED, "the delayed messages are found, and wait for their time again"),
    "messages": Loss(
        TOLD,
        "the bodies are lost: each message that waited is found and put into the dead set "
        "(`payload_missing`); what is on its way to a broker still arrives",
        kept="mended: all come. What a worker had claimed goes out all the same, also if "
        "`cancelled` or `rescheduled` is answered meanwhile, and may come twice",
        kept_excused=_UNDONE | _TWICE,
    ),
    "mirror": Loss(
        MENDED, "what was in flight is found and sent again: it may come twice, as after a crash"
    ),
    "attempts": Loss(
        UNKNOWN,
        "messages that failed get all their attempts again, counted from the time of their "
        "back-off; `cancelled` may be answered for one that has arrived; receipts of pull topics "
        "are refused, and those messages come again",
        _UNDONE,
    ),
    "parked": Loss(MENDED, "the parked messages are found, and parked again if need be"),
    "dead": Loss(
        MENDED,
        "the dead messages are found by their reasons, and are dead again, as if they were buried "
        "now; those without a body are gone",
        kept="the same, also those without a body",
    ),
    "dead_reason": Loss(
        TOLD,
        "the dead messages stay; as their reason stands `unknown: its reason was lost`",
        kept="the same; those whose body is lost, too, have their reason",
    ),
    "lease": Loss(MENDED, "as after a crash: what was in flight may come twice"),
    "marks": Loss(
        TOLD,
        "the bucket waits until an operator runs the command that `doctor` shows. What was in "
        "flight may come twice, and `cancelled` be answered meanwhile for a message that was sent; "
        "counts of what was scheduled and mended begin again at 0",
        _UNDONE,
        kept="mended: its worker sets the counter again itself, and compares the bucket; the rest "
        "is the same",
        kept_excused=_UNDONE | _TWICE,
    ),
    "revoked": Loss(
        UNKNOWN,
        "what was cancelled or rescheduled in the last two seconds before it was due may come "
        "all the same, at its old time",
        _UNDONE,
    ),
    "calls": Loss(
        UNKNOWN, "a call that is sent again because its answer was lost may take effect twice"
    ),
    "sources": Loss(
        UNKNOWN,
        "Kafka records that are read again, and requests repeated under an `Idempotency-Key`, may "
        "come again once they were delivered; plans of recurring messages begin again",
    ),
    "ready": Loss(MENDED, "the messages of pull topics are offered again, within an hour"),
    "delivered": Loss(UNKNOWN, "an id that is scheduled again within the window comes again"),
    "gone": Loss(
        MENDED,
        "there is none",
        kept="mended: what left in the last second, and was not told yet, is restored, and comes "
        "twice",
        kept_excused=_TWICE,
    ),
}  # fmt: skip
"""Of each key of a bucket."""
_GONE, _NONE = frozenset({"I1"}), frozenset[str]()
_RESTORED = "mended: they come back, if nothing contradicts another key within `ledger.reconcile_s`"
TOGETHER = {
    ("due", "messages"): Loss(
        UNKNOWN, "the delayed messages are gone without a trace", _GONE, _RESTORED, _NONE
    ),
    ("messages", "mirror"): Loss(
        UNKNOWN, "of what was in flight, what its worker has not sent yet is gone", _GONE,
        _RESTORED, _NONE,
    ),
    ("messages", "parked"): Loss(
        UNKNOWN, "the parked messages are gone without a trace", _GONE, _RESTORED, _NONE
    ),
    ("dead", "messages"): Loss(UNKNOWN, "the dead messages are gone", _GONE, _RESTORED, _NONE),
    ("dead", "dead_reason"): Loss(
        UNKNOWN, "the dead messages count as delayed: they are tried again, and may arrive"
    ),
    ("lease", "marks"): Loss(
        TOLD,
        "the next owner counts from 1; if something was in flight, `doctor` shows the command",
        kept="mended: as `marks` alone",
    ),
    ("parked", "ready"): Loss(MENDED, "pull topics: delayed, then offered again"),
}  # fmt: skip
"""Pairs, sorted, of which more is lost than of either key alone; every other is as both alone."""


def rows_of(lost: Collection[str]) -> Iterator[Loss]:
    """All rows of the table that concern a bucket that lost these keys."""
    yield from (ALONE[key] for key in sorted(lost))
    pairs = (TOGETHER.get(pair) for pair in combinations(sorted(lost), 2))
    yield from filter(None, pairs)


def excused(lost: Collection[str], *, ledger: bool) -> frozenset[str]:
    """The invariants that nobody could keep for the messages of such a bucket."""
    return frozenset().union(*(row.excused_with(ledger=ledger) for row in rows_of(lost)))


def table() -> str:
    """The table, for docs/faults.md."""
    lines = ["| lost | without a ledger | | with a ledger |", "|---|---|---|---|"]
    rows = [(f"`{key}`", row) for key, row in ALONE.items()]
    rows += [(f"`{pair[0]}` and `{pair[1]}`", row) for pair, row in TOGETHER.items()]
    lines += [
        f"| {lost} | {row.verdict} | {row.what} | {row.kept or 'the same'} |" for lost, row in rows
    ]
    return "\n".join([
        *lines,
        "| every other pair | | what is said of each of the two | the same |",
        "| a random half, or half of the entries of each | | what is said of each of its keys and "
        "pairs | the same |",
    ])  # fmt: skip
