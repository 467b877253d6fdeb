"""Ingest: messages published to a delay exchange or a delay topic go into the store.

`rabbitmq` and `kafka` consume, and acknowledge only after the store has answered. They turn each
message into an `Entry` (entries.py), which `storing` writes. A message that cannot be accepted
becomes a `Quarantine`: it goes to the dead set unchanged, with the reason, and holds up no other.
"""
