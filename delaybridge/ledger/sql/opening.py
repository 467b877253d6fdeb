"""Opening a ledger: SQLAlchemy is imported when one is opened, and by nothing else."""

from __future__ import annotations

from typing import Any

from delaybridge.errors import ConfigError
from delaybridge.settings.extras import remedy_of
from delaybridge.store.protocol.recorder import Ledger

SLOW_S = 0.05  # a count that takes longer is kept
READ_AGAIN = 20  # times as long as a count took


def open_ledger(url: str, *, timeout_s: float = 5.0, connections: int = 5) -> Ledger:
    """The ledger at a URL; nothing is connected yet.

    ConfigError: the extra `ledger`, or the driver that the URL names, is not installed.
    """
    try:
        from delaybridge.ledger.sql.database import Database

        made: Any = Database(url, timeout_s=timeout_s, connections=connections)
    except ModuleNotFoundError as exc:
        raise ConfigError(f"ledger.url: {remedy_of(exc) or exc}") from None
    found: Ledger = made
    return found
