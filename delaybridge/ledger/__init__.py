"""The ledger: a database that has every message, for what Redis may lose. See docs/ledger.md.

Rooms, each above those before it: `sql` (the database: `opening.open_ledger`, tables, what is
written and read), `comparing` (Redis and the ledger come to agree), `recording` (the recorder of a
store), `reconciling` (a worker's part). SQLAlchemy is imported when a ledger is opened.
"""
