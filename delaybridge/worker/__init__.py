"""The processes behind `delaybridge scan` and `delaybridge ingest`.

Each builds its parts from the settings and keeps them running: `worker` a scanner, `ingester` the
delay exchanges and topics of each broker. `processes` is the parent of several of them. `service`
has their signals and their end in common, `eventlog` writes what they report.
"""
