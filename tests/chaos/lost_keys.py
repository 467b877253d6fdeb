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
    "due": Loss(MENDED, "found, and wait for their time again"),
    "messages": Loss(
        TOLD,
        "what waited is put into the dead set (`payload_missing`); what is on its way to a broker "
        "still arrives",
        kept="mended. What a worker had claimed goes out although `cancelled` or `rescheduled` is "
        "answered, and may come twice",
        kept_excused=_UNDONE | _TWICE,
    ),
    "mirror": Loss(MENDED, "what was in flight may come twice"),
    "attempts": Loss(
        UNKNOWN,
        "failed messages get all attempts again, counted from their back-off; `cancelled` may be "
        "answered for one that arrived; receipts of pull topics are refused, those messages come "
        "again",
        _UNDONE,
    ),
    "parked": Loss(MENDED, "found, and parked again if need be"),
    "dead": Loss(
        MENDED,
        "found by their reasons, as if buried now; those without a body are gone",
        kept="the same, also those without a body",
    ),
    "dead_reason": Loss(
        TOLD,
        "as their reason stands `unknown: its reason was lost`",
        kept="the same; those whose body is lost, too, have their reason",
    ),
    "lease": Loss(MENDED, "what was in flight may come twice"),
    "marks": Loss(
        TOLD,
        "the bucket waits for the command that `doctor` shows. What was in flight may come twice, "
        "`cancelled` be answered for a message that was sent; counters begin at 0",
        _UNDONE,
        kept="mended by its worker; the rest is the same",
        kept_excused=_UNDONE | _TWICE,
    ),
    "revoked": Loss(
        UNKNOWN,
        "what was cancelled or rescheduled in its last two seconds may come at its old time",
        _UNDONE,
    ),
    "calls": Loss(UNKNOWN, "a call that is sent again may take effect twice"),
    "sources": Loss(
        UNKNOWN,
        "Kafka records read again, and requests repeated under an `Idempotency-Key`, may come "
        "again once delivered; plans of recurring messages begin again",
    ),
    "ready": Loss(MENDED, "pull topics offer them again, within an hour"),
    "delivered": Loss(UNKNOWN, "an id that is scheduled again within the window comes again"),
    "gone": Loss(
        MENDED,
        "there is no such key",
        kept="what left in the last second, and was not told yet, comes twice",
        kept_excused=_TWICE,
    ),
}  # fmt: skip
"""Of each key of a bucket."""
_GONE, _NONE = frozenset({"I1"}), frozenset[str]()
_RESTORED = "mended, if nothing contradicts another key within `ledger.reconcile_s`"
TOGETHER = {
    ("due", "messages"): Loss(UNKNOWN, "gone without a trace", _GONE, _RESTORED, _NONE),
    ("messages", "mirror"): Loss(
        UNKNOWN, "what its worker has not sent yet is gone", _GONE, _RESTORED, _NONE
    ),
    ("messages", "parked"): Loss(UNKNOWN, "gone without a trace", _GONE, _RESTORED, _NONE),
    ("dead", "messages"): Loss(UNKNOWN, "gone", _GONE, _RESTORED, _NONE),
    ("dead", "dead_reason"): Loss(UNKNOWN, "the dead are tried again, and may arrive"),
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
    lines = ["| lost | without a ledger | with a ledger |", "|---|---|---|"]
    rows = [(f"`{key}`", row) for key, row in ALONE.items()]
    rows += [(f"`{pair[0]}`, `{pair[1]}`", row) for pair, row in TOGETHER.items()]
    lines += [
        f"| {lost} | **{row.verdict}**: {row.what} | {row.kept or 'the same'} |"
        for lost, row in rows
    ]
    lines.append("| other pairs, halves | as each of them | the same |")
    return "\n".join(lines)
