"""A session of a bucket, without a store."""

from __future__ import annotations

from delaybridge.scan.session import Session
from delaybridge.store.verbs import Bucket

TURN = 10


def new_session(number: int = 3) -> Session:
    """A session that may claim, since nothing is left to be reclaimed."""
    session = Session(Bucket("ns", number, "birth"), f"w:random:{TURN}", TURN, 1000, 0.0)
    session.ready = True
    return session
