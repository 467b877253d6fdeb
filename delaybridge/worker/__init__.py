"""The processes behind `delaybridge scan` and `delaybridge ingest`.

Each builds its parts from the settings and keeps them running: `worker` a scanner, `ingester` the
delay exchanges and topics of each broker. `processes` is the parent of several of them. `service`
holds what they share: signals, tasks and how they end. `eventlog` writes their events to the log.
"""
