"""The ledger: a database that has every message, for what Redis may lose. See docs/ledger.md.

`Ledger` runs work in transactions; `tables` are the tables, `records` what is written to them and
read from them. SQLAlchemy is imported when a ledger is opened, and by nothing else.
"""

from delaybridge.ledger.work import open_ledger

__all__ = ["open_ledger"]
