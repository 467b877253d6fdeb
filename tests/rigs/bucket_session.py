"""A session of a bucket, and copies that it claimed, without a store."""

from __future__ import annotations

from typing import Any

from delaybridge.message import Destination, Record
from delaybridge.scan.lanes.flow import Flow
from delaybridge.scan.lanes.lane import Copy, Lane, LaneRules, Lot
from delaybridge.scan.lanes.retry import RetryPolicy
from delaybridge.scan.leases.session import Session
from delaybridge.store.protocol.bucket import Bucket
from delaybridge.store.protocol.record import UNTRIED

TURN = 10


def new_session(number: int = 3) -> Session:
    """A session that may claim, since nothing is left to be reclaimed."""
    session = Session(Bucket("ns", number, "birth"), f"w:random:{TURN}", TURN, 1000, 0.0)
    session.reclaimed()
    return session


def copy_of(session: Session, id: str, due_ms: int = 5, stamp: int = 1) -> Copy:
    """A copy of a message to a:q, scheduled by the call with this stamp."""
    destination: Any = Destination("a", "", "q")
    lane = Lane("a:q", None, Flow(10, 0), LaneRules(RetryPolicy()))
    record = Record("a:q", b"")
    copy = Copy(Lot(session, TURN + 1), id, float(due_ms), UNTRIED, record, destination, lane)
    copy.stamp = stamp.to_bytes(4, "big")
    return copy
