"""Unpacking: a claim's answer in bytes becomes copies."""

from __future__ import annotations

from typing import cast

from delaybridge.errors import DecodeError
from delaybridge.events import Buried, Emit
from delaybridge.message import decode_record
from delaybridge.scan.lanes.lanes import Lanes
from delaybridge.scan.leases.copy import Copy, Lot
from delaybridge.scan.leases.session import Session
from delaybridge.store.protocol.record import (
    BACKDATED,
    STAMP,
    parse_tried,
    since_ms,
    split_record,
)
from delaybridge.store.protocol.replies import Claim
from delaybridge.store.protocol.verbs import Item


def copies_of(
    session: Session, claimed: Claim, lanes: Lanes, now_ms: int, emit: Emit
) -> list[Copy]:
    """The copies of a claim. A record that cannot be read is buried; the others go on.

    A message that is to leave later than at its score, because its destination is spread, goes back
    to `due` instead. So does one that is late, once: else it might overtake an earlier one of its
    key that was put back before.
    """
    copies, lot = [], Lot(session, claimed.number)
    route, is_spread = lanes.route, lanes.is_spread
    tried = claimed.tried or [b""] * len(claimed.ids)

    def bury(id: str, stamp: bytes, reason: str) -> None:
        session.exits.bury(Item(id, claimed.number, 0.0, stamp), reason, counted=False)
        emit(Buried(destination="?", messages=1, reason="undecodable"))

    for raw_id, raw, failures in zip(claimed.ids, claimed.records, tried, strict=True):
        try:
            id = raw_id.decode()
            score, payload = split_record(raw)
            record = decode_record(payload)
        except UnicodeDecodeError:
            bury(cast(str, raw_id), b"", "undecodable: id")
            continue
        except DecodeError as exc:
            bury(id, raw[STAMP], f"{exc.code}: {exc.detail}")
            continue
        destination, lane = route(record.destination, now_ms)
        copy = Copy(lot, id, score, parse_tried(failures), record, destination, lane)
        copy.stamp = raw[STAMP]
        if raw[0] == BACKDATED:
            copy.late_from_ms = max(copy.late_from_ms, since_ms(raw))
        if not (is_spread and _defers(copy, now_ms)):
            copies.append(copy)
    return copies


def _defers(copy: Copy, now_ms: int) -> bool:
    """Put it back in `due` if it is to leave later than at its score."""
    spread_ms, tried = copy.lane.terms.spread_ms, copy.tried
    if not spread_ms or tried.failures:
        return False
    leaves_at = copy.leaves_at(spread_ms)
    is_late_again = tried.due_ms is not None and leaves_at <= now_ms
    if leaves_at <= copy.score or is_late_again:
        return False
    copy.session.exits.defer(copy.item, leaves_at)
    return True
