"""Verbs with a ledger: each writes the row first, then Redis."""
