"""The heart: claims due messages, fires them at their instant, publishes and settles them.

Start with `Scanner.scan` in `scanner.py`, the table of contents. Its steps are `claiming`,
`firing`, `publishing` and `telling`. `lanes` decides what stands in a copy's way, `outcomes` what a
failed publish means for it, `lease` which buckets this worker scans. Everything runs on one event
loop. Only `asking`, `lease` and `damaged_buckets` talk to the store, only `lanes` to publishers.
"""
