"""What a caller is told of a call that failed where there is a ledger: it may take effect."""

from __future__ import annotations

from delaybridge.errors import LedgerUnavailable, StoreError, StoreWiped
from delaybridge.ledger.work import IN_DOUBT

WENT_BACK = f"ledger: Redis went back, or was wiped, meanwhile; {IN_DOUBT}"


def of_ledger(error: StoreError) -> StoreError:
    """The error; a wipe is none after which anything must be started again."""
    return LedgerUnavailable(WENT_BACK) if isinstance(error, StoreWiped) else error


def in_doubt(error: StoreError) -> StoreError:
    """The error of a call that may take effect: the ledger has its row, or Redis has done it."""
    found = of_ledger(error)
    text = str(found).partition("; nothing")[0].removesuffix(f"; {IN_DOUBT}")
    made = type(found)(f"{text}; {IN_DOUBT}")
    made.__cause__ = found.__cause__
    return made
