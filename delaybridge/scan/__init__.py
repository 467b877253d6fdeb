"""The heart: claims due messages, fires them at their instant, publishes and settles them.

Start with `Scanner.scan` in `scanner.py`, the table of contents. Its steps are `claiming`,
`firing`, `publishing` and `telling`. `routing` finds a copy's lane, `lanes` the obstacles in its
way, `outcomes` gives a published copy its exit, `lease` takes the buckets of this worker's share.
Everything runs on one event loop. Only `asking`, `lease` and `damaged_buckets` talk to the store,
only `lanes` to publishers.
"""
